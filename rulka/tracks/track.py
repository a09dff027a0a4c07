"""A track: a 3D centreline with width, banking, surface and gates, and its file format.

File: an `.npz`, compressed or not, of plain arrays (no pickle): a `schema` number and exactly the fields of `Track`.
Positions are world metres, x, y (up), z.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import NUM_WAYPOINTS, WAYPOINT_STRIDE, ZONE_SPACING_M
from rulka.contracts.stored import read_arrays
from rulka.machine.errors import UserError
from rulka.stages.outputs import new_file
from rulka.tracks.geometry import problem_in_space

SCHEMA_VERSION = 2
MIN_WIDTH_M = 2.0
MIN_STEP_M = 1e-6
MAX_LENGTH_M, MAX_DRAWN_LENGTH_M, MAX_COORDINATE_M, MAX_WIDTH_M = 200_000.0, 20_000.0, 100_000.0, 1000.0
"""Limits of tracks, so that a damaged or forged file is refused at once. Whether a drawn track overlaps itself takes
time with the square of its length, a second for the longest."""
MAX_TEXT = 1000
"""Most characters of a UID, a name or a source."""
MAX_UNPACKED_BYTES = 2**25
"""Limit of a file's arrays: 1.5 times those of the longest track."""
VERGE, WALL, DROP = 0, 1, 2
"""Kinds of ground beyond the road's edges: drivable grass, a wall that cars bounce off, or air."""
EDGE_KINDS = (VERGE, WALL, DROP)
NO_GROUND = 255
"""Material of a gap: no ground, since all recorded cars flew there."""
DRIVEN_SOURCE = "driven paths"
"""Prefix of `Track.source` for tracks made from recordings. Their road follows the drives and its width is a guess. A
map may pass over the same ground twice, so these tracks, and no others, may overlap themselves."""
NUM_EXTRA_ZONES = NUM_WAYPOINTS * WAYPOINT_STRIDE
"""Zones extrapolated straight past the finish, so that every car on the track has all its waypoints."""


class TrackError(UserError):
    """An invalid track; the message names the fault."""


