"""What a frame must show, checked against a camera written out independently in plain numpy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from rulka.machine.errors import UserError
from rulka.simulator.palette import GREY_INK, INK
from rulka.simulator.params import CameraParams
from rulka.simulator.render import FrameRenderer, camera_array, render_rgb
from rulka.simulator.scene import Scene, bake_scene
from rulka.tracks.from_paths import CAR_HEIGHT_M
from rulka.tracks.track import DROP, VERGE, WALL

CAMERA = CameraParams(back_m=6.0, height_m=3.0, pitch_deg=11.0, fov_deg=90.0)
SIZE = 64
GROUND_M = 10.0  # where `make_track` lays its line


def pose_at(position=(0.0, 0.0, 0.0), roll=0.0, yaw=0.0) -> NDArray[np.float32]:
    """A car at a place above the ground, turned left by `yaw`, then its left side lifted by `roll`; radians."""
    turn = np.array([[np.cos(yaw), 0, np.sin(yaw)], [0, 1, 0], [-np.sin(yaw), 0, np.cos(yaw)]])
    tilt = np.array([[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]])
    return np.concatenate([np.add(position, (0.0, GROUND_M, 0.0)), (turn @ tilt).ravel()]).astype(np.float32)


def pixel_of(point, pose, camera=CAMERA) -> tuple[float, float]:
    """Column and row at which a world point should appear."""
    place, rotation = pose[:3].astype(float), pose[3:].reshape(3, 3).astype(float)
    left, up, forward = rotation.T
    eye = place + camera.height_m * up - camera.back_m * forward
    pitch = np.radians(camera.pitch_deg)
    ahead = np.cos(pitch) * forward - np.sin(pitch) * up
    above = np.sin(pitch) * forward + np.cos(pitch) * up
    offset = np.asarray(point, float) - eye
    focal = SIZE / 2 / np.tan(np.radians(camera.fov_deg) / 2)
    depth = offset @ ahead
    return SIZE / 2 - focal * (offset @ left) / depth, SIZE / 2 - focal * (offset @ above) / depth


def frame(scene: Scene, pose, zone: int, camera=CAMERA, size: int = SIZE) -> NDArray[np.int64]:
    out = np.zeros((1, size, size), np.uint8)
    FrameRenderer(pose[None], np.array([zone]), scene, camera_array(camera)).render(out)
    return out[0].astype(np.int64)


@pytest.fixture(scope="module")
def straight(make_track) -> Scene:
    return bake_scene(make_track(400.0, gates=(160.0,)))


def test_sky_is_above_the_horizon_and_road_below(straight) -> None:
    """Looking 11 degrees down, the horizon is 32 tan 11 = 6.2 rows above the middle: between rows 25 and 26."""
    image = frame(straight, pose_at((0, 0, 100)), 200)
    assert (image[:25, :20] > 100).all()
    assert (np.diff(image[:25, 5]) >= 0).all(), "the sky grows brighter down to the horizon"
    assert image[24, 5] > 200
    assert image[27, 5] < 180
    dark, bright = GREY_INK[INK["asphalt_dark"]], GREY_INK[INK["asphalt"]]
    assert (image[45:60, 28:36] >= dark - 1).all()
    assert (image[45:60, 28:36] <= bright + 5).all(), "a little haze"


def test_a_centred_car_sees_a_symmetrical_picture(straight) -> None:
    image = frame(straight, pose_at((0, 0, 100)), 200)
    assert np.abs(image - image[:, ::-1]).max() <= 2


def test_road_edges_are_where_the_camera_puts_them(straight) -> None:
    """Along a row the brightest pixel on either side is the painted line, whose outer border is 8 m off the centre."""
    for lateral_m in (-4.0, 0.0, 5.0):
        pose = pose_at((lateral_m, 0, 100))
        image = frame(straight, pose, 200)
        for edge_m, outward in ((8.0, -1), (-8.0, 1)):
            column, row = pixel_of((edge_m, GROUND_M, 122.0), pose)
            band = image[int(row)]
            assert band[int(column) - 2 * outward : int(column) + 3 * outward : outward].max() > 200
            assert band[int(column) + 4 * outward] < 160, "terrain outside"
            assert band[int(column) - 6 * outward] < 100, "road inside"


def test_roll_tilts_the_horizon(straight) -> None:
    """The left side lifted by 20 degrees: the horizon falls to the left, 64 tan 20 = 23 rows over the image."""
    image = frame(straight, pose_at((0, 0, 100), roll=np.radians(20.0)), 200)
    left, right = (int(np.flatnonzero(image[:, column] > 195)[-1]) for column in (2, 61))
    assert left - right == pytest.approx(59 * np.tan(np.radians(20.0)), abs=2)


def test_a_gate_shows_at_100_m_and_not_from_behind_a_crest(make_track) -> None:
    def difference(slope) -> int:
        with_gate = make_track(400.0, slope=slope, gates=(200.0,))
        without = make_track(400.0, slope=slope)
        pose = np.concatenate([with_gate.centre_m[200], np.eye(3).ravel()]).astype(np.float32)
        return int(np.abs(frame(bake_scene(with_gate), pose, 200) - frame(bake_scene(without), pose, 200)).max())

    assert difference(np.zeros_like) > 80, "on the flat"
    # Up 10 % for 40 m, then down 30 % over the next 60 m: its top is well below the crest.
    hill = lambda along: np.where(along < 140, 0.1, np.where(along < 230, -0.3, 0.0)) * (along > 90)  # noqa: E731
    assert difference(hill) == 0


def test_the_banner_is_where_the_camera_puts_it(straight) -> None:
    pose = pose_at((0, 0, 100))
    column, row = pixel_of((0.0, GROUND_M + 7.4, 160.0), pose)
    image = frame(straight, pose, 200)
    banner = float(GREY_INK[INK["checkpoint_banner"]])
    assert image[int(row), int(column)] == pytest.approx(banner, abs=25)
    assert image[int(row) - 4, int(column)] > 180, "sky above it"


def test_a_frame_depends_on_its_own_pose_and_camera_alone(straight) -> None:
    """Also on a camera that has changed: a numba cache that baked it in would show the old picture."""
    rng = np.random.default_rng(0)
    poses = np.stack([pose_at((rng.uniform(-9, 9), 0.0, z), yaw=rng.normal(0, 0.6)) for z in range(20, 380, 9)])
    zones = (poses[:, 2] * 2).astype(np.int64)
    changes = ({}, {"back_m": 3.0}, {"height_m": 6.0}, {"pitch_deg": 20.0}, {"fov_deg": 60.0})
    for change in changes:
        camera = camera_array(CAMERA.model_copy(update=change))
        together, again = np.zeros((2, len(poses), SIZE, SIZE), np.uint8)
        FrameRenderer(poses, zones, straight, camera).render(together)
        FrameRenderer(poses, zones, straight, camera).render(again)
        assert np.array_equal(together, again)
        wide = np.zeros((len(poses), 39), np.float32)
        wide[:, :12] = poses
        for k in (0, 17, len(poses) - 1):
            alone = np.zeros((1, SIZE, SIZE), np.uint8)
            FrameRenderer(wide[k : k + 1], zones[k : k + 1], straight, camera).render(alone)
            assert np.array_equal(alone[0], together[k])
    pictures = {frame(straight, poses[9], zones[9], CAMERA.model_copy(update=change)).tobytes() for change in changes}
    assert len(pictures) == len(changes)


def test_a_wall_stands_a_metre_above_the_edge_and_a_drop_has_no_grass(make_track) -> None:
    pose, pictures = pose_at((0, 0, 100)), []
    for kind in (VERGE, WALL, DROP):
        track = make_track(400.0)
        track.edge[:] = kind
        pictures.append(frame(bake_scene(track), pose, 200))
    verge, wall, drop = pictures
    column, row = pixel_of((8.0, GROUND_M + 0.5, 112.0), pose)
    assert wall[int(row), int(column)] == pytest.approx(float(GREY_INK[INK["wall"]]), abs=30)
    column, row = pixel_of((8.0, GROUND_M + 1.6, 112.0), pose)
    assert abs(wall[int(row), int(column)] - verge[int(row), int(column)]) < 3, "grass seen over the wall"
    column, row = pixel_of((20.0, GROUND_M, 120.0), pose)
    assert abs(drop[int(row), int(column)] - verge[int(row), int(column)]) > 3
    column, row = pixel_of((0.0, GROUND_M, 112.0), pose)
    assert drop[int(row), int(column)] == wall[int(row), int(column)] == verge[int(row), int(column)], "the same road"


def underside_share(scene: Scene, poses, zones, camera=CAMERA) -> NDArray[np.float64]:
    """[N] share of each picture that shows road from below: the pixels that change with that ink alone."""
    ink = scene.ink.copy()
    ink[INK["underside"]] += 100
    images = np.zeros((2, len(poses), SIZE, SIZE), np.uint8)
    for drawn, image in zip((scene, scene._replace(ink=ink)), images, strict=True):
        FrameRenderer(poses, zones, drawn, camera_array(camera)).render(image)
    return (images[0] != images[1]).mean(axis=(1, 2))


def nose_up(angle) -> NDArray[np.float64]:
    """[9] rotation of a car along +z with its nose so far up, radians."""
    return np.array([1, 0, 0, 0, np.cos(angle), np.sin(angle), 0, -np.sin(angle), np.cos(angle)])


def test_a_camera_below_the_road_is_lifted_above_it(straight) -> None:
    """Nose up by 60 degrees, 0.36 m above the road: the arm ends at 0.36 + 3 cos 60 - 6 sin 60 = 3.3 m below it.

    A car so much higher that the arm ends half a metre above the road sees the same, and nothing changes above that.
    """
    end_m = 3 * np.cos(np.pi / 3) - 6 * np.sin(np.pi / 3)
    low, just = (np.append([0, GROUND_M + up, 100], nose_up(np.pi / 3)) for up in (CAR_HEIGHT_M, 0.5 - end_m))
    poses = np.stack([low, just]).astype(np.float32)
    assert underside_share(straight, poses, np.array([200, 200])).max() == 0
    images = [frame(straight, pose, 200) for pose in poses]
    assert np.abs(images[0] - images[1]).max() <= 1
    poses[1, 1] += 1.0
    assert np.abs(frame(straight, poses[1], 200) - images[0]).max() > 8


def test_a_camera_beside_a_road_without_terrain_may_be_below_it(make_track) -> None:
    """12 m right of the centre, 4 m beyond the edge: over terrain the camera is lifted, over nothing it stays."""
    track = make_track(400.0)
    pose = np.append([-12, GROUND_M + CAR_HEIGHT_M, 100], nose_up(np.pi / 3)).astype(np.float32)[None]
    shares = []
    for edge in (VERGE, DROP):
        track.edge[:] = edge
        shares.append(underside_share(bake_scene(track), pose, np.array([200]))[0])
    assert shares[0] == 0
    assert shares[1] > 0.1


def test_strips_may_be_long_where_the_picture_allows(make_track) -> None:
    """The picture of a bend over hills equals, but for few border pixels, the one from the shortest strips."""
    scene = bake_scene(
        make_track(
            500.0, lambda along: 0.012 * np.sin(along / 40.0), lambda along: 0.1 * np.sin(along / 30.0), gates=(220.0,)
        )
    )
    fine = scene._replace(deviation=np.where(np.arange(len(scene.deviation))[:, None] < 2, scene.deviation, np.inf))
    fine = fine._replace(deviation=fine.deviation.astype(np.float32))
    for zone in (100, 240, 420, 700):
        at = scene.sections[zone + scene.num_before]
        pose = np.concatenate([np.add(at[:3], (0, 0.4, 0)), np.eye(3).ravel()]).astype(np.float32)
        difference = np.abs(frame(scene, pose, zone) - frame(fine, pose, zone))
        assert (difference > 40).mean() < 0.02
        assert difference.mean() < 3.0


def test_nothing_is_written_beyond_the_frames(straight) -> None:
    """Any pose and zone: upside down, under ground, far away; the bytes around the frames stay untouched."""
    rng = np.random.default_rng(1)
    count = 200
    poses = np.zeros((count, 12), np.float32)
    poses[:, :3] = rng.normal(0, 1, (count, 3)) * 10.0 ** rng.uniform(-1, 30, (count, 1))
    poses[:, 3:] = np.stack([np.linalg.qr(rng.normal(0, 1, (3, 3)))[0].ravel() for _ in range(count)])
    poses[::3, :3] = rng.normal(0, 5, (len(poses[::3]), 3)) + np.array([0, GROUND_M, 100])
    guarded = np.full((count + 2, 24, 40), 7, np.uint8)
    FrameRenderer(poses, rng.integers(-1000, 5000, count), straight, camera_array(CAMERA)).render(guarded[1:-1])
    assert (guarded[[0, -1]] == 7).all()


def test_pictures_for_people_have_the_palettes_colours(straight) -> None:
    picture = render_rgb(straight, pose_at((0, 0, 60)), 120, 160, 120).astype(int)
    assert picture.shape == (120, 160, 3)
    red, green, blue = picture[5, 80]
    assert blue > green > red, "sky"
    red, green, blue = picture[70, 4]
    assert green > red > blue, "terrain"
    is_paint = (picture[:, :, 0] > 150) & (picture[:, :, 1] < 60)
    assert is_paint[60:, 60:100].sum() > 50, "the own car, red, in the lower middle"
    assert not is_paint[:40].any()


def test_the_road_hides_no_car_on_it(straight) -> None:
    """Wherever strips of road begin: near the start they are long and reach under the car."""
    seen = []
    for zone in (0, 2, 5, 9, 33, 120):
        picture = render_rgb(straight, pose_at((0, 0, zone / 2)), zone, 160, 120).astype(int)
        seen.append(int(((picture[:, :, 0] > 100) & (picture[:, :, 1] < 60)).sum()))
    assert min(seen) > 0.9 * max(seen) > 0


def test_other_cars_are_drawn_where_they_are(straight) -> None:
    pose, other = pose_at((0, 0, 60)), pose_at((4.0, 0, 75))
    alone = render_rgb(straight, pose, 120, 160, 120).astype(int)
    both = render_rgb(straight, pose, 120, 160, 120, other[None]).astype(int)
    rows, columns = np.nonzero(np.abs(both - alone).max(axis=2) > 20)
    assert 10 < len(rows) < 600
    assert columns.max() < 80, "it is on the left"
    hidden = render_rgb(straight, pose, 120, 160, 120, pose_at((0, 0, -40))[None]).astype(int)
    assert np.array_equal(hidden, alone), "what is behind the camera is not drawn"


def test_wrong_arrays_are_refused(straight) -> None:
    pose, out, lens = np.zeros((1, 12), np.float32), np.zeros((1, 8, 8), np.uint8), camera_array(CAMERA)
    for poses, zones, camera, into, message in (
        (np.zeros((1, 12)), [0], lens, out, "float32 poses"),
        (pose, [0, 1], lens, out, "as many int64 zones"),
        (pose, [0], lens[:4], out, "a camera of 5 float32 numbers"),
        (np.zeros((2, 12), np.float32), [0, 1], lens, out, "2 frames need"),
        (pose, [0], lens, np.zeros((1, 8, 16), np.uint8)[:, :, ::2], "contiguous uint8"),
        (pose, [0], lens, np.zeros((1, 8, 8), np.float32), "contiguous uint8"),
        (np.stack([pose_at(), pose_at((0, np.inf, 9))]), [0, 0], lens, np.zeros((2, 8, 8), np.uint8), "pose 1 holds"),
        (pose_at((0, np.nan, 0))[None], [0], lens, out, "pose 0 holds a value that is not finite"),
    ):
        with pytest.raises(UserError, match=message):
            FrameRenderer(poses, np.array(zones), straight, camera).render(into)
