"""Observation layout: one grey image and 184 floats, defined by one table and built by one function.

Agents that decide for chunks of K actions see 5 K previous actions instead of 5: 264 floats for K = 5. All other parts
keep their order.

The layout is Linesight's (github.com/Linesight-RL/linesight). The simulator, the game and recorded races all fill a
`CAR` row and call `build_floats`, so that an index has the same meaning everywhere.

Frames of reference: the world frame is x, y (up), z in metres. The car frame is lateral (positive left, the car's +x),
up (+y) and forward (+z); multiplying by the transpose of the car's rotation maps world to car frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rulka.contracts.observation_params import (
    NUM_MATERIAL_GROUPS,
    NUM_PREVIOUS_ACTIONS,
    NUM_WAYPOINTS,
    NUM_WHEELS,
    PART_SIZES,
    ObservationParams,
    PartNormalisationParams,
)
from rulka.machine.kernels import cached_njit

SCHEMA_VERSION = 2
"""Version of the observation schema. Artifacts store it, and loading rejects any other version."""

WAYPOINT_STRIDE = 20
ZONE_SPACING_M = 0.5
"""Distance between zone centres along the track; waypoints are every 20th, hence 10 m apart."""
MAX_MARGIN_M = 700.0
"""Cap of the distance to the finish."""


def _slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Returns the slice of each part of a vector by name, given the part sizes in order."""
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def float_slices(actions_per_decision: int = 1) -> dict[str, slice]:
    """Returns the slice of every part of the float vector by name, for decisions of K actions."""
    actions = PART_SIZES["previous_actions"] * actions_per_decision
    return _slices(PART_SIZES | {"previous_actions": actions})


