"""Bakes a track into flat arrays for the renderer: cross-sections, gates, neighbours and a palette.

There is one cross-section of the road per zone, plus some road before the start and past the finish. The terrain
beside the road ("wings") follows its height, so that a crest hides what is behind it.

Dimensions: S sections, C chunks of `CHUNK_SECTIONS` sections, G gates including the start, I inks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import minimum_filter1d

from rulka.contracts.observation import ASPHALT_IDS, DIRT_IDS, GRASS_IDS, TURBO_IDS, ZONE_SPACING_M
from rulka.simulator.palette import GREY_INK, INK
from rulka.tracks.progress import zone_frames
from rulka.tracks.track import DROP, NO_GROUND, Track

Floats = NDArray[np.float64]

CHUNK_SECTIONS = 16
"""Sections per chunk (8 m), the unit of road that is far along the line but near in space."""
LIGHT, SURFACE, EDGE, NUM_COLUMNS = 9, 10, 11, 12
"""Last columns of a section."""
SECTION_STEPS = (4, 8, 16, 32, 64, 128)
"""Possible lengths of a drawn strip, in sections."""
GATE_START, GATE_CHECKPOINT, GATE_FINISH = 0, 1, 2
BEFORE_SECTIONS = 96
"""Road drawn before the start: 48 m."""
AFTER_SECTIONS = 256
"""Road drawn past the finish: 128 m."""
VIEW_M = 320.0
"""View distance along the line, ahead of and behind the car."""
MAX_NEIGHBOURS = 12
"""Runs of nearby chunks kept for each chunk, nearest first."""
NEIGHBOUR_M = 200.0
WING_M = 60.0
"""Largest width of the terrain beside the road."""
WING_RISE_M = 3.0
"""Terrain lies in the plane of the road, as in the physics; beside a banked road it ends after this rise."""
SMOOTH_SECTIONS = 4
"""Axes are averaged over this many sections each way."""
PROBE_STEP = 4
"""Stride in sections of the search for other road beside the road."""
CHANGE_M = 2.0
"""Deviation assigned to a strip in which the surface or edge changes."""
WING_WEIGHT = 0.1
"""Weight of the terrain's deviation relative to the road's."""
FLAT = np.array([1.0, 0.0, 1.0])


class Scene(NamedTuple):
    """A track in the form that the renderer takes.

    Attributes:
        sections: [S, NUM_COLUMNS] float32: centre (3), unit vector to the left edge (3), half width, width of the
            terrain on the left and on the right, light (a factor around 1 that grows with the slope towards the sun),
            first ink of the road surface, edge kind (`rulka.tracks.track`).
        deviation: [len(SECTION_STEPS), S / 4] float32 largest distance in metres between the road and a straight strip
            of that length, for strips that begin at a multiple of four sections.
        neighbours: [C, MAX_NEIGHBOURS, 2] int32 first and last section of runs of road near in space, nearest first;
            -1 for none.
        gates: [G, 2] int32 section and kind (0 start, 1 checkpoint, 2 finish).
        ink: [I] float32 brightness of every ink, 0 to 255, indexed by `palette.INK`.
        num_before: sections before zone 0.
        view_m: view distance along the line.
    """

    sections: NDArray[np.float32]
    deviation: NDArray[np.float32]
    neighbours: NDArray[np.int32]
    gates: NDArray[np.int32]
    ink: NDArray[np.float32]
    num_before: int
    view_m: float

    @property
    def num_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(part.nbytes for part in self if isinstance(part, np.ndarray))


def bake_scene(track: Track) -> Scene:
    """Prepares a track for rendering; deterministic, and independent of camera and image size."""
    centre = _extended(track)
    tangent, left, normal = (_padded_frames(track, k) for k in range(3))
    half = _padded(track.width_m) / 2.0
    outward = _unit(left * FLAT)
    sections = np.empty((len(centre), NUM_COLUMNS), np.float32)
    sections[:, 0:3], sections[:, 3:6], sections[:, 6] = centre, left, half
    sections[:, 7:9] = _wing_reach(centre, tangent, outward, half) * _level_share(left, normal)[:, None]
    sections[:, LIGHT], sections[:, SURFACE] = _light(normal), _surface_ink(_padded(track.material))
    sections[:, EDGE] = _padded(track.edge)
    sections[sections[:, EDGE] == DROP, 7:9] = 0.0
    sections[_padded(track.material) == NO_GROUND, 6:9] = 0.0  # a gap shows nothing
    return Scene(
        sections=sections,
        deviation=_deviation(sections),
        neighbours=_neighbours(centre),
        gates=_gates(track),
        ink=GREY_INK.copy(),
        num_before=BEFORE_SECTIONS,
        view_m=VIEW_M,
    )


def _extended(track: Track) -> Floats:
    """Returns the zone centres, extended before the start (straight) and past the finish."""
    first = track.centre_m[1] - track.centre_m[0]
    before = track.centre_m[0] - np.arange(BEFORE_SECTIONS, 0, -1)[:, None] * first
    return np.concatenate([before, track.zones[: track.num_zones + AFTER_SECTIONS].astype(np.float64)])


def _padded(values: NDArray) -> NDArray:
    return np.pad(values, (BEFORE_SECTIONS, AFTER_SECTIONS), mode="edge")


def _padded_frames(track: Track, axis: int) -> Floats:
    """Returns one axis of the road frames that the physics uses, smoothed, since driven paths are noisy."""
    frames = zone_frames(track)[: track.num_zones + AFTER_SECTIONS, 3 * axis : 3 * axis + 3]
    padded = np.pad(frames, ((BEFORE_SECTIONS + SMOOTH_SECTIONS, SMOOTH_SECTIONS), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * SMOOTH_SECTIONS + 1, axis=0)
    return _unit(windows.mean(axis=2))


def _level_share(left: Floats, normal: Floats) -> Floats:
    """Returns [S] the factor on the terrain's width: 1 on level road, less on banks, 0 on walls and in loops."""
    upright = np.clip((normal[:, 1] - 0.4) / 0.4, 0.0, 1.0)
    return upright * np.minimum(1.0, WING_RISE_M / np.maximum(WING_M * np.abs(left[:, 1]), 1e-9))


