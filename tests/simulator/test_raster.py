"""Level ground painted from its baked picture: against the same ground painted strip by strip, and a naive twin."""

import numpy as np
import pytest
from numpy.typing import NDArray

from rulka.params import CameraParams
from rulka.simulator.camera import camera_array
from rulka.simulator.layout import TEXEL_M, Scene
from rulka.simulator.palette import GREY_INK, INK
from rulka.simulator.raster import MAX_BYTES
from rulka.simulator.render import render_frames, render_rgb
from rulka.simulator.scene import VIEW_M, bake_scene
from rulka.tracks.track import DROP, WALL

CAMERA = CameraParams(back_m=7.0, height_m=4.2, pitch_deg=15.0, fov_deg=90.0)
FOUR_SIZES = ((64, 64), (48, 100), (32, 48), (80, 64))


@pytest.fixture(scope="module")
def winding(make_track) -> Scene:
    return bake_scene(make_track(400.0, lambda along: 0.02 * np.sin(along / 30.0), gates=(160.0,)))


def in_strips(scene: Scene) -> Scene:
    return scene._replace(texels=scene.texels[:0])


def poses_on(scene: Scene, count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Cars anywhere on the road, turned at random."""
    rng = np.random.default_rng(seed)
    zones = rng.integers(0, 700, count)
    at = scene.sections[zones + scene.num_before].astype(float)
    left, up = at[:, 3:6], np.array([0.0, 1.0, 0.0])
    yaw = np.arctan2(-left[:, 2], left[:, 0]) + rng.normal(0, 0.3, count)
    forward = np.stack([np.sin(yaw), 0 * yaw, np.cos(yaw)], axis=1)
    rotation = np.stack([np.cross(up, forward), np.broadcast_to(up, forward.shape), forward], axis=2)
    place = at[:, :3] + left * rng.uniform(-7, 7, (count, 1)) + [0.0, 0.36, 0.0]
    return np.concatenate([place, rotation.reshape(count, 9)], axis=1).astype(np.float32), zones


def painted(scene: Scene, poses, zones, shape=(64, 64), camera=CAMERA) -> NDArray[np.int64]:
    out = np.zeros((len(poses), *shape), np.uint8)
    render_frames(poses, zones, scene, camera_array(camera), out)
    return out.astype(np.int64)


def naive_ground(scene: Scene, pose, shape, camera=CAMERA) -> NDArray[np.int64]:
    """What each pixel should show, one by one in float64; -1 where it shows no ground within view, or none is there."""
    place, (left, up, forward) = pose[:3].astype(float), pose[3:].reshape(3, 3).T.astype(float)
    eye = place + camera.height_m * up - camera.back_m * forward
    pitch = np.radians(camera.pitch_deg)
    ahead, above = np.cos(pitch) * forward - np.sin(pitch) * up, np.sin(pitch) * forward + np.cos(pitch) * up
    rows, columns = shape
    focal = columns / 2 / np.tan(np.radians(camera.fov_deg) / 2)
    out = np.full(shape, -1)
    for row in range(rows):
        middle = ahead + above * (rows / 2 - row - 0.5) / focal
        depth = (eye[1] - scene.plane[1]) / max(-middle[1], 1e-9)
        if depth >= VIEW_M:
            continue
        level = int(np.clip(np.ceil(np.log2(depth / focal / TEXEL_M)) - 1, 0, len(scene.levels) - 1))
        first, width, height = scene.levels[level].astype(int)
        haze = int(128 * 0.8 * depth / VIEW_M)
        for column in range(columns):
            point = eye + depth * (middle - left * (column + 0.5 - columns / 2) / focal)
            x, z = ((point[[0, 2]] - scene.plane[[0, 2]]) / (TEXEL_M * 2**level)).astype(int)
            if 0 <= x < width and 0 <= z < height and (value := int(scene.texels[first + z * width + x])):
                gap = int(GREY_INK[INK["ground_horizon"]]) - value
                out[row, column] = value + ((max(gap, gap >> 1) * haze + 64) >> 7)
    return out


@pytest.mark.parametrize("shape", FOUR_SIZES)
def test_every_pixel_is_the_texel_that_a_naive_camera_finds(winding, shape) -> None:
    bare = winding._replace(gates=winding.gates[:0])
    poses, zones = poses_on(winding, 4)
    for pose, image in zip(poses, painted(bare, poses, zones, shape), strict=True):
        wanted = naive_ground(winding, pose, shape)
        is_ground = wanted >= 0
        assert is_ground.mean() > 0.3
        # Rounding chooses the neighbour of a texel in a few places.
        assert (np.abs(image - wanted)[is_ground] > 1).mean() < 0.005


def test_both_painters_agree(winding) -> None:
    poses, zones = poses_on(winding, 100)
    strips = painted(in_strips(winding), poses, zones)
    difference = np.abs(painted(winding, poses, zones) - strips)
    assert 0 < difference.mean() < 4.0, "the mean of all pixels"
    assert (difference > 60).mean() < 0.02, "edges"
    assert (difference[:, :20] == 0).all(), "the sky is the same"
    around = np.lib.stride_tricks.sliding_window_view(strips[:, 42:], (5, 5), axis=(1, 2))
    is_edge = np.ptp(around, axis=(3, 4)) > 12
    assert (difference[:, 44:-2, 2:-2][~is_edge] <= 12).all(), "the near ground is the same but for its edges"


def test_edges_are_no_rougher_than_those_of_strips(winding) -> None:
    """Against the mean of 64 pixels for each one: the ground as a camera would see it."""
    bare = winding._replace(gates=winding.gates[:0])
    poses, zones = poses_on(winding, 40)
    fine = painted(in_strips(bare), poses, zones, (512, 512)).reshape(-1, 64, 8, 64, 8).mean(axis=(2, 4))
    baked, strips = (
        np.sqrt(((painted(scene, poses, zones) - fine) ** 2).mean(axis=(0, 2))) for scene in (bare, in_strips(bare))
    )
    assert baked[24:].mean() < strips[24:].mean()
    assert baked[42:52].mean() < strips[42:52].mean(), "where lines are equally wide at all sizes"
    assert baked[52:].mean() < 1.6 * strips[52:].mean(), "nearest, where pixels are smaller than texels"


def test_movement_by_a_fraction_of_a_pixel_shows(winding) -> None:
    """A pixel of the lowest row is 0.12 m; steps of 0.03 m to the side move the brightness steadily."""
    poses, zones = poses_on(winding, 20)
    bare = winding._replace(gates=winding.gates[:0])
    moved = [poses.copy() for _ in range(3)]
    for step, pose in enumerate(moved):
        pose[:, [0, 2]] += 0.03 * step * poses[:, [3, 9]]
    first, second, third = (painted(bare, pose, zones)[:, 30:] for pose in moved)
    once, twice = np.abs(second - first).mean(), np.abs(third - first).mean()
    assert 0.0 < once < twice < 2.5 * once


def test_frames_do_not_depend_on_their_batch(winding) -> None:
    poses, zones = poses_on(winding, 37)
    together = painted(winding, poses, zones)
    assert np.array_equal(together, painted(winding, poses, zones))
    for k in (0, 11, 36):
        assert np.array_equal(painted(winding, poses[k : k + 1], zones[k : k + 1])[0], together[k])


def test_texels_of_a_straight_by_hand(make_track) -> None:
    """Along +z at x = 0, y = 10, 16 m wide: dark and bright asphalt in turn, a line, terrain to 68 m, then nothing."""
    scene = bake_scene(make_track(100.0))
    first, width, height = scene.levels[0].tolist()
    assert scene.plane[1] == pytest.approx(10.0)
    picture = scene.texels[first : first + width * height].reshape(height, width).astype(float)

    def at(x_m: float, z_m: float) -> float:
        return picture[int((z_m - scene.plane[2]) / TEXEL_M), int((x_m - scene.plane[0]) / TEXEL_M)]

    for name, x_m in (("asphalt", 0.0), ("terrain", 30.0), ("terrain", -30.0)):
        bands = sorted((at(x_m, 20.0), at(x_m, 28.0)))
        assert bands == pytest.approx([GREY_INK[INK[f"{name}_dark"]], GREY_INK[INK[name]]], abs=1.0)
    for x_m in (7.7, -7.7):
        assert at(x_m, 20.0) == pytest.approx(GREY_INK[INK["line"]], abs=1.0)
    assert at(67.0, 20.0) > 0.0
    assert at(69.0, 20.0) == 0.0
    assert (picture[[0, -1]] == 0).all()
    assert (picture[:, [0, -1]] == 0).all()


def test_only_small_level_tracks_without_walls_have_a_picture(make_track) -> None:
    level, walled, dropping = make_track(200.0), make_track(200.0), make_track(200.0)
    walled.edge[50:60], dropping.edge[:] = WALL, DROP
    for track in (level, dropping):
        scene = bake_scene(track)
        assert 0 < len(scene.texels) == (scene.levels[:, 1] * scene.levels[:, 2]).sum() <= MAX_BYTES
    hills = make_track(200.0, slope=lambda along: 0.05 * np.sin(along / 20.0))
    banked, long = make_track(200.0, bank_rad=0.05), make_track(3000.0, lambda along: 0.002 * np.ones_like(along))
    for track in (walled, hills, banked, long):
        scene = bake_scene(track)
        assert len(scene.texels) == 0
        assert scene.num_bytes < 4e6


@pytest.mark.parametrize("change", ["roll", "near", "wide", "under"])
def test_other_cameras_see_strips(winding, change) -> None:
    """A camera that rolls, one whose pixels are far smaller than texels, a large image, one under the ground."""
    poses, zones = poses_on(winding, 3)
    camera, shape = CAMERA, (64, 64)
    if change == "roll":
        tilt = np.array([[np.cos(0.1), -np.sin(0.1), 0], [np.sin(0.1), np.cos(0.1), 0], [0, 0, 1]])
        poses[:, 3:] = (poses[:, 3:].reshape(-1, 3, 3) @ tilt).reshape(-1, 9)
    elif change == "near":
        camera = CAMERA.model_copy(update={"height_m": 0.8})
    elif change == "wide":
        shape = (120, 160)
    else:
        poses[:, 1] -= 8.0
    frames = painted(winding, poses, zones, shape, camera)
    assert np.array_equal(frames, painted(in_strips(winding), poses, zones, shape, camera))


def test_every_camera_of_its_own_takes_effect(winding) -> None:
    """As domain randomisation gives them: some may see the picture and some strips, whatever the others do."""
    poses, zones = poses_on(winding, 6)
    heights = (4.2, 4.6, 0.8, 3.8, 5.0, 4.0)
    cameras = [CAMERA.model_copy(update={"height_m": height}) for height in heights]
    out = np.zeros((6, 64, 64), np.uint8)
    render_frames(poses, zones, winding, np.stack([camera_array(camera) for camera in cameras]), out)
    for k, camera in enumerate(cameras):
        assert np.array_equal(out[k], painted(winding, poses[k : k + 1], zones[k : k + 1], camera=camera)[0])


def test_pictures_for_people_are_painted_in_strips(winding) -> None:
    poses, zones = poses_on(winding, 1)
    with_picture, without = (
        render_rgb(scene, poses[0], int(zones[0]), 80, 60) for scene in (winding, in_strips(winding))
    )
    assert np.array_equal(with_picture, without)
