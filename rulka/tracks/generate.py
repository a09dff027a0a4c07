"""Generates tracks from a seed and a difficulty: a line of straights and shapes over hills, from start to finish.

Equal seeds give equal tracks. A layout that comes too close to itself is rejected and the seed's next one is tried.

A jump is a ramp followed by a descending landing. A car takes off if speed squared over the radius of the crest exceeds
gravity: on a ramp of 0.16, at about 31 m/s. Dimensions: Z zones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.tracks.difficulty import TURBO, Arc, Difficulty, difficulty_named
from rulka.tracks.geometry import problem_in_space
from rulka.tracks.track import Track, TrackError
from rulka.tracks.trigonometry import sin_cos

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

MAX_TRIES = 200
BRIDGE_CLEARANCE_M = 7.0
"""Minimum height at which one part of a line may cross above another."""
Line = tuple[NDArray[np.float64], NDArray[np.bool_]]
"""[Z, 3] centre and [Z] True on bridges."""

START_STRAIGHT_M = 50.0
FINISH_STRAIGHT_M = 30.0
TRANSITION_M = 12.0
"""Length over which the curvature of a bend builds up."""
JUMP_M = 130.0
"""Length of a jump's straight."""

WAVES = ((310.0, 0.45), (170.0, 0.6), (95.0, 0.6))
"""Wavelength in metres and weight of the waves that form the hills."""
FLAT_START_M, FLAT_FINISH_M, FLAT_BLEND_M = 20.0, 10.0, 30.0
"""The road is level this far from start and finish; the full slope is reached `FLAT_BLEND_M` further on."""
JUMP_PROFILE = ((0.0, 0.0), (15.0, 0.0), (27.0, 1.0), (32.0, 1.0), (44.0, -0.9), (88.0, -0.9), (115.0, 0.0))
"""Metres into a jump, and the slope there relative to the ramp's."""
BRIDGE_TOP_M, BRIDGE_RAMP_M = 24.0, 95.0
"""Half the length of a bridge's level top, centred on the crossing, and the length of each ramp."""
BRIDGE_HEIGHT_M = 9.0
"""Minimum height of the upper road above the lower at a crossing."""
MIN_BRIDGE_M = 1.0
"""A road raised by more than this is on a bridge."""
CROSSING_STRIDE = 16
"""Crossings are searched between segments of this many zones."""

WIDTH_WAVE_M = (90.0, 220.0)
"""Range of wavelengths of the width's variation."""
BANK_EASE_M = 40.0
"""Length over which a bank builds up."""
FULL_BANK_RADIUS_M = 40.0
"""Bends of this radius or less have the full bank, wider ones proportionally less."""
PATCH_M = (30.0, 90.0)
EDGE_M = (80.0, 240.0)
"""Ranges of the length of a patch, and of a stretch with one kind of edge."""
TURBO_M = 8.0
STRAIGHT_PER_M = 1e-3
"""Turbo pads lie only where the curvature is below this."""


def generate_track(
    seed: int,
    length_m: float,
    width_m: float,
    max_slope: float,
    gate_spacing_m: float,
    difficulty: str | Difficulty = "medium",
) -> Track:
    """Generates a point-to-point track.

    Args:
        seed: any number from 0.
        length_m: distance from start to finish, at least 150 m.
        width_m: road width; difficulties with a `width_change` vary it.
        max_slope: steepest rise or fall, metres per metre driven, except on jumps and bridges; below 0.5.
        gate_spacing_m: approximate distance between checkpoints.
        difficulty: a `Difficulty` or the name of one in `rulka.tracks.difficulty`; the pipeline uses "medium".

    Raises:
        TrackError: if every layout of this seed overlaps itself.
        UserError: if the difficulty is unknown.
    """
    style = difficulty_named(difficulty, seed) if isinstance(difficulty, str) else difficulty
    zones = round(length_m / ZONE_SPACING_M) + 1
    for attempt in range(MAX_TRIES):
        rng = np.random.default_rng([seed, attempt])
        layout = draw_layout(rng, zones, style)
        line = _laid(layout, draw_slope(rng, layout, max_slope, style), width_m, style)
        if line is None:
            continue
        centre, is_bridge = line
        material, edge = draw_material(rng, layout, style), draw_edges(rng, is_bridge, style)
        width, bank = draw_width(rng, zones, width_m, style), bank_of(layout, style)
        if problem_in_space(centre, width, bank) is None:
            break
    else:
        raise TrackError(f"no track of seed {seed} and {length_m:.0f} m keeps clear of itself; take another seed")
    finish_m = (zones - 1) * ZONE_SPACING_M
    num_gates = max(1, round(finish_m / gate_spacing_m))
    gate_m = np.linspace(0.0, finish_m, num_gates + 1)[1:]
    kind = "" if style.name == "medium" else f"-{style.name}"
    names = f"generated-{seed}-{length_m:.0f}{kind}", f"Generated {seed}"
    return Track(*names, centre, width, bank, material, edge, gate_m, f"generated from seed {seed}{kind}")