@dataclass(frozen=True)
class Track:
    """A point-to-point track: start gate at the first zone, finish gate at the last.

    Attributes:
        uid: unique name, a map UID or derived from the generator's seed.
        name: display name.
        centre_m: [Z, 3] float64 zone centres, `ZONE_SPACING_M` apart along the line.
        width_m: [Z] float64 full road width at each zone.
        bank_rad: [Z] float64 roll of the road about its direction, positive lifts the left edge.
        material: [Z] uint8 contact material id of the road surface.
        edge: [Z] uint8 kind of ground beyond both edges of the road: `VERGE`, `WALL` or `DROP`.
        gate_m: [G] float64 distance along the line of each checkpoint; the finish, last, is the track's length.
        source: one-line origin, for people; begins with `DRIVEN_SOURCE` for a track from recordings.
        medals_ms: author, gold, silver and bronze time of its map in the game; empty if there are none or unknown.

    Raises:
        TrackError: if the track is invalid; only tracks from recordings may overlap themselves.
    """

    uid: str
    name: str
    centre_m: NDArray[np.float64]
    width_m: NDArray[np.float64]
    bank_rad: NDArray[np.float64]
    material: NDArray[np.uint8]
    edge: NDArray[np.uint8]
    gate_m: NDArray[np.float64]
    source: str
    medals_ms: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Track({self.uid!r}, {self.length_m:.0f} m)"

    def __post_init__(self) -> None:
        problem = next(_problems(self), None)
        if problem is not None:
            raise TrackError(f"track {self.name!r:.80}: {problem}")

    @property
    def num_zones(self) -> int:
        """Number of zone centres from start to finish."""
        return len(self.centre_m)

    @property
    def length_m(self) -> float:
        """Distance along the line from start to finish, in metres."""
        return (self.num_zones - 1) * ZONE_SPACING_M

    @property
    def is_driven(self) -> bool:
        """True if made from recordings, not drawn or generated."""
        return self.source.startswith(DRIVEN_SOURCE)

    @property
    def exact_zones(self) -> NDArray[np.float64]:
        """[Z + NUM_EXTRA_ZONES, 3] zone centres, extrapolated straight past the finish."""
        direction = self.centre_m[-1] - self.centre_m[-2]
        beyond = self.centre_m[-1] + np.arange(1, NUM_EXTRA_ZONES + 1)[:, None] * direction
        return np.concatenate([self.centre_m, beyond])

    @cached_property
    def zones(self) -> NDArray[np.float32]:
        """`exact_zones` in float32, for observations."""
        return self.exact_zones.astype(np.float32)

    def arrays(self) -> dict[str, NDArray]:
        """Returns the content of its file: all fields as plain arrays, and the `schema` number."""
        fields = {name: np.asarray(getattr(self, name)) for name in Track.__dataclass_fields__}
        return {"schema": np.array(SCHEMA_VERSION, np.int64), **fields}

    def save(self, path: Path) -> None:
        """Writes the track to an `.npz` file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as beside:
            np.savez_compressed(beside, allow_pickle=False, **self.arrays())


ARRAYS = {
    "schema": ("i8", 0),
    "centre_m": ("f8", 2),
    **dict.fromkeys(("width_m", "bank_rad", "gate_m"), ("f8", 1)),
    **dict.fromkeys(("material", "edge"), ("u1", 1)),
}
"""Type and number of dimensions of the fields that are arrays."""


def load_track(path: Path) -> Track:
    """Reads a track file.

    Raises:
        TrackError: if the file is missing, not a track file, larger than any track, of another schema, or not a valid
            track.
    """
    hint = "Tracks are the .npz files of data/races/tracks, made of recordings; `rulka track list` shows others."
    fields = read_arrays(path, "track file", ARRAYS, MAX_UNPACKED_BYTES, error=TrackError, hint=hint)
    return track_of_arrays(fields, path)


def track_of_arrays(fields: Mapping[str, Any], path: Path) -> Track:
    """Builds a track from its arrays.

    Args:
        fields: result of `Track.arrays`, as read from a file.
        path: of the file, for messages.

    Raises:
        TrackError: if an array is missing, unknown or of another type or schema, or the track is not valid.
    """
    fields = dict(fields)
    schema = int(fields.pop("schema", -1))
    if schema != SCHEMA_VERSION:
        raise TrackError(f"{path} has track schema {schema}, this version reads {SCHEMA_VERSION}; make the track again")
    medals_ms = tuple(fields.pop("medals_ms", np.empty(0, np.int64)).ravel().tolist())  # missing in older files
    missing = set(Track.__dataclass_fields__) - {"medals_ms"} ^ set(fields)
    if missing:
        raise TrackError(f"{path} does not hold the fields of a track: {sorted(missing)}")
    texts = {name: str(fields.pop(name)) for name in ("uid", "name", "source")}
    return Track(**texts, **fields, medals_ms=medals_ms)


def geometry_hash(track: Track) -> str:
    """Returns a hash of all properties of a track that affect a car."""
    digest = hashlib.sha256()
    for name in ("centre_m", "width_m", "bank_rad", "material", "edge", "gate_m"):
        thousandths = np.round(np.asarray(getattr(track, name), np.float64) * 1000.0)  # not the last bits of recordings
        digest.update(thousandths.astype(np.int64).tobytes())
    return digest.hexdigest()[:16]


def _problems(track: Track) -> Iterator[str]:
    """Yields what is wrong with a track; a check may need those before it."""
    if track.centre_m.ndim != 2 or track.centre_m.shape[1] != 3 or len(track.centre_m) < 2:
        yield f"the centreline needs at least two points of x, y, z, got shape {track.centre_m.shape}"
    for name in ("width_m", "bank_rad", "material", "edge"):
        if getattr(track, name).shape != (track.num_zones,):
            yield f"{name} needs one value for each of {track.num_zones} zones"
    if max(map(len, (track.uid, track.name, track.source))) > MAX_TEXT:
        yield f"uid, name and source have at most {MAX_TEXT:,} characters"
    yield from _problems_of_numbers(track)
    yield from _problems_of_gates(track)
    problem = None if track.is_driven else problem_in_space(track.centre_m, track.width_m, track.bank_rad)
    if problem:
        yield problem


def _problems_of_numbers(track: Track) -> Iterator[str]:
    limits = {"centre_m": MAX_COORDINATE_M, "width_m": MAX_WIDTH_M, "bank_rad": np.pi, "gate_m": MAX_LENGTH_M}
    for name, limit in limits.items():
        if not (np.abs(getattr(track, name)) <= limit).all():  # also True for NaN
            yield f"{name} holds a value that is not finite, or beyond {limit:,.6g}"
    longest_m = MAX_LENGTH_M if track.is_driven else MAX_DRAWN_LENGTH_M
    if track.length_m > longest_m:
        yield f"it is {track.length_m:,.0f} m long, {longest_m:,.0f} m is the most"
    steps = np.linalg.norm(np.diff(track.centre_m, axis=0), axis=1)
    if (steps < MIN_STEP_M).any():
        yield f"zones {steps.argmin()} and {steps.argmin() + 1} are in one place"
    if (track.width_m < MIN_WIDTH_M).any():
        yield f"the road is {track.width_m.min():.2f} m wide somewhere, {MIN_WIDTH_M} m is the least"
    if not np.isin(track.edge, EDGE_KINDS).all():
        yield f"edge holds {sorted(set(track.edge.tolist()) - set(EDGE_KINDS))}, known are {EDGE_KINDS}"
    if track.medals_ms and not are_medals(track.medals_ms):
        yield f"medals_ms are four times in ms, author to bronze, got {track.medals_ms!r:.80}"


def are_medals(times_ms: Sequence[object]) -> TypeGuard[tuple[int, int, int, int]]:
    """Returns True if the values are the author, gold, silver and bronze time of a race.

    Maps of other modes store points or respawns instead.
    """
    times = [each for each in times_ms if isinstance(each, int) and each > 0]
    return len(times_ms) == 4 and times == sorted(times) and len(times) == 4


def _problems_of_gates(track: Track) -> Iterator[str]:
    if len(track.gate_m) == 0 or (np.diff(track.gate_m) <= 0).any() or track.gate_m[0] <= 0:
        yield "gates must lie after the start, one after another, finish last"
    if abs(track.gate_m[-1] - track.length_m) > ZONE_SPACING_M:
        yield f"the last gate is at {track.gate_m[-1]:.1f} m, not at the finish ({track.length_m:.1f} m)"