def unseen_floats(observation: ObservationParams, length: int) -> NDArray[np.bool_]:
    """Returns [F] which floats are hidden: parts withheld, the farther waypoints and the older decisions.

    Args:
        observation: without such settings, as for other environments than races, nothing is hidden.
        length: F, of races or of any environment.
    """
    parts = float_slices(actions_per_decision_of(length))
    is_unseen = np.zeros(length, np.bool_)
    for name in observation.withheld:
        if name != "image":
            is_unseen[parts[name]] = True
    before, ahead = parts["previous_actions"], parts["waypoints"]
    num_older = NUM_PREVIOUS_ACTIONS - observation.previous_actions
    is_unseen[before.start : before.start + (before.stop - before.start) // NUM_PREVIOUS_ACTIONS * num_older] = True
    is_unseen[ahead.start + 3 * observation.waypoints : ahead.stop] = True
    return is_unseen


FLOATS = float_slices()
"""Slice of every part of the float vector by name, for decisions of one action."""

NUM_FLOATS = FLOATS["is_free_wheeling"].stop
FROM_END = {
    name: slice(part.start - NUM_FLOATS, part.stop - NUM_FLOATS or None)
    for name, part in FLOATS.items()
    if part.start >= FLOATS["previous_actions"].stop
}
"""Slices of the parts after the previous actions, counted from the end and therefore valid for any K."""


def num_floats(actions_per_decision: int) -> int:
    """Returns the length of the float vector for decisions of K actions."""
    return NUM_FLOATS + 4 * NUM_PREVIOUS_ACTIONS * (actions_per_decision - 1)


def actions_per_decision_of(length: int) -> int:
    """Returns K, the number of actions per decision, from the length of the float vector."""
    return 1 + (length - NUM_FLOATS) // (NUM_PREVIOUS_ACTIONS * 4)


CAR = _slices(
    {
        "position": 3,  # world, metres
        "rotation": 9,  # car frame to world, row-major
        "velocity": 3,  # world, m/s
        "angular_velocity": 3,  # world, rad/s
        "is_sliding": NUM_WHEELS,  # 0 or 1; wheels are front left, front right, rear right, rear left
        "has_contact": NUM_WHEELS,  # 0 or 1
        "damper": NUM_WHEELS,  # absorbed length, metres, 0.005 to 0.15
        "material": NUM_WHEELS,  # contact material id of the game, 0 to 30
        "gearbox_state": 1,  # 0 or 1; 2 at the start
        "gear": 1,
        "rpm": 1,
        "gearbox_counter": 1,  # consecutive decisions with a gearbox state other than 0
        "is_free_wheeling": 1,  # 0 or 1
    }
)
"""Slice of every part of a car row: the raw state from which the floats are computed."""

CENTRE_OF_MASS_M = (0.0, 0.32, 0.37)
"""Offset of the StadiumCar's centre of mass from its position, in the car frame. Velocities refer to this point:
recorded positions and velocities in turns and loops agree with it to some centimetres."""
NUM_CAR_FIELDS = CAR["is_free_wheeling"].stop


def centres_of_mass(rows: NDArray) -> NDArray[np.float64]:
    """Returns the centres of mass [..., 3], world metres, of `CAR` rows [..., NUM_CAR_FIELDS]."""
    rotation = rows[..., CAR["rotation"]].reshape(*rows.shape[:-1], 3, 3)
    return rows[..., CAR["position"]] + rotation @ np.array(CENTRE_OF_MASS_M)


def places_and_speeds(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns world position in metres and speed in m/s [N, 4] of `CAR` rows."""
    speed_mps = np.linalg.norm(rows[:, CAR["velocity"]], axis=1, keepdims=True)
    return np.concatenate([rows[:, CAR["position"]], speed_mps], axis=1)


ASPHALT_IDS = (0, 1, 16, 18, 19)
GRASS_IDS = (2, 20)
DIRT_IDS = (5, 6, 8, 17)
TURBO_IDS = (7, 26)


MATERIAL_GROUP = np.full(256, -1, dtype=np.int64)  # -1: a material outside all groups sets no bit
for _group, _ids in enumerate((ASPHALT_IDS, GRASS_IDS, DIRT_IDS, TURBO_IDS)):
    MATERIAL_GROUP[list(_ids)] = _group


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of raw observations to network inputs: `(image - 128) / 128` and `(floats - mean) / std`.

    Attributes:
        mean: [F] means of the floats; in races F is `num_floats`.
        std: [F] standard deviations of the floats; positive.
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    def to_json(self) -> dict[str, list[float]]:
        """Returns plain lists for an artifact's metadata."""
        return {"mean": [float(x) for x in self.mean], "std": [float(x) for x in self.std]}

    @classmethod
    def from_json(cls, data: dict[str, list[float]]) -> Normalisation:
        """Reads the output of `to_json`.

        Raises:
            ValueError: if the numbers of means and stds differ, one is not finite, or a std is not positive.
        """
        mean, std = (np.asarray(data.get(key, np.nan), dtype=np.float32) for key in ("mean", "std"))
        if mean.ndim != 1 or mean.shape != std.shape or not (np.isfinite(mean + std) & (std > 0)).all():
            message = f"normalisation needs as many finite means as positive stds, got {mean.size} and {std.size}"
            raise ValueError(message)
        return cls(mean, std)

    @property
    def actions_per_decision(self) -> int:
        """K, derived from the number of floats."""
        return actions_per_decision_of(len(self.mean))

    def for_chunks(self, actions_per_decision: int) -> Normalisation:
        """Expands a normalisation for one action per decision to K actions.

        Every previous action gets the mean and std of the newest one.
        """
        part = FLOATS["previous_actions"]

        def widened(values: NDArray[np.float32]) -> NDArray[np.float32]:
            newest = values[part.stop - 4 : part.stop]
            added = np.tile(newest, NUM_PREVIOUS_ACTIONS * (actions_per_decision - 1))
            return np.concatenate([values[: part.stop], added, values[part.stop :]])

        return Normalisation(widened(self.mean), widened(self.std))


def reference_normalisation(changes: Iterable[PartNormalisationParams] = ()) -> Normalisation:
    """Returns Linesight's means and stds, with `changes`. Waypoints' are interpolated between its first and last."""
    mean, std = np.zeros(NUM_FLOATS, np.float32), np.full(NUM_FLOATS, 0.5, np.float32)

    def put(name: str, mean_value: ArrayLike, std_value: ArrayLike) -> None:
        mean[FLOATS[name]] = np.ravel(mean_value)
        std[FLOATS[name]] = np.ravel(std_value)

    put("clock", 70.0, 70.0)
    put("previous_actions", np.tile((0.8, 0.2, 0.3, 0.3), NUM_PREVIOUS_ACTIONS), 0.5)
    put("is_sliding", 0.1, 0.5)
    put("has_contact", 0.9, 0.5)
    put("damper", 0.02, 0.5)
    put("gearbox_state", 0.3, 1.0)
    put("gear", 2.5, 2.0)
    put("rpm", 7000.0, 3000.0)
    put("gearbox_counter", 0.1, 10.0)
    put("material", 0.5, 0.5)
    put("angular_velocity", 0.0, (0.5, 1.0, 0.5))
    put("velocity", (0.0, 0.0, 55.0), (5.0, 5.0, 20.0))
    put("up", (0.0, 1.0, 0.0), 0.5)
    far = np.linspace(0.0, 1.0, NUM_WAYPOINTS)
    put(
        "waypoints",
        np.stack([0 * far, -2.0 + 13.5 * far, 197.0 * far], axis=1),
        np.stack([7.7 + 190.3 * far, 7.7 + 190.3 * far, 2.9 + 148.1 * far], axis=1),
    )
    put("margin", 700.0, 350.0)
    put("is_free_wheeling", 0.0, 1.0)
    for each in changes:
        put(each.part, each.mean, each.std)
    return Normalisation(mean, std)


_AT = np.array([FLOATS[name].start for name in FLOATS])
_CAR_AT = np.array([CAR[name].start for name in CAR])
_POSITION, _ROTATION, _VELOCITY, _SPIN, _SLIDING, _CONTACT, _DAMPER, _MATERIAL = (int(i) for i in _CAR_AT[:8])
_GEARBOX, _GEAR, _RPM, _COUNTER, _FREE = (int(i) for i in _CAR_AT[8:])
_F_PREVIOUS, _F_SLIDING, _F_CONTACT, _F_DAMPER, _F_GEARBOX, _F_GEAR, _F_RPM, _F_COUNTER = (int(i) for i in _AT[1:9])
_F_MATERIAL, _F_SPIN, _F_VELOCITY, _F_UP, _F_WAYPOINTS, _F_MARGIN, _F_FREE = (int(i) for i in _AT[9:])


@cached_njit
def build_floats(
    cars: NDArray[np.float32],
    previous_keys: NDArray[np.float32],
    zones: NDArray[np.float32],
    zone_index: NDArray[np.int64],
    margin_m: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Fills the float vectors of a batch of cars. Every float vector is built here.

    Args:
        cars: [N, NUM_CAR_FIELDS] float32, one `CAR` row per car.
        previous_keys: [N, 5 K, 4] float32 accelerate, brake, left, right of the last actions, oldest first.
        zones: [Z, 3] float32 zone centres, extended past the finish by at least 780 zones.
        zone_index: [N] int64 current zone of each car.
        margin_m: [N] float32 distance to the finish along the track, uncapped.
        out: [N, F] float32, overwritten; F as in `num_floats`. The clock (float 0) is set to 0.
    """
    num_previous = previous_keys.shape[1]
    for n in range(cars.shape[0]):
        car = cars[n]
        row = out[n]
        row[0] = 0.0
        for i in range(num_previous):
            for k in range(4):
                row[_F_PREVIOUS + 4 * i + k] = previous_keys[n, i, k]
        # Shift the row so that the remaining offsets hold despite the extra previous actions.
        row = row[4 * (num_previous - NUM_PREVIOUS_ACTIONS) :]
        for w in range(NUM_WHEELS):
            row[_F_SLIDING + w] = car[_SLIDING + w]
            row[_F_CONTACT + w] = car[_CONTACT + w]
            row[_F_DAMPER + w] = car[_DAMPER + w]
            for g in range(NUM_MATERIAL_GROUPS):
                row[_F_MATERIAL + NUM_MATERIAL_GROUPS * w + g] = 0.0
            group = MATERIAL_GROUP[int(car[_MATERIAL + w]) & 0xFF]
            if group >= 0:
                row[_F_MATERIAL + NUM_MATERIAL_GROUPS * w + group] = 1.0
        row[_F_GEARBOX] = car[_GEARBOX]
        row[_F_GEAR] = car[_GEAR]
        row[_F_RPM] = car[_RPM]
        row[_F_COUNTER] = car[_COUNTER]
        for axis in range(3):
            r0 = car[_ROTATION + axis]  # column `axis` of the rotation: a car axis in world coordinates
            r1 = car[_ROTATION + 3 + axis]
            r2 = car[_ROTATION + 6 + axis]
            row[_F_SPIN + axis] = r0 * car[_SPIN] + r1 * car[_SPIN + 1] + r2 * car[_SPIN + 2]
            row[_F_VELOCITY + axis] = r0 * car[_VELOCITY] + r1 * car[_VELOCITY + 1] + r2 * car[_VELOCITY + 2]
            row[_F_UP + axis] = r1
            for k in range(NUM_WAYPOINTS):
                zone = zones[zone_index[n] + WAYPOINT_STRIDE * k]
                row[_F_WAYPOINTS + 3 * k + axis] = (
                    r0 * (zone[0] - car[_POSITION])
                    + r1 * (zone[1] - car[_POSITION + 1])
                    + r2 * (zone[2] - car[_POSITION + 2])
                )
        row[_F_MARGIN] = min(np.float32(MAX_MARGIN_M), margin_m[n])
        row[_F_FREE] = car[_FREE]