def _deviation(sections: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns [L, S / 4] the deviation of straight strips, infinite if they would extend past the track."""
    table = np.full((len(SECTION_STEPS), len(sections) // SECTION_STEPS[0] + 1), np.inf, np.float32)
    centre, left = sections[:, 0:3].astype(np.float64), sections[:, 3:6].astype(np.float64)
    offset = np.stack(
        [sections[:, 6], -sections[:, 6], sections[:, 6] + sections[:, 7], -sections[:, 6] - sections[:, 8]]
    )
    lines = centre[None] + left[None] * offset[:, :, None]
    kind = sections[:, SURFACE:]
    for level, step in enumerate(SECTION_STEPS):
        first = np.arange(0, len(sections) - step, step)
        inner = first[:, None] + np.arange(step + 1)
        share = np.linspace(0.0, 1.0, step + 1)[None, None, :, None]
        straight = lines[:, first, None] * (1.0 - share) + lines[:, first + step, None] * share
        strays = np.linalg.norm(lines[:, inner] - straight, axis=3).max(axis=2)
        worst = np.maximum(strays[:2].max(axis=0), WING_WEIGHT * strays[2:].max(axis=0))
        is_changed = (kind[inner[:, :-1]] != kind[first][:, None]).any(axis=(1, 2))
        table[level, first // SECTION_STEPS[0]] = np.where(is_changed, np.maximum(worst, CHANGE_M), worst)
    return table


def _light(normal: Floats) -> Floats:
    """Returns light from a sun above and ahead (+z), clipped to 0.8 to 1.2; 1 on level ground."""
    sun = _unit(np.array([[0.35, 0.8, 0.5]]))[0]
    return np.clip(1.0 + 0.45 * ((normal * sun).sum(axis=1) - sun[1]), 0.8, 1.2)


def _wing_reach(centre: Floats, tangent: Floats, left: Floats, half: Floats) -> Floats:
    """Returns [S, 2] the width of the terrain left and right: narrow inside curves and beside other road."""
    turn = (np.gradient(tangent, axis=0) * left).sum(axis=1) / ZONE_SPACING_M
    radius = 1.0 / np.maximum(np.abs(turn), 1e-4)
    inner = np.maximum(0.8 * radius - half, 0.0)
    reach = np.full((len(centre), 2), WING_M)
    reach[turn > 0, 0] = np.minimum(WING_M, inner[turn > 0])
    reach[turn < 0, 1] = np.minimum(WING_M, inner[turn < 0])
    return _eroded(np.minimum(reach, _room_beside(centre, tangent, left, half)))


def _room_beside(centre: Floats, tangent: Floats, left: Floats, half: Floats) -> Floats:
    """Returns [S, 2] half the gap to other road on the left and on the right, 0 at crossings."""
    room = np.full((len(centre), 2), np.inf)
    probe = np.arange(0, len(centre), PROBE_STEP)
    for i in probe:
        offset = centre[probe] - centre[i]
        beside, along = (offset * left[i]).sum(axis=1), (offset * _unit(tangent[i] * FLAT)).sum(axis=1)
        away = np.sqrt(beside * beside + along * along)
        is_far_along = np.abs(probe - i) * ZONE_SPACING_M > np.maximum(40.0, 1.8 * away)
        is_near = is_far_along & (np.abs(along) < 6.0) & (np.abs(beside) < 2 * WING_M + 40.0)
        gap = np.maximum(np.abs(beside) - half[i] - half[probe], 0.0) / 2.0
        for side, sign in enumerate((1.0, -1.0)):
            chosen = is_near & (sign * beside > -half[i])
            if chosen.any():
                room[i : i + PROBE_STEP, side] = gap[chosen].min()
    return room


def _eroded(reach: Floats) -> Floats:
    """Extends narrow places by 8 m each way along the line and smooths the transitions."""
    span = 16
    narrowest = minimum_filter1d(reach, 2 * span + 1, axis=0, mode="nearest")
    narrow = np.pad(narrowest, ((span, span), (0, 0)), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(narrow, 2 * span + 1, axis=0).mean(axis=2)


def _surface_ink(materials: NDArray[np.uint8]) -> NDArray[np.int32]:
    ink = np.full(256, INK["other_road"], np.int32)
    for ids, name in ((ASPHALT_IDS, "asphalt"), (DIRT_IDS, "dirt"), (GRASS_IDS, "grass_road"), (TURBO_IDS, "turbo")):
        ink[list(ids)] = INK[name]
    return ink[materials]


def _gates(track: Track) -> NDArray[np.int32]:
    zones = np.clip(np.rint(track.gate_m / ZONE_SPACING_M), 0, track.num_zones - 1).astype(np.int32)
    kinds = np.full(len(zones), GATE_CHECKPOINT, np.int32)
    kinds[-1] = GATE_FINISH
    start = np.array([[BEFORE_SECTIONS, GATE_START]], np.int32)
    return np.concatenate([start, np.stack([zones + BEFORE_SECTIONS, kinds], axis=1)]).astype(np.int32)


def _neighbours(centre: Floats) -> NDArray[np.int32]:
    """Finds for each chunk the runs of road that are out of view along the line but near in space."""
    first = np.arange(0, len(centre) - CHUNK_SECTIONS, CHUNK_SECTIONS)
    middle = centre[first + CHUNK_SECTIONS // 2]
    table = np.full((len(centre) // CHUNK_SECTIONS + 1, MAX_NEIGHBOURS, 2), -1, np.int32)
    for chunk, here in enumerate(middle):
        distance = np.linalg.norm(middle - here, axis=1)
        is_out_of_view = np.abs(first - first[chunk]) * ZONE_SPACING_M > VIEW_M - CHUNK_SECTIONS * ZONE_SPACING_M
        chosen = is_out_of_view & (distance < NEIGHBOUR_M)
        changes = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
        runs = sorted(changes.reshape(-1, 2).tolist(), key=lambda run: distance[run[0] : run[1]].min())
        for k, (begin, end) in enumerate(runs[:MAX_NEIGHBOURS]):
            table[chunk, k] = first[begin], first[end - 1] + CHUNK_SECTIONS
    return table


def _unit(vectors: Floats) -> Floats:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