def _laid(layout: Layout, slope: NDArray[np.float64], width_m: float, style: Difficulty) -> Line | None:
    """Returns the line with its bridges, or None if it comes too close to itself or has a wrong number of crossings."""
    centre = lay_line(layout.curvature, slope)
    is_bridge = np.zeros(len(slope), np.bool_)
    if style.crossings[1] > 0:
        met = crossings(centre)
        if not style.crossings[0] <= len(met) <= style.crossings[1]:
            return None
        bridged = add_bridges(layout, slope, met)
        if bridged is None:
            return None
        slope, is_bridge = bridged
        centre = lay_line(layout.curvature, slope)
    is_clear = _is_clear(centre, style.clearance_widths * width_m, style.crossings[1] > 0)
    return (centre, is_bridge) if is_clear else None


def _is_clear(centre: NDArray[np.float64], clearance_m: float, may_cross: bool = False) -> bool:
    """True if distant parts of the line keep `clearance_m` horizontally or, with `may_cross`, pass well above."""
    stride = 8
    points = centre[::stride, [0, 2]]
    apart = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points)))) * stride * ZONE_SPACING_M
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    is_near = (apart > np.pi * clearance_m) & (distance <= clearance_m)
    if may_cross:
        height = centre[::stride, 1]
        is_near &= np.abs(height[:, None] - height[None]) < BRIDGE_CLEARANCE_M
    return not is_near.any()


@dataclass(frozen=True)
class Layout:
    """A line seen from above.

    Attributes:
        curvature: [Z] 1/m, positive left.
        jumps: first zones of the jumps' straights.
    """

    curvature: Floats
    jumps: tuple[int, ...]


def draw_layout(rng: np.random.Generator, zones: int, difficulty: Difficulty) -> Layout:
    """Draws a random sequence of straights and shapes."""
    parts = [np.zeros(round(START_STRAIGHT_M / ZONE_SPACING_M))]
    sign, deck, heading, jumps = rng.choice((-1.0, 1.0)), [], 0.0, []
    while (laid := sum(map(len, parts))) < zones:
        deck = deck or list(rng.permutation(np.array(difficulty.shapes)))
        shape = deck.pop()
        if shape == "jump" and laid + _zones_of(JUMP_M + FINISH_STRAIGHT_M) < zones:
            jumps.append(laid)
        arcs = _shape(rng, shape, sign, difficulty)
        general = np.radians(difficulty.sweep_deg) * laid / zones
        if _strays(heading - general, _turned(arcs), difficulty.wander_deg):
            arcs, sign = [-arc for arc in arcs], -sign
        parts += arcs
        heading += _turned(arcs)
        parts.append(np.zeros(_zones_of(rng.uniform(*difficulty.straight_m))))
        sign = -sign if rng.random() < difficulty.turn_back else sign
    curvature = np.concatenate(parts)[:zones]
    curvature[-_zones_of(FINISH_STRAIGHT_M) :] = 0.0
    return Layout(eased(curvature, TRANSITION_M), tuple(jumps))


