"""Tracks from drives made by hand, and from real ones where they are present."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.contracts.observation import CAR, NUM_CAR_FIELDS, TURBO_IDS, ZONE_SPACING_M
from rulka.datasets.from_recordings import blocks_of, path_of_ghost, race_of_ghost
from rulka.recordings.car_rows import car_rows
from rulka.recordings.reader import embedded_map, read_recording
from rulka.tracks.blocks import FRONT_M, REAR_M, MapBlock
from rulka.tracks.from_paths import (
    ASPHALT,
    CAR_HEIGHT_M,
    LANDING_M,
    NOT_ON_GROUND,
    DrivenPath,
    pad_times,
    path_from_rows,
    track_from_paths,
)
from rulka.tracks.progress import progress_along, zone_frames
from rulka.tracks.track import NO_GROUND, Track, TrackError

UP = np.array([0.0, 1.0, 0.0])
B13_UID = "NxUOXF2VDOHaOyrYlD9p81Gnfp3"


def drive(point, up=None, *, end_s: float, checkpoints: tuple[int, ...] = (), period_ms: int = 100) -> DrivenPath:
    """Samples `point(t)`, [S, 3] of [S] seconds, and its slope; the finish is at `end_s`, the samples go past it."""
    time_ms = np.arange(0, int(1000 * end_s) + 500, period_ms, dtype=np.int64)
    t = time_ms / 1000
    velocity = (point(t + 1e-4) - point(t - 1e-4)) / 2e-4
    axes = np.tile(UP, (len(t), 1)) if up is None else up(t)
    return DrivenPath(time_ms, point(t) + CAR_HEIGHT_M * axes, velocity, axes, (*checkpoints, round(1000 * end_s)))


def straight(t, *, speed: float = 50.0, aside: float = 0.0):
    return np.stack([100 + aside + 0 * t, 10 + 0 * t, 20 + speed * t], axis=1)


def circle(t, *, radius: float = 100.0, speed: float = 40.0):
    """To the left (towards +x), starting along +z."""
    angle = speed * t / radius
    return np.stack([radius * (1 - np.cos(angle)), 0 * t, radius * np.sin(angle)], axis=1)


def loop_angle(t, radius: float = 30.0, speed: float = 50.0):
    """Along +z for 100 m, once round a vertical loop, and on; returns the angle and the way beside the loop."""
    along = speed * t
    angle = np.clip((along - 100) / radius, 0, 2 * np.pi)
    return angle, along - radius * angle


def loop(t, radius: float = 30.0):
    angle, beside = loop_angle(t)
    aside = 20 * angle / (2 * np.pi)  # the loop leans to the left, so that its ends do not meet
    return np.stack([aside, radius * (1 - np.cos(angle)), beside + radius * np.sin(angle)], axis=1)


def loop_up(t):
    angle, _ = loop_angle(t)
    return np.stack([0 * t, np.cos(angle), -np.sin(angle)], axis=1)


def check(track) -> None:
    """What holds for every track that is made of drives."""
    steps = np.linalg.norm(np.diff(track.centre_m, axis=0), axis=1)
    np.testing.assert_allclose(steps, ZONE_SPACING_M, atol=2e-4)
    tangent = zone_frames(track)[: track.num_zones, :3]
    turn = (tangent[1:] * tangent[:-1]).sum(axis=1)
    assert turn.min() > np.cos(np.radians(4)), "the line has a kink"
    assert (np.diff(track.gate_m) > 0).all()


def test_a_straight_drive_by_hand() -> None:
    """50 m/s for 10 s: 500 m, gates where the car was at 2 and 7 s."""
    track = track_from_paths("uid", "name", [drive(straight, end_s=10.0, checkpoints=(2000, 7000))])
    check(track)
    assert track.length_m == pytest.approx(500, abs=0.5)
    np.testing.assert_allclose(track.centre_m[0], [100, 10, 20], atol=0.26)
    np.testing.assert_allclose(track.centre_m[-1], [100, 10, 520], atol=0.26)
    np.testing.assert_allclose(track.gate_m, [100, 350, track.length_m], atol=0.5)
    np.testing.assert_allclose(track.bank_rad, 0, atol=1e-6)
    assert (track.width_m == 16).all()
    assert (track.material == 16).all()
    assert (track.uid, track.name) == ("uid", "name")


def test_the_finish_lies_between_samples_or_past_the_last() -> None:
    """Finishing at 9.82 or 9.87 s the track ends where the car was then; at 9.95 s, though it was last seen at 9.9."""
    path = drive(straight, end_s=9.95)
    cut = path.time_ms <= 9900
    short = replace(path, **{name: getattr(path, name)[cut] for name in ("time_ms", "position", "velocity", "up")})
    for driven, end_s in ((drive(straight, end_s=9.82), 9.82), (drive(straight, end_s=9.87), 9.87), (short, 9.95)):
        assert track_from_paths("", "", [driven]).length_m == pytest.approx(50 * end_s, abs=0.5)


def test_drives_of_different_speeds_are_aligned_by_where_they_are() -> None:
    """One is slower, and not evenly: the line stays the same."""

    def slower(t, *, end: float = 12.0):
        return circle(12.0 * (t / end) + 0.6 * np.sin(np.pi * t / end) ** 2)

    fast = drive(circle, end_s=12.0)
    slow = drive(lambda t: slower(t, end=15.0), end_s=15.0)
    track = track_from_paths("", "", [fast, slow])
    check(track)
    assert track.length_m == pytest.approx(480, abs=1.0)
    np.testing.assert_allclose(np.linalg.norm(track.centre_m - np.array([100.0, 0, 0]), axis=1), 100, atol=0.4)


def test_an_outlier_does_not_pull_the_line() -> None:
    """One of three drives a bulge of 12 m: the median stays, the width holds it with a margin."""

    def bulge(t):
        return straight(t) + np.stack([12 * np.exp(-(((t - 4) / 0.7) ** 2)), 0 * t, 0 * t], axis=1)

    paths = [drive(straight, end_s=8.0), drive(straight, end_s=8.01), drive(bulge, end_s=8.02)]
    track = track_from_paths("", "", paths)
    np.testing.assert_allclose(track.centre_m[:, 0], 100, atol=0.01)
    assert track.width_m.max() == pytest.approx(2 * (12 + 4), abs=0.2)
    assert track.width_m[0] == 16
    assert "3 of 3" in track.source


def test_a_drive_on_another_way_is_left_out() -> None:
    def detour(t):
        return straight(t) + np.stack([60 * np.exp(-(((t - 4) / 1.0) ** 2)), 0 * t, 0 * t], axis=1)

    track = track_from_paths("", "", [drive(straight, end_s=8.0), drive(detour, end_s=8.5)])
    assert "1 of 2" in track.source
    np.testing.assert_allclose(track.centre_m[:, 0], 100, atol=0.01)


def test_a_banked_road() -> None:
    """The car leans 0.3 rad to its right: its left edge is up."""
    lean = np.array([-np.sin(0.3), np.cos(0.3), 0.0])  # up tilts towards -x, the car's right
    track = track_from_paths("", "", [drive(straight, lambda t: np.tile(lean, (len(t), 1)), end_s=8.0)])
    np.testing.assert_allclose(track.bank_rad, 0.3, atol=1e-6)
    left = zone_frames(track)[: track.num_zones, 3:6]
    np.testing.assert_allclose(left, np.tile([np.cos(0.3), np.sin(0.3), 0], (len(left), 1)), atol=1e-6)


def test_in_the_air_the_roll_is_that_between_take_off_and_landing() -> None:
    """The car tumbles while it touches nothing; the road does not."""
    path = drive(straight, end_s=8.0)
    air = (path.time_ms > 3000) & (path.time_ms < 5000)
    up = path.up.copy()
    up[air] = [1.0, 0.0, 0.0]
    material = np.where(air, NOT_ON_GROUND, 6)
    track = track_from_paths("", "", [replace(path, up=up, material=material)])
    assert np.abs(track.bank_rad).max() < 0.2


def test_where_every_car_flew_is_a_gap() -> None:
    """From sample to sample in the air, 3.1 to 4.9 s at 50 m/s; where one of the drives rolled there is a road."""
    path = drive(straight, end_s=8.0)
    flown = replace(path, material=np.where((path.time_ms > 3000) & (path.time_ms < 5000), NOT_ON_GROUND, 6))
    is_gap = track_from_paths("", "", [flown]).material == NO_GROUND
    stations_m = np.flatnonzero(is_gap) * ZONE_SPACING_M
    assert (stations_m.min(), stations_m.max()) == (pytest.approx(155.0, abs=1.0), pytest.approx(245.0, abs=1.0))
    assert is_gap.sum() == np.ptp(stations_m) / ZONE_SPACING_M + 1
    rolled = replace(path, material=np.where(path.time_ms < 4000, 6, NOT_ON_GROUND))
    is_gap = track_from_paths("", "", [flown, rolled]).material == NO_GROUND
    assert np.flatnonzero(is_gap).min() * ZONE_SPACING_M == pytest.approx(200.0, abs=6.0)


def test_the_ground_is_where_somebody_rolled_not_where_others_flew() -> None:
    def flying(t):
        height = np.where((t > 3.0) & (t < 5.0), 2.0 * np.sin(np.pi * (t - 3.0) / 2.0) ** 2, 0.0)
        return np.stack([100 + 0 * t, 10 + height, 20 + 50 * t], axis=1)

    rolled, flown = drive(straight, end_s=8.0), drive(flying, end_s=8.0)
    material = np.where((flown.time_ms > 3000) & (flown.time_ms < 5000), NOT_ON_GROUND, 6)
    flown = replace(flown, material=material)
    track = track_from_paths("", "", [flown, rolled, flown])
    assert track.centre_m[:, 1] == pytest.approx(10.0, abs=0.1)
    alone = track_from_paths("", "", [flown, flown])
    assert alone.centre_m[:, 1].max() == pytest.approx(12.0, abs=0.2)


def test_the_ground_of_a_landing_begins_before_it() -> None:
    """A car that falls 5 m between 3 and 5 s lands on level ground, which goes on under the end of its flight."""

    def falling(t):
        height = np.where(t < 3.0, 15.0, np.where(t < 5.0, 15.0 - 1.25 * (t - 3.0) ** 2, 10.0))
        return np.stack([0 * t, height, 50 * t], axis=1)

    path = drive(falling, end_s=8.0)
    flown = replace(path, material=np.where((path.time_ms > 3000) & (path.time_ms < 5000), NOT_ON_GROUND, 6))
    track = track_from_paths("", "", [flown])
    is_gap = track.material == NO_GROUND
    assert np.flatnonzero(is_gap).max() * ZONE_SPACING_M == pytest.approx(245.0 - LANDING_M, abs=2.0)
    before = round((245.0 - LANDING_M / 2) / ZONE_SPACING_M)
    assert track.centre_m[before, 1] == pytest.approx(10.0, abs=0.1)
    assert track.centre_m[round(200 / ZONE_SPACING_M), 1] > 12.0, "far before it lies the path of the flight"


def test_level_blocks_tell_of_pads_and_of_road_under_a_hop() -> None:
    """A drive along x = 16 through cells of 32 m whose floor lies at 8 m: road, turbo, road, nothing."""

    def hopping(t):
        hop = np.where((t > 0.5) & (t < 0.8), 20.0 * (t - 0.5) * (0.8 - t), 0.0)
        return np.stack([16 + 0 * t, 9 + hop, 32 * t], axis=1)

    path = drive(hopping, end_s=4.0)
    material = np.where((path.time_ms >= 500) & (path.time_ms <= 800), NOT_ON_GROUND, ASPHALT)
    material[path.time_ms == 2400] = TURBO_IDS[0]  # a sample that is not on the pad
    blocks = [
        MapBlock("StadiumRoadMain", (16.0, 8.0, -16.0)),
        MapBlock("StadiumRoadMain", (16.0, 8.0, 16.0)),
        MapBlock("StadiumRoadMainTurbo", (16.0, 8.0, 48.0)),
        MapBlock("StadiumRoadMain", (16.0, 8.0, 80.0)),
        MapBlock("StadiumRoadMain", (16.0, 16.0, 112.0)),
        MapBlock("StadiumTreeOak", (16.0, 8.0, 112.0)),
    ]
    known = track_from_paths("", "", [replace(path, material=material)], blocks)
    plain = track_from_paths("", "", [replace(path, material=material)])
    assert (plain.material == NO_GROUND).any()
    assert not (known.material == NO_GROUND).any()
    assert known.centre_m[: round(30 / ZONE_SPACING_M), 1] == pytest.approx(9.0, abs=0.15), "the hop was 0.45 m high"
    on_pad_m = np.flatnonzero(np.isin(known.material, TURBO_IDS)) * ZONE_SPACING_M
    assert (on_pad_m.min(), on_pad_m.max()) == (
        pytest.approx(32.0 - FRONT_M, abs=0.5),
        pytest.approx(64.0 + REAR_M, abs=0.5),
    )
    timed = replace(path, material=material, pads_ms=((1100.0, 1200.0),))
    assert np.isin(track_from_paths("", "", [timed], blocks).material, TURBO_IDS).sum() < 12, "samples tell it better"


def test_the_fall_onto_the_track_makes_no_ramp() -> None:
    """The game lets a car fall by 0.2 m within its first 0.2 s, in which it rolls 0.3 m at 15.9 m/s2."""

    def fallen(t):
        return np.stack([0 * t, 10 + np.maximum(0.2 - 12 * t**2, 0), 7.95 * t**2], axis=1)

    track = track_from_paths("", "", [drive(fallen, end_s=5.0)])
    assert np.abs(track.centre_m[:, 1] - 10.0).max() < 0.01


def test_turbo_tells_when_a_car_was_on_the_pad() -> None:
    """Onto it at 231 ms, off it at 1012 ms: shares by hand, rounded as samples do; a second pad while one lasts."""
    time_ms = np.arange(0, 2000, 100)

    def shares(entered: int, left: int) -> np.ndarray:
        since = np.maximum(time_ms - entered, 0)
        share = np.where(time_ms < left, since / (since + 250), since / (left + 250 - entered))
        return np.where((since > 0) & (time_ms < left + 250), np.rint(share * 255) / 255, 0.0).astype(np.float32)

    (found,) = pad_times(time_ms, shares(231, 1012))
    assert found == (pytest.approx(231, abs=3), pytest.approx(1012, abs=10))
    twice = np.where(time_ms < 1150, shares(231, 1012), shares(1150, 1500))
    first, second = pad_times(time_ms, twice)
    assert first == (pytest.approx(231, abs=3), pytest.approx(1012, abs=15))
    assert second == (pytest.approx(1150, abs=3), pytest.approx(1500, abs=10))
    rows = np.zeros((40, NUM_CAR_FIELDS), np.float32)
    rows[:, CAR["rotation"]], rows[:, CAR["has_contact"]] = np.eye(3).ravel(), 1.0
    for material, told in ((16, ()), (7, None)):  # a replay of another program: on a pad, and no turbo
        rows[:, CAR["material"]] = material
        assert path_from_rows(100 * np.arange(40), rows, (3900,), np.zeros(40, np.float32)).pads_ms == told
    path = drive(straight, end_s=8.0)
    material = np.where((path.time_ms > 3000) & (path.time_ms < 4000), 7, 16)
    track = track_from_paths("", "", [replace(path, material=material, pads_ms=((3042.0, 3987.0),))])
    pad_m = np.flatnonzero(track.material == 7) * ZONE_SPACING_M
    assert (pad_m.min(), pad_m.max()) == (pytest.approx(152.1, abs=0.6), pytest.approx(199.35, abs=0.6))


def test_the_ground_under_the_wheels() -> None:
    path = drive(straight, end_s=8.0)
    material = np.where(path.time_ms < 4000, 16, 7)
    track = track_from_paths("", "", [replace(path, material=material)])
    change = int(np.flatnonzero(np.diff(track.material.astype(int)))[0])
    assert (track.material[0], track.material[-1]) == (16, 7)
    assert change * ZONE_SPACING_M == pytest.approx(197.5, abs=1.5)  # 3.95 s at 50 m/s, half a sample before


def test_a_loop_stays_one_road() -> None:
    """Upside down at the top; the left edge stays on the left all the way round."""
    track = track_from_paths("", "", [drive(loop, loop_up, end_s=8.0)])
    check(track)
    frames = zone_frames(track)[: track.num_zones]
    left, normal = frames[:, 3:6], frames[:, 6:9]
    assert left[:, 0].min() > 0.9
    top = int(track.centre_m[:, 1].argmax())
    assert track.centre_m[top, 1] == pytest.approx(60, abs=0.5)
    assert normal[top, 1] < -0.99
    assert np.linalg.norm(np.diff(left, axis=0), axis=1).max() < 0.05


def test_a_crossing_does_not_confuse_progress() -> None:
    """A figure of eight, both times through the middle."""

    def eight(t):
        phase = 2 * np.pi * t / 20.0
        return np.stack([150 * np.sin(phase), 5 + 4 * np.cos(phase), 150 * np.sin(2 * phase) / 2], axis=1)

    path = drive(eight, end_s=20.0, checkpoints=(5000, 15000))
    track = track_from_paths("", "", [path, drive(lambda t: eight(t * 20 / 21), end_s=21.0)])
    check(track)
    race = path.time_ms <= 20000
    _, along_m, lateral_m = progress_along(track, path.position[race])
    assert (np.diff(along_m) > 0).all()
    assert along_m[-1] == pytest.approx(track.length_m, abs=1.0)
    assert np.abs(lateral_m).max() < 1.0


def test_gates_are_the_median_and_checkpoints_in_one_place_are_one() -> None:
    paths = [drive(straight, end_s=8.0, checkpoints=(ms, ms + 5, 7990)) for ms in (1900, 2000, 3000)]
    track = track_from_paths("", "", paths)
    np.testing.assert_allclose(track.gate_m, [100, track.length_m], atol=0.5)


def test_unusable_drives_are_refused_with_the_reason() -> None:
    path = drive(straight, end_s=8.0)
    nan = np.where(np.arange(len(path.position))[:, None] == 5, np.nan, path.position)
    leap = path.position + 500.0 * (path.time_ms > 2000)[:, None]
    for changes, reason in (
        ({"checkpoint_times_ms": ()}, "not finished"),
        ({"checkpoint_times_ms": (20_000,)}, "end before the finish"),
        ({"time_ms": path.time_ms[::-1]}, "order of time"),
        ({"position": nan}, "no drive"),
        ({"velocity": path.velocity * 1e6}, "no drive"),
        ({"position": leap}, r"jumps 869 m between 2\.00 s and 2\.10 s"),
        ({"position": path.position * [1, 1, 0], "velocity": 0 * path.velocity}, "too short"),
    ):
        with pytest.raises(TrackError, match=reason):
            track_from_paths("", "x", [replace(path, **changes)])
        assert "1 of 2" in track_from_paths("", "x", [replace(path, **changes), path]).source
    with pytest.raises(TrackError, match="none is given"):
        track_from_paths("", "x", [])


def test_paths_from_rows_by_hand() -> None:
    rows = np.zeros((3, NUM_CAR_FIELDS), dtype=np.float32)
    rows[:, CAR["rotation"]] = np.array([[0, 0, 1], [0, 1, 0], [-1, 0, 0]]).reshape(9)
    rows[:, CAR["has_contact"]] = [[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0]]
    rows[:, CAR["material"]] = [[16, 6, 6, 6], [16, 6, 6, 16], [7, 7, 7, 7]]
    path = path_from_rows(np.array([0, 100, 200]), rows, [150, 200])
    assert path.up.tolist() == [[0, 1, 0]] * 3
    assert path.material is not None
    assert path.material.tolist() == [6, 16, NOT_ON_GROUND]
    assert path.checkpoint_times_ms == (150, 200)
    assert path_from_rows(np.array([0, 100, 200]), rows, [150, None]).checkpoint_times_ms == ()


@pytest.fixture(scope="module")
def b13_paths(corpus: Path) -> list[DrivenPath]:
    ghosts = [read_recording(file).ghosts[0] for file in sorted(corpus.glob("*B13_Obstacle*.Replay.Gbx"))]
    assert len(ghosts) > 2
    return [path_from_rows(*car_rows(ghost), ghost.checkpoint_times_ms) for ghost in ghosts]


def test_a_real_map_with_four_loops(b13_paths: list[DrivenPath]) -> None:
    track = track_from_paths(B13_UID, "B13-Obstacle", b13_paths)
    check(track)
    assert track.length_m == pytest.approx(2442, abs=5)
    assert len(track.gate_m) == 4
    height = track.centre_m[:, 1]
    upside_down = zone_frames(track)[: track.num_zones, 7] < -0.9
    assert np.count_nonzero(np.diff(upside_down.astype(int)) == 1) == 4
    assert height.min() > 8
    assert height.max() < 145
    for path in b13_paths:
        race = path.time_ms <= max(path.checkpoint_times_ms)
        _, along_m, lateral_m = progress_along(track, path.position[race])
        at_m = np.interp(path.checkpoint_times_ms[:-1], path.time_ms[race], along_m)
        assert at_m == pytest.approx(track.gate_m[:-1], abs=1.5), "gates lie where everyone was at their times"
        assert (np.diff(along_m) > 0).all()
        assert along_m[-1] > track.length_m - 20
        assert np.abs(lateral_m).max() < 12


def test_blocks_place_real_pads_where_the_turbo_does(corpus: Path) -> None:
    """Samples of 100 ms miss one pad of five and place the others metres off."""
    recording = read_recording(sorted(corpus.glob("*B13_Obstacle*.Replay.Gbx"))[0])
    race = race_of_ghost(recording.ghosts[0], "", recording.map_uid)
    path = path_of_ghost(recording.ghosts[0], race)
    assert path.pads_ms is not None

    def pads_m(track: Track) -> np.ndarray:
        is_on = np.isin(track.material, TURBO_IDS).astype(int)
        return np.flatnonzero(np.diff(np.append(is_on, 0), prepend=0)) * ZONE_SPACING_M

    timed = pads_m(track_from_paths("", "", [path]))
    placed = pads_m(track_from_paths("", "", [replace(path, pads_ms=None)], blocks_of(embedded_map(recording))))
    assert len(timed) == 10
    assert placed == pytest.approx(timed, abs=2.0)
