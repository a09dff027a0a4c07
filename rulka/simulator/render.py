"""Renders frames from car poses on a baked track: grey for agents, colour for people, with the same kernel.

A pose is a car's position and rotation as in an observation's `CAR` row, so simulated and recorded cars render alike.
Dimensions: N frames, H x W pixels, M cars.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.machine.errors import UserError
from rulka.simulator.palette import RGB_INK
from rulka.simulator.params import CameraParams
from rulka.simulator.render_kernels import draw_frames, new_scratch
from rulka.simulator.scene import Scene
from rulka.tracks.trigonometry import sin_cos

POSE_SIZE = 12
"""Length of a pose: position, then rotation in row-major order."""
CAMERA_SIZE = 5
_NO_CARS = np.zeros((0, POSE_SIZE), np.float32)
_PEOPLE = CameraParams(back_m=8.0, height_m=3.0, pitch_deg=9.0, fov_deg=78.0)
"""Camera of frames for people, with the own car in the lower middle; agents never see it."""


def camera_array(camera: CameraParams) -> NDArray[np.float32]:
    """Packs the camera for the kernels, which take it as an argument so that a change needs no recompilation.

    Returns:
        [5] float32: metres behind the car, metres above it, sine and cosine of the downward pitch, and the focal
        length in half image widths.
    """
    (pitch_sine, half_sine), (pitch_cosine, half_cosine) = sin_cos(np.radians([camera.pitch_deg, camera.fov_deg / 2.0]))
    numbers = (camera.back_m, camera.height_m, pitch_sine, pitch_cosine, half_cosine / half_sine)
    return np.array(numbers, dtype=np.float32)


class FrameRenderer:
    """Draws the views of all cars in one kernel call, without the cars.

    A frame depends only on its own pose and zone, bit for bit, not on the rest of the batch. Not thread-safe.
    """

    def __init__(
        self, poses: NDArray[np.float32], zone_index: NDArray[np.int64], scene: Scene, camera: NDArray[np.float32]
    ) -> None:
        """Keeps references to the arrays; the caller may go on writing to them.

        Args:
            poses: [N, 12] contiguous position and rotation of every car; longer rows are allowed.
            zone_index: [N] contiguous zone of every car; road is drawn from there ahead and back.
            scene: from `bake_scene`.
            camera: [5] from `camera_array`.

        Raises:
            UserError: if an array has a wrong shape, type or layout.
        """
        num, message = len(poses), ""
        if poses.dtype != np.float32 or poses.shape != (num, max(poses.shape[-1], POSE_SIZE)) or not _is_dense(poses):
            message = f"contiguous float32 poses of {POSE_SIZE} numbers, got {poses.dtype} {poses.shape}"
        elif zone_index.dtype != np.int64 or zone_index.shape != (num,) or not _is_dense(zone_index):
            message = f"as many int64 zones as poses, {num}, got {zone_index.dtype} {zone_index.shape}"
        elif camera.dtype != np.float32 or camera.shape != (CAMERA_SIZE,):
            message = f"a camera of {CAMERA_SIZE} float32 numbers, got {camera.dtype} {camera.shape}"
        if message:
            raise UserError(f"a renderer needs {message}")
        self._camera = np.ascontiguousarray(camera)
        # Copies read-only arrays, for which numba would compile the kernel once more.
        self._poses = np.require(poses, requirements=["C", "W"])
        self._zone_index = np.require(zone_index, requirements=["C", "W"])
        self._scene, self._scratch = scene, new_scratch()

    def render(self, out: NDArray[np.uint8]) -> None:
        """Draws all frames directly into `out` [N, H, W], contiguous uint8.

        Raises:
            UserError: if `out` has a wrong shape, type or layout, or a pose is not finite.
        """
        if out.dtype != np.uint8 or out.ndim != 3 or len(out) != len(self._poses) or not _is_dense(out):
            message = f"{len(self._poses)} frames need a contiguous uint8 array [N, H, W], got {out.dtype} {out.shape}"
            raise UserError(message)
        _check_drawn(
            draw_frames(self._poses, self._zone_index, self._scene, self._camera, _NO_CARS, self._scratch, out)
        )


def render_rgb(
    scene: Scene,
    pose: NDArray[np.float32],
    zone_index: int,
    width: int,
    height: int,
    others: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """Draws one frame for people: the own car from behind, other cars as ghosts of another colour.

    The frame is drawn at twice the size and downsampled.

    Args:
        scene: from `bake_scene`.
        pose: [12] position and rotation of the own car; a longer row is allowed.
        zone_index: its zone.
        width: pixels.
        height: pixels.
        others: [M, 12] poses of other cars, drawn where they are in view.

    Returns:
        [H, W, 3] uint8.

    Raises:
        UserError: if the own pose is not finite.
    """
    cars = np.array(pose[None, :POSE_SIZE], np.float32)
    if others is not None and len(others):
        cars = np.concatenate([cars, np.asarray(others, np.float32)[:, :POSE_SIZE]])
    large = np.empty((3, 1, 2 * height, 2 * width), np.uint8)
    lens = camera_array(_PEOPLE)
    scratch = new_scratch()
    for channel in range(3):
        tinted = scene._replace(ink=np.ascontiguousarray(RGB_INK[:, channel]))
        _check_drawn(draw_frames(cars[:1], np.array([zone_index]), tinted, lens, cars, scratch, large[channel]))
    frame = np.empty((height, width, 3), np.uint8)
    for channel in range(3):
        # Reads two neighbouring pixels as one uint16: sequential reads are twice as fast as strided ones.
        pairs = large[channel, 0].view(np.uint16)
        sums = (pairs & 0xFF) + (pairs >> 8)
        frame[:, :, channel] = (sums[0::2] + sums[1::2]) >> 2
    return frame


def _is_dense(array: NDArray) -> bool:
    return array.flags.c_contiguous


def _check_drawn(bad_pose: int) -> None:
    if bad_pose >= 0:
        raise UserError(f"pose {bad_pose} holds a value that is not finite")