def eased(values: Floats, over_m: float) -> Floats:
    """Returns [Z] values smoothed with a Hann window of length `over_m`."""
    size = _zones_of(over_m) + 2
    _, cosine = sin_cos(np.pi * np.arange(1 - size, size, 2) / (size - 1))
    window = 0.5 + 0.5 * cosine
    # Not `np.convolve`: sums of BLAS depend on the processor.
    padded = np.pad(values, (size // 2, (size - 1) // 2))
    return (np.lib.stride_tricks.sliding_window_view(padded, size) * (window / window.sum())).sum(axis=1)


def _zones_of(length_m: float) -> int:
    return round(length_m / ZONE_SPACING_M)


def _shape(rng: np.random.Generator, shape: str, sign: float, difficulty: Difficulty) -> list[Floats]:
    if shape == "jump":
        return [np.zeros(_zones_of(JUMP_M))]
    if shape == "chicane":
        radius, angle = _drawn(rng, difficulty.chicane)
        return [_arc(sign, radius, angle), _arc(-sign, radius, 2 * angle), _arc(sign, radius, angle)]
    kinds = {"bend": difficulty.bend, "hairpin": difficulty.hairpin, "sweeper": difficulty.sweeper}
    return [_arc(sign, *_drawn(rng, kinds[shape]))]


def _drawn(rng: np.random.Generator, arc: Arc) -> tuple[float, float]:
    return rng.uniform(*arc.radius_m), rng.uniform(*arc.angle_deg)


def _arc(sign: float, radius_m: float, angle_deg: float) -> Floats:
    return np.full(max(1, _zones_of(radius_m * np.radians(angle_deg))), sign / radius_m)


def _turned(arcs: list[Floats]) -> float:
    return float(sum(arc.sum() for arc in arcs)) * ZONE_SPACING_M


def _strays(away: float, turn: float, wander_deg: float | None) -> bool:
    """True if a turn strays too far from the general direction and its mirror image less so; angles in radians."""
    if wander_deg is None:
        return False
    return abs(away + turn) > np.radians(wander_deg) and abs(away - turn) < abs(away + turn)


def draw_slope(rng: np.random.Generator, layout: Layout, max_slope: float, difficulty: Difficulty) -> Floats:
    """Returns [Z] the slope: a sum of sine waves, flat at the start and the finish, with jumps in between."""
    zones = len(layout.curvature)
    along = np.arange(zones) * ZONE_SPACING_M
    waves = sum(sin_cos(2 * np.pi * along / length + rng.uniform(0, 2 * np.pi))[0] * weight for length, weight in WAVES)
    level = np.minimum(along - FLAT_START_M, along[-1] - along - FLAT_FINISH_M)
    flat = np.clip(level / FLAT_BLEND_M, 0.0, 1.0)
    slope = waves * flat
    slope = max_slope * slope / max(np.abs(slope).max(), 1e-9)
    for start in layout.jumps:
        into = along - start * ZONE_SPACING_M
        slope *= np.clip(np.maximum(-into, into - JUMP_M) / FLAT_BLEND_M, 0.0, 1.0)
        slope += difficulty.kicker_slope * np.interp(into, *np.array(JUMP_PROFILE).T)
    return slope


def lay_line(curvature: Floats, slope: Floats) -> Floats:
    """Integrates curvature and slope to [Z, 3] points exactly `ZONE_SPACING_M` apart."""
    heading = np.cumsum(curvature[:-1] + curvature[1:]) * 0.5 * ZONE_SPACING_M
    sine, cosine = sin_cos(heading)
    run = ZONE_SPACING_M / np.sqrt(1.0 + slope[:-1] * slope[:-1])
    steps = np.stack([run * sine, run * slope[:-1], run * cosine], axis=1)
    centre = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    centre[:, 1] += 10.0 - centre[:, 1].min()
    return centre


def crossings(centre: Floats) -> list[tuple[int, int]]:
    """Returns the pairs of zones, the earlier first, near which a line crosses itself seen from above."""
    ground = centre[::CROSSING_STRIDE, [0, 2]]
    first, step = ground[:-1], np.diff(ground, axis=0)
    between = first[None] - first[:, None]
    area = step[:, None, 0] * step[None, :, 1] - step[:, None, 1] * step[None, :, 0]
    area = np.where(np.abs(area) < 1e-6, np.nan, area)  # parallel or collinear: no crossing
    here = (between[..., 0] * step[None, :, 1] - between[..., 1] * step[None, :, 0]) / area
    there = (between[..., 0] * step[:, None, 1] - between[..., 1] * step[:, None, 0]) / area
    is_met = (here >= 0) & (here < 1) & (there >= 0) & (there < 1)
    is_met &= np.subtract.outer(np.arange(len(step)), np.arange(len(step))) < -1
    return [
        (round((i + here[i, j]) * CROSSING_STRIDE), round((j + there[i, j]) * CROSSING_STRIDE))
        for i, j in np.argwhere(is_met)
    ]


def add_bridges(layout: Layout, slope: Floats, met: list[tuple[int, int]]) -> tuple[Floats, NDArray[np.bool_]] | None:
    """Adds a bridge at every crossing.

    Args:
        layout: the line from above.
        slope: [Z] slope without bridges.
        met: from `crossings`.

    Returns:
        [Z] slope with bridges and [Z] True on bridges; None if a bridge has no room.
    """
    along = np.arange(len(slope)) * ZONE_SPACING_M
    lift, is_bridge = np.zeros(len(slope)), np.zeros(len(slope), np.bool_)
    reach_m = BRIDGE_TOP_M + BRIDGE_RAMP_M
    jumps_m = np.array([start * ZONE_SPACING_M + JUMP_M / 2 for start in layout.jumps])
    for pair in met:
        height = lay_line(layout.curvature, slope + np.gradient(lift, ZONE_SPACING_M))[:, 1]
        lower, upper = sorted(pair, key=lambda zone: height[zone])
        missing_m = BRIDGE_HEIGHT_M - (height[upper] - height[lower])
        at_m = upper * ZONE_SPACING_M
        is_near_jump = len(jumps_m) > 0 and np.abs(jumps_m - at_m).min() < reach_m + JUMP_M / 2
        has_room = reach_m < at_m < along[-1] - reach_m and abs(upper - lower) * ZONE_SPACING_M > reach_m
        if missing_m > 0 and (is_near_jump or not has_room):
            return None
        climb = np.clip((reach_m - np.abs(along - at_m)) / BRIDGE_RAMP_M, 0.0, 1.0)
        lift += max(missing_m, 0.0) * 0.5 * (1.0 - sin_cos(np.pi * climb)[1])
        is_bridge |= np.abs(along - at_m) < BRIDGE_TOP_M
    return slope + np.gradient(lift, ZONE_SPACING_M), is_bridge | (lift > MIN_BRIDGE_M)


def draw_width(rng: np.random.Generator, zones: int, width_m: float, difficulty: Difficulty) -> Floats:
    """Returns [Z] the road width: constant, or waves around `width_m`."""
    if difficulty.width_change == 0.0:
        return np.full(zones, width_m)
    along = np.arange(zones) * ZONE_SPACING_M
    length, phase = rng.uniform(*WIDTH_WAVE_M, 3), rng.uniform(0.0, 2 * np.pi, 3)
    waves = sin_cos(2 * np.pi * along / length[:, None] + phase[:, None])[0].mean(axis=0)
    return width_m * (1.0 + difficulty.width_change * waves / np.abs(waves).max())


def bank_of(layout: Layout, difficulty: Difficulty) -> Floats:
    """Returns [Z] the roll: bends bank toward their inside, eased in and out; none at the start and the finish."""
    lean = np.clip(eased(layout.curvature, BANK_EASE_M) * FULL_BANK_RADIUS_M, -1.0, 1.0)
    along = np.arange(len(lean)) * ZONE_SPACING_M
    is_open = np.clip(np.minimum(along, along[-1] - along) / START_STRAIGHT_M, 0.0, 1.0)
    return -np.radians(difficulty.max_bank_deg) * lean * is_open


def draw_material(rng: np.random.Generator, layout: Layout, difficulty: Difficulty) -> Bytes:
    """Returns [Z] material ids, with patches of other surfaces and turbo pads on straights."""
    zones = len(layout.curvature)
    material = np.full(zones, difficulty.surface, np.uint8)
    if difficulty.patches:
        mean_gap_m = sum(PATCH_M) / 2.0 * (1.0 / difficulty.patch_share - 1.0)
        at_m, number = START_STRAIGHT_M + rng.uniform(0.3, 1.0) * mean_gap_m, 0
        while at_m < zones * ZONE_SPACING_M - FINISH_STRAIGHT_M:
            end_m = at_m + rng.uniform(*PATCH_M)
            laid = difficulty.patches[number % len(difficulty.patches)]
            material[_zones_of(at_m) : _zones_of(min(end_m, zones * ZONE_SPACING_M - FINISH_STRAIGHT_M))] = laid
            at_m, number = end_m + rng.uniform(0.7, 1.3) * mean_gap_m, number + 1
    for at in _pad_places(rng, layout, difficulty):
        material[at : at + _zones_of(TURBO_M)] = TURBO
    return material


def _pad_places(rng: np.random.Generator, layout: Layout, difficulty: Difficulty) -> list[int]:
    """Returns the first zones of turbo pads: on straights, more than 60 m apart, never on a jump."""
    zones = len(layout.curvature)
    is_free = np.abs(layout.curvature) < STRAIGHT_PER_M
    is_free[: _zones_of(START_STRAIGHT_M / 2)] = False
    is_free[-_zones_of(FINISH_STRAIGHT_M) :] = False
    for start in layout.jumps:
        is_free[start : start + _zones_of(JUMP_M)] = False
    # A pad shoots a car toward the next bend, so at least 30 m of straight must follow it.
    ahead = _zones_of(30.0)
    room = np.lib.stride_tricks.sliding_window_view(np.pad(is_free, (0, ahead - 1)), ahead).all(axis=1)
    places: list[int] = []
    for at in rng.permutation(np.flatnonzero(room)):
        if len(places) >= round(difficulty.turbos_per_km * zones * ZONE_SPACING_M / 1000.0):
            break
        if all(abs(int(at) - other) > _zones_of(60.0) for other in places):
            places.append(int(at))
    return places


def draw_edges(rng: np.random.Generator, is_bridge: NDArray[np.bool_], difficulty: Difficulty) -> Bytes:
    """Returns [Z] edge kinds: random stretches of the difficulty's kinds, and its `bridge_edge` on bridges."""
    edge = np.full(len(is_bridge), difficulty.edges[0], np.uint8)
    at = 0
    while len(set(difficulty.edges)) > 1 and at < len(edge):
        end = at + _zones_of(rng.uniform(*EDGE_M))
        edge[at:end], at = rng.choice(difficulty.edges), end
    edge[is_bridge] = difficulty.bridge_edge
    return edge
