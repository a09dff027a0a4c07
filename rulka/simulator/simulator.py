"""A batch of cars on one track: reset, drive, observe, save and restore. Bit-for-bit deterministic.

A car's path depends only on its own start and inputs, not on the batch size. A car that has finished or left the track
stays where it is, and its clock stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rulka.contracts.actions import FORWARD, TICK_MS, ActionTable
from rulka.contracts.observation import NUM_CAR_FIELDS, NUM_PREVIOUS_ACTIONS, build_floats
from rulka.contracts.section import MOST_START_MPS
from rulka.machine.errors import UserError
from rulka.simulator import car as columns
from rulka.simulator import physics
from rulka.simulator.constants import constant_array, place_on_road, road_array, table_array
from rulka.simulator.params import PhysicsParams, SimulatorParams
from rulka.tracks.track import Track


class SimulatorError(UserError):
    """Invalid inputs to the simulator; the message names the fault."""


class Simulator:
    """Drives a batch of cars.

    Attributes:
        track: the shared track.
        table: the discrete action table.
        num_cars: N.
        view: all arrays below, in the form that kernels take.
        cars: [N, NUM_CAR_FIELDS] float32 `CAR` rows. Like all arrays below, updated by every reset, step and restore.
        zone_index: [N] int64 zone that each car passed last.
        along_m: [N] float64 metres along the centreline.
        lateral_m: [N] float64 metres left of it.
        time_ms: [N] int64 milliseconds since the start, in whole ticks.
        gate_index: [N] int64 number of gates passed.
        gate_time_ms: [N, G] int64 time at each passed gate, interpolated to the millisecond; 0 for other gates.
        is_finished: [N] the car has passed the last gate.
        is_off_track: [N] the car is too far beyond the edge of the road, too far from its surface, or tipped over.
        along_before_m: [N] float64 metres along the centreline before the last decision.
        time_before_ms: [N] float64 milliseconds since the start before the last decision.
        previous_keys: [N, 5 K, 4] float32 keys of the last actions, K per decision taken, oldest first.
    """

    def __init__(
        self,
        track: Track,
        num_cars: int,
        simulator: SimulatorParams,
        table: ActionTable,
        variants: Sequence[PhysicsParams] = (),
    ) -> None:
        """Creates a batch of cars at the start; `variants` are alternative physics for `set_variant`."""
        if num_cars < 1:
            raise SimulatorError(f"a simulator needs at least one car, got {num_cars}")
        self.track, self.table, self.num_cars = track, table, num_cars
        self._gate_m = np.ascontiguousarray(track.gate_m, np.float64)
        physics_of = (simulator.physics, *variants)
        self._world = physics.World(
            road=road_array(track),
            gate_m=self._gate_m,
            c=np.stack([constant_array(params, TICK_MS / 1000.0) for params in physics_of]),
            tables=np.stack([table_array(params) for params in physics_of]),
            length_m=float(track.length_m),
            scratch=np.zeros((2, columns.NUM_SCRATCH)),
        )
        self._commands = np.concatenate([table.analog(), table.keys()], axis=1)
        self._chosen, self._ticks = np.zeros((num_cars, table.actions_per_decision), np.int64), table.held_ticks
        self._own_commands = np.zeros((self._chosen.size, physics.NUM_COMMANDS), np.float32)
        self._own_chosen = np.arange(self._chosen.size).reshape(self._chosen.shape)
        self._decisions = self._chosen if table.actions_per_decision > 1 else self._chosen[:, 0]
        self._everyone = np.arange(num_cars)
        self._state = np.zeros((num_cars, columns.NUM_STATE + len(self._gate_m)))
        self.view = physics.View(
            rows=np.zeros((num_cars, NUM_CAR_FIELDS), np.float32),
            previous_keys=np.zeros((num_cars, NUM_PREVIOUS_ACTIONS * table.actions_per_decision, 4), np.float32),
            progress=np.zeros((physics.NUM_PROGRESS, num_cars)),
            margin_m=np.zeros(num_cars, np.float32),
            timing=np.zeros((physics.NUM_TIMING + len(self._gate_m), num_cars), np.int64),
            ended=np.zeros((physics.NUM_ENDS, num_cars), np.bool_),
        )
        self.cars, self.previous_keys = self.view.rows, self.view.previous_keys
        self.along_m, self.lateral_m, self.along_before_m, self.time_before_ms = self.view.progress
        self.zone_index, self.time_ms, self.gate_index = self.view.timing[: physics.NUM_TIMING]
        self.gate_time_ms = self.view.timing[physics.NUM_TIMING :].T
        self.is_finished, self.is_off_track = self.view.ended
        self.reset(np.ones(num_cars, np.bool_))

    def reset(
        self,
        which: NDArray[np.bool_],
        along_m: ArrayLike = 0.0,
        lateral_m: ArrayLike = 0.0,
        heading_rad: ArrayLike = 0.0,
        speed_mps: ArrayLike = 0.0,
    ) -> None:
        """Places selected cars on the road with springs at rest and clocks at 0; gates behind them count as passed.

        Args:
            which: [N] mask of cars to place; the others are unchanged.
            along_m: metres from the start, a scalar or [N], within the track.
            lateral_m: metres left of the centreline.
            heading_rad: heading relative to the road, positive left.
            speed_mps: forward speed, from 0 to `MOST_START_MPS`.

        Raises:
            SimulatorError: if a position is off the track, a number is not finite or a speed is out of range.
        """
        cars = np.flatnonzero(which)
        places = np.empty((4, len(cars)))
        for row, value in zip(places, (along_m, lateral_m, heading_rad, speed_mps), strict=True):
            row[:] = np.broadcast_to(value, (self.num_cars,))[cars]
        wrong_m = places[0][~((places[0] >= 0) & (places[0] < self.track.length_m))]
        if len(wrong_m) or not np.isfinite(places).all():
            got = f"along_m {wrong_m[0]:g}" if len(wrong_m) else "a number that is not finite"
            message = f"cars are placed from 0 to less than {self.track.length_m:g} m along the track, got {got}"
            raise SimulatorError(message)
        if (places[3] < 0).any() or (places[3] > MOST_START_MPS).any():
            raise SimulatorError(f"cars are placed with a forward speed of 0 to {MOST_START_MPS:g} m/s")
        self._state[cars] = place_on_road(self._world.road, self._world.c[0], self._gate_m, *places)
        self.previous_keys[cars] = self._commands[FORWARD, physics.NUM_CONTROLS :]
        self._update_view(cars)

    def set_variant(self, which: NDArray[np.bool_], variant: ArrayLike) -> None:
        """Switches selected cars to other physics until their next reset.

        Args:
            which: [N] mask of cars to change; the others are unchanged.
            variant: index, a scalar or [N]: 0 for the simulator's default physics, k for the k-th of its `variants`.

        Raises:
            SimulatorError: if a variant does not exist.
        """
        wide = np.broadcast_to(np.asarray(variant), (self.num_cars,))[which]
        num_known = len(self._world.c)
        if not ((wide >= 0) & (wide < num_known)).all():
            raise SimulatorError(f"variants of the physics are numbers from 0 to {num_known - 1}, got {wide!r:.120}")
        self._state[which, columns.VARIANT] = wide

    def step(self, actions: ArrayLike) -> None:
        """Drives every car for one decision.

        Args:
            actions: [N] indices into the action table, or [N, K] if the table's decisions are chunks of K actions.

        Raises:
            SimulatorError: if an action is not in the table; no car moves then.
        """
        given, decisions = _as_array(actions), self._decisions
        is_right = given.shape == decisions.shape and given.dtype.kind in "iu"
        if is_right:
            decisions[:] = given
        if not is_right or self._drive(self._chosen, self._commands) >= 0:
            shape, last = " x ".join(map(str, decisions.shape)), self.table.num_actions - 1
            plural = "" if decisions.size == 1 else "s"
            raise SimulatorError(f"actions must be {shape} whole number{plural} from 0 to {last}, got {actions!r:.200}")

    def step_controls(self, controls: ArrayLike) -> None:
        """Drives every car for one decision with analog controls, constant for each of its actions.

        Args:
            controls: [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1]; [N, K, 3] if the table's
                decisions are chunks of K actions.

        Raises:
            SimulatorError: if a control is out of range or NaN; no car moves then.
        """
        given, shape = _as_array(controls), (*self._decisions.shape, physics.NUM_CONTROLS)
        rows = given.reshape(-1, physics.NUM_CONTROLS) if given.shape == shape and given.dtype.kind in "fiu" else None
        if rows is None or physics.command_cars(np.ascontiguousarray(rows, np.float32), self._own_commands) >= 0:
            wanted = f"{' x '.join(map(str, shape[:-1]))} rows of steer in [-1, 1], gas and brake in [0, 1]"
            raise SimulatorError(f"controls must be {wanted}, got {controls!r:.200}")
        self._drive(self._own_chosen, self._own_commands)

    def floats(self, out: NDArray[np.float32]) -> None:
        """Writes the float observations of all cars into `out` [N, F]."""
        build_floats(self.cars, self.previous_keys, self.track.zones, self.zone_index, self.view.margin_m, out)

    def save(self) -> NDArray[np.float64]:
        """Returns [N, K] a copy of each car's full state."""
        keys = self.previous_keys.reshape(self.num_cars, -1).astype(np.float64)
        return np.concatenate([self._state, keys], axis=1)

    def restore(self, saved: NDArray[np.float64], which: NDArray[np.bool_] | None = None) -> None:
        """Restores cars to states from `save`, bit for bit.

        Args:
            saved: [N, K] rows from `save`, of this or another simulator of the same track; row k goes to car k.
            which: [N] mask of cars to restore; all by default.

        Raises:
            SimulatorError: if the rows do not fit this track or batch, or name unknown variants.
        """
        width = self._state.shape[1]
        if saved.shape != (self.num_cars, width + self.previous_keys[0].size):
            raise SimulatorError(
                f"saved states of shape {saved.shape} do not fit {self.num_cars} cars on {self.track.name!r} with "
                f"decisions of {self.table.actions_per_decision} actions"
            )
        cars = self._everyone if which is None else np.flatnonzero(which)
        variant, num_known = saved[cars, columns.VARIANT], len(self._world.c)
        if not ((variant >= 0) & (variant < num_known)).all():  # kernels do not check this index
            raise SimulatorError(f"saved states have physics beyond the {num_known} that this simulator was made with")
        self.set_states(cars, saved[cars])

    def set_states(self, cars: NDArray[np.int64], saved: NDArray[np.float64]) -> None:
        """Sets cars [M] to states [M, K]: rows from `save` of this simulator or another of the same track."""
        width = self._state.shape[1]
        self._state[cars] = saved[:, :width]
        self.previous_keys[cars] = saved[:, width:].reshape(-1, *self.previous_keys.shape[1:])
        self._update_view(cars)

    def _drive(self, chosen: NDArray[np.int64], commands: NDArray[np.float32]) -> int:
        """Drives one decision; returns the first car whose choice is not a row of `commands`, or -1."""
        ticks, repeats = self._ticks, self.table.repeats
        return physics.advance(self._state, self._everyone, chosen, commands, ticks, repeats, *self._world, *self.view)

    def _update_view(self, cars: NDArray[np.int64]) -> None:
        """Updates the view of cars [M]."""
        no_choice = self._everyone[:0, None]
        physics.advance(self._state, cars, no_choice, self._own_commands, self._ticks, 0, *self._world, *self.view)


def _as_array(values: ArrayLike) -> NDArray:
    """Returns an array; for ragged lists an empty one, which fails every shape check."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.empty(0)
