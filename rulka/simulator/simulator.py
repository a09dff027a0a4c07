"""A batch of cars on one track: reset, drive, describe, save and restore. Deterministic to the bit.

A car's path depends on its own start and inputs alone, not on how many cars share the batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS, ActionTable
from rulka.observation import GRASS_IDS, NUM_CAR_FIELDS, NUM_PREVIOUS_ACTIONS, ZONE_SPACING_M, build_floats
from rulka.params import SimulatorParams
from rulka.simulator import physics
from rulka.tracks.progress import zone_frames
from rulka.tracks.track import Track


class SimulatorError(ValueError):
    """Inputs that no car can be driven with; the message says what is wrong."""


class Simulator:
    """Drives a batch of cars.

    Attributes:
        track: the road they share.
        table: what each discrete action does.
        cars: [N, NUM_CAR_FIELDS] float32 `CAR` rows, fresh after every reset and step.
        race: progress and clocks; see `rulka.simulator.physics.Race`.
        previous_keys: [N, 5, 4] float32 keys of the last decisions, oldest first.
    """

    def __init__(self, track: Track, num_cars: int, simulator: SimulatorParams, table: ActionTable) -> None:
        self.track, self.table, self.num_cars = track, table, num_cars
        self._constants = physics.constants(simulator.physics, TICK_MS / 1000.0, ZONE_SPACING_M)
        self._road = _road(track)
        self._keys, self._controls = table.keys(), table.analog()
        num_gates = len(track.gate_m)
        self._state = np.zeros((num_cars, physics.NUM_STATE))
        self.race = physics.Race(
            zone_index=np.zeros(num_cars, np.int64),
            along_m=np.zeros(num_cars),
            lateral_m=np.zeros(num_cars),
            height_m=np.zeros(num_cars),
            time_ms=np.zeros(num_cars, np.int64),
            gate_index=np.zeros(num_cars, np.int64),
            gate_time_ms=np.zeros((num_cars, num_gates), np.int64),
            is_finished=np.zeros(num_cars, np.bool_),
            is_off_track=np.zeros(num_cars, np.bool_),
        )
        self.cars = np.zeros((num_cars, NUM_CAR_FIELDS), np.float32)
        self.previous_keys = np.zeros((num_cars, NUM_PREVIOUS_ACTIONS, 4), np.float32)
        self.reset(np.ones(num_cars, np.bool_))

    @property
    def zone_index(self) -> NDArray[np.int64]:
        """[N] zone each car is in."""
        return self.race.zone_index

    @property
    def along_m(self) -> NDArray[np.float64]:
        """[N] metres along the centreline."""
        return self.race.along_m

    @property
    def lateral_m(self) -> NDArray[np.float64]:
        """[N] metres left of the centreline."""
        return self.race.lateral_m

    @property
    def time_ms(self) -> NDArray[np.int64]:
        """[N] milliseconds since the start."""
        return self.race.time_ms

    @property
    def gate_index(self) -> NDArray[np.int64]:
        """[N] gates passed."""
        return self.race.gate_index

    @property
    def gate_time_ms(self) -> NDArray[np.int64]:
        """[N, G] time at each gate passed, interpolated to the millisecond; 0 where not passed."""
        return self.race.gate_time_ms

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """[N] the last gate is passed."""
        return self.race.is_finished

    @property
    def is_off_track(self) -> NDArray[np.bool_]:
        """[N] the car is too far beyond the edge of the road, or far below it."""
        return self.race.is_off_track

    def reset(
        self,
        which: NDArray[np.bool_],
        along_m: NDArray | float = 0.0,
        lateral_m: NDArray | float = 0.0,
        heading_rad: NDArray | float = 0.0,
        speed_mps: NDArray | float = 0.0,
    ) -> None:
        """Puts chosen cars on the road with their clocks at 0.

        Args:
            which: [N] cars to place; the others are left alone.
            along_m: metres from the start, one for all or [N].
            lateral_m: metres left of the centreline.
            heading_rad: turned left of the road's direction by this much.
            speed_mps: forward speed.
        """
        wide = [np.broadcast_to(np.asarray(x, np.float64), self.num_cars) for x in (along_m, lateral_m, heading_rad, speed_mps)]
        physics.place(self._state, which, *map(np.ascontiguousarray, wide), self.race, self._road, self._constants)
        self.previous_keys[which] = self._keys[0]
        self._describe()

    def step(self, actions: NDArray) -> None:
        """Drives every car for one decision.

        Args:
            actions: [N] indices into the action table.

        Raises:
            SimulatorError: if an action is not in the table.
        """
        if actions.shape != (self.num_cars,) or (actions < 0).any() or (actions >= self.table.num_actions).any():
            message = f"actions must be {self.num_cars} indices from 0 to {self.table.num_actions - 1}, got {actions!r:.120}"
            raise SimulatorError(message)
        self._drive(self._controls[actions], self._keys[actions])

    def step_controls(self, controls: NDArray[np.float32]) -> None:
        """Drives every car for one decision with analog controls.

        Args:
            controls: [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1].

        Raises:
            SimulatorError: if a control is out of range or not a number.
        """
        if controls.shape != (self.num_cars, 3) or not (np.abs(controls) <= 1.0).all() or (controls[:, 1:] < 0).any():
            message = f"controls must be {self.num_cars} rows of steer in [-1, 1], gas and brake in [0, 1]"
            raise SimulatorError(message)
        steer, gas, brake = controls.T
        keys = np.stack([gas > 0.5, brake > 0.5, steer < 0.0, steer > 0.0], axis=1)
        self._drive(np.ascontiguousarray(controls, np.float32), keys.astype(np.float32))

    def floats(self, out: NDArray[np.float32]) -> None:
        """Writes the float observations of all cars into `out` [N, 184]."""
        margin = (self.track.length_m - self.race.along_m).astype(np.float32)
        build_floats(self.cars, self.previous_keys, self.track.zones, self.race.zone_index, margin, out)

    def save(self) -> dict[str, NDArray]:
        """Returns copies of everything that the future of the cars depends on, one array of N rows each."""
        saved = {name: array.copy() for name, array in self.race._asdict().items()}
        return saved | {"state": self._state.copy(), "previous_keys": self.previous_keys.copy()}

    def restore(self, saved: dict[str, NDArray], which: NDArray[np.bool_] | None = None) -> None:
        """Puts cars back to what `save` returned, bit for bit; all cars, or those chosen by `which` [N]."""
        chosen = np.ones(self.num_cars, np.bool_) if which is None else which
        arrays = self.race._asdict() | {"state": self._state, "previous_keys": self.previous_keys}
        for name, array in arrays.items():
            array[chosen] = saved[name][chosen]
        self._describe()

    def _drive(self, controls: NDArray[np.float32], keys: NDArray[np.float32]) -> None:
        physics.drive(self._state, controls, self.table.ticks_per_action, self.race, self._road, self._constants)
        self.previous_keys[:, :-1] = self.previous_keys[:, 1:].copy()
        self.previous_keys[:, -1] = keys
        self._describe()

    def _describe(self) -> None:
        physics.describe(self._state, self.race, self._road, self._constants, GRASS_IDS[0], self.cars)


def _road(track: Track) -> physics.Road:
    extra = len(track.zones) - track.num_zones
    return physics.Road(
        centre=track.zones.astype(np.float64),
        frames=zone_frames(track),
        half_width_m=np.pad(track.width_m / 2.0, (0, extra), mode="edge"),
        material=np.pad(track.material, (0, extra), mode="edge"),
        gate_m=np.ascontiguousarray(track.gate_m, np.float64),
    )
