"""Baked tracks: geometry of the sections, terrain that keeps clear of other road, and what is near in space."""

import numpy as np
import pytest

from rulka.simulator.palette import INK
from rulka.simulator.scene import (
    AFTER_SECTIONS,
    BEFORE_SECTIONS,
    CHUNK_SECTIONS,
    SECTION_STEPS,
    SURFACE,
    VIEW_M,
    WING_M,
    WING_RISE_M,
    bake_scene,
)
from rulka.tracks.generate import generate_track
from rulka.tracks.track import DRIVEN_SOURCE, DROP, Track
from tests.conftest import plain_road

CENTRE, LEFT, HALF, REACH_LEFT, REACH_RIGHT = slice(0, 3), slice(3, 6), 6, 7, 8


def wing_ends(section):
    """Where the terrain ends on the left and on the right."""
    left, half = section[LEFT], section[HALF]
    return section[CENTRE] + left * (half + section[REACH_LEFT]), section[CENTRE] - left * (half + section[REACH_RIGHT])


def bridge(height_m: float = 8.0) -> Track:
    """A track that passes over itself at a right angle: along +z, round a loop, and back over along -x or +x."""
    turn_m = 1.5 * np.pi * 60.0
    along = np.arange(round((200.0 + turn_m + 260.0) / 0.5) + 1) * 0.5
    yaw = np.clip((along - 200.0) / 60.0, 0.0, 1.5 * np.pi)
    step = 0.5 * np.stack([np.sin(yaw), np.zeros(len(along)), np.cos(yaw)], axis=1)
    centre = np.concatenate([np.zeros((1, 3)), np.cumsum(step, axis=0)[:-1]])
    centre[:, 1] = height_m * np.clip((along - 200.0) / turn_m, 0.0, 1.0)
    return plain_road(centre, 12.0)


def test_sections_of_a_straight_by_hand(make_track) -> None:
    """Along +z at y = 10 the left is +x; the road is 16 m wide, and terrain lies level for 60 m."""
    scene = bake_scene(make_track(100.0))
    zone = scene.sections[BEFORE_SECTIONS + 50]
    assert zone[CENTRE] == pytest.approx([0, 10, 25], abs=1e-4)
    assert zone[LEFT] == pytest.approx([1, 0, 0], abs=1e-5)
    assert zone[HALF] == pytest.approx(8.0)
    left, right = wing_ends(zone)
    assert left == pytest.approx([8 + WING_M, 10, 25], abs=1e-3)
    assert right == pytest.approx([-8 - WING_M, 10, 25], abs=1e-3)
    assert len(scene.sections) == BEFORE_SECTIONS + 201 + AFTER_SECTIONS
    assert scene.sections[0, CENTRE] == pytest.approx([0, 10, -0.5 * BEFORE_SECTIONS], abs=1e-4)
    assert (scene.sections[:, SURFACE] == INK["asphalt"]).all()
    assert scene.gates.tolist() == [[BEFORE_SECTIONS, 0], [BEFORE_SECTIONS + 200, 2]]


def test_terrain_inside_a_bend_ends_before_its_middle(make_track) -> None:
    """Radius 30 m, bending left: terrain on the left must not reach beyond the middle of the circle."""
    scene = bake_scene(make_track(150.0, curvature=lambda along: np.full_like(along, 1 / 30.0)))
    zone = scene.sections[BEFORE_SECTIONS + 150]
    assert zone[HALF] + zone[REACH_LEFT] < 30.0
    assert zone[HALF] + zone[REACH_RIGHT] > 60.0


def test_a_bridge_has_no_terrain_over_the_road_below() -> None:
    track = bridge()
    scene = bake_scene(track)
    along = np.arange(track.num_zones) * 0.5
    lower, upper = track.centre_m[along < 200.0], track.centre_m[along > 500.0]
    gap = np.linalg.norm((lower[:, None] - upper[None])[:, :, [0, 2]], axis=2)
    low, high = np.unravel_index(gap.argmin(), gap.shape)
    assert gap.min() < 0.5
    for zone in (low, int(np.flatnonzero(along > 500.0)[0]) + high):
        section = scene.sections[BEFORE_SECTIONS + zone]
        assert section[REACH_LEFT] < 2.0


def test_neighbours_are_near_in_space_and_far_along() -> None:
    track = bridge()
    scene = bake_scene(track)
    centres = scene.sections[:, CENTRE]
    num_found = 0
    for chunk, row in enumerate(scene.neighbours):
        for begin, end in row[row[:, 0] >= 0]:
            assert begin < end
            for first in range(begin, end, CHUNK_SECTIONS):
                here = min(chunk * CHUNK_SECTIONS + CHUNK_SECTIONS // 2, len(centres) - 1)
                assert np.linalg.norm(centres[first] - centres[here]) < 220.0
                assert abs(first - chunk * CHUNK_SECTIONS) * 0.5 > VIEW_M - CHUNK_SECTIONS
                num_found += 1
    assert num_found > 50, "the bridge is seen from the road below it"


def test_a_long_track_is_small_and_baked_the_same_again(params) -> None:
    track = generate_track(**(params.track.model_dump() | {"length_m": 4000.0, "seed": 3}))
    first, second = bake_scene(track), bake_scene(track)
    assert first.num_bytes < 4e6
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert np.isfinite(first.sections).all()


def test_a_looping_has_no_terrain(make_track) -> None:
    """A full circle upward: where the road is steep or overhead there is nothing beside it."""
    angle = np.linspace(0, 2 * np.pi, 301)
    radius = 150 / (2 * np.pi)
    centre = np.stack([0.05 * angle, radius * (1 - np.cos(angle)), radius * np.sin(angle)], axis=1)
    bank = np.where(np.cos(angle) < 0, np.pi, 0.0)
    # It leaves where it enters.
    changes = {"centre_m": centre, "bank_rad": bank, "source": DRIVEN_SOURCE}
    track = Track(**{**vars(make_track(150.0)), **changes})
    section = bake_scene(track).sections[BEFORE_SECTIONS + 150]
    assert section[REACH_LEFT] < 1e-3
    assert section[REACH_RIGHT] < 1e-3
    assert np.isfinite(bake_scene(track).sections).all()


def test_deviation_by_hand(make_track) -> None:
    """The middle of a chord of 16 m lies 16^2 / (8 R) off its arc, and a straight strays nowhere."""
    straight, bend = (
        bake_scene(make_track(200.0, curvature=lambda along, c=c: np.full_like(along, c))) for c in (0.0, 1 / 100.0)
    )
    level, first = SECTION_STEPS.index(32), (BEFORE_SECTIONS + 96) // 4
    assert straight.deviation[level, first] < 1e-3
    outer_m = 256 / 800 * 1.08  # the outer edge, 8 m further out, lies on a circle of 108 m: its chord is longer too
    assert bend.deviation[level, first] == pytest.approx(max(outer_m, 256 / 800 * 1.68 * 0.1), rel=0.03)
    assert np.isinf(straight.deviation[-1, -1])


def test_a_strip_over_a_change_of_surface_counts_as_straying(make_track) -> None:
    track = make_track(200.0)
    track.material[100:120] = 6
    scene = bake_scene(track)
    level, first = SECTION_STEPS.index(32), (BEFORE_SECTIONS + 96) // 4
    assert scene.deviation[level, first] >= 2.0
    assert scene.deviation[level, (BEFORE_SECTIONS + 192) // 4] < 1e-3


def test_terrain_ends_at_a_drop_and_where_a_bank_lifts_it(make_track) -> None:
    track = make_track(100.0, bank_rad=0.3)
    zone = bake_scene(track).sections[BEFORE_SECTIONS + 100]
    assert zone[LEFT] == pytest.approx([np.cos(0.3), np.sin(0.3), 0], abs=1e-4)
    assert 5.0 < zone[REACH_LEFT] * np.sin(0.3) + 3.0 < 3.0 + WING_RISE_M + 1e-3
    track.edge[:] = DROP
    assert (bake_scene(track).sections[:, REACH_LEFT : REACH_RIGHT + 1] == 0.0).all()
