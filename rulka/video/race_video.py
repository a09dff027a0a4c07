"""Renders a race as MP4: chase camera behind one car, ghosts, overlay and the driver's own view."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TextIO

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

from rulka.contracts.observation_params import ObservationParams
from rulka.evaluation.params import EvaluateParams
from rulka.evaluation.results import RaceResult
from rulka.machine.errors import UserError
from rulka.machine.progress import Progress
from rulka.simulator.params import CameraParams
from rulka.simulator.render import POSE_SIZE, FrameRenderer, camera_array, render_rgb
from rulka.simulator.scene import Scene, bake_scene
from rulka.video.hud import HudTexts, Minimap, draw_hud, split_at
from rulka.video.motion import Moment, Motion

MAX_THREADS = 8
AHEAD = 4
"""Frames rendered ahead per thread."""
BEFORE_START_S = 0.6
AFTER_END_S = 1.6
"""How long the first and the last frame stand still."""


@dataclass(frozen=True)
class VideoRace:
    """Content of a video.

    Attributes:
        race: the followed car's race.
        ghosts: races of further cars, started at the same moment; splits compare with the first.
        texts: constant texts of the overlay.
    """

    race: RaceResult
    ghosts: tuple[RaceResult, ...]
    texts: HudTexts


def write_video(
    path: Path,
    shown: VideoRace,
    camera: CameraParams,
    observation: ObservationParams,
    evaluate: EvaluateParams,
    stream: TextIO | None = None,
) -> None:
    """Writes a video that plays in real time, with a progress bar.

    Args:
        path: MP4 file.
        shown: content of the video.
        camera: the agent's camera.
        observation: size of the agent's image.
        evaluate: size and frame rate of the video.
        stream: where progress is shown; standard output when None.

    Raises:
        UserError: if no encoder is installed.
    """
    num_frames = len(frame_times_ms(shown.race.duration_ms, evaluate.video_fps))
    with Progress("video", num_frames, "frames", stream=stream) as bar:
        write_mp4(path, race_frames(shown, camera, observation, evaluate), evaluate.video_fps, bar.advance)


def race_frames(
    shown: VideoRace, camera: CameraParams, observation: ObservationParams, evaluate: EvaluateParams
) -> Iterator[NDArray[np.uint8]]:
    """Yields the frames [H, W, 3] of a race in order, `evaluate.video_fps` a second; arguments as in `write_video`."""
    renderer = _Renderer(shown, camera, observation, (evaluate.video_width, evaluate.video_height))
    times_ms = frame_times_ms(shown.race.duration_ms, evaluate.video_fps)
    num_threads = min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:  # the render kernels release the GIL
        for first in range(0, len(times_ms), AHEAD * num_threads):
            yield from pool.map(renderer.render, times_ms[first : first + AHEAD * num_threads])


def frame_times_ms(duration_ms: int, fps: int) -> NDArray[np.float64]:
    """Returns the race time of each frame; the clock stands still before the start and after the end."""
    num_frames = round((BEFORE_START_S + duration_ms / 1000.0 + AFTER_END_S) * fps)
    return np.clip((np.arange(num_frames) / fps - BEFORE_START_S) * 1000.0, 0.0, duration_ms)


def draw_race(
    scene: Scene, pose: NDArray[np.float32], zone_index: int, width: int, height: int, ghosts: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Draws the followed car, and ghosts through which it shows.

    Args:
        scene: from `bake_scene`.
        pose: [12] position and rotation of the car.
        zone_index: its zone.
        width: pixels.
        height: pixels.
        ghosts: [M, 12] poses of the ghosts; M may be 0, which takes half the time.

    Returns:
        [H, W, 3] uint8.
    """
    frame = render_rgb(scene, pose, zone_index, width, height)
    if len(ghosts):
        with_ghosts = render_rgb(scene, pose, zone_index, width, height, ghosts)
        # Mean of both images.
        frame = (frame & with_ghosts) + ((frame ^ with_ghosts) >> np.uint8(1))
    return frame


class _Renderer:
    """Renders the frame at any race time; thread-safe."""

    def __init__(
        self, shown: VideoRace, camera: CameraParams, observation: ObservationParams, size: tuple[int, int]
    ) -> None:
        track = shown.race.track
        self._motion = Motion(shown.race)
        self._ghosts = [Motion(ghost) for ghost in shown.ghosts]
        self._texts = shown.texts
        self._scene = bake_scene(track)
        self._camera = camera_array(camera)
        self._view_size = (1, observation.height, observation.width)
        self._size = size
        self._minimap = Minimap(track, size[1])

    def render(self, time_ms: float) -> NDArray[np.uint8]:
        """Returns the frame [H, W, 3] at a race time: track, cars and overlay."""
        moment = self._motion.at(time_ms)
        others = np.array([ghost.at(time_ms).pose for ghost in self._ghosts], np.float32).reshape(-1, POSE_SIZE)
        width, height = self._size
        image = Image.fromarray(draw_race(self._scene, moment.pose, moment.zone_index, width, height, others))
        rival = self._ghosts[0].race if self._ghosts else None
        split = split_at(self._motion.race, rival, moment.time_ms)
        draw_hud(image, self._texts, moment, split, self._seen(moment))
        self._minimap.draw(image, moment.pose[:3], others[:, :3])
        return np.array(image)

    def _seen(self, moment: Moment) -> NDArray[np.uint8]:
        """Returns the image that the driver's current action was based on."""
        cars = self._motion.race.cars[moment.seen : moment.seen + 1]
        zone_index = self._motion.zone_index[moment.seen : moment.seen + 1]
        view = np.zeros(self._view_size, np.uint8)
        FrameRenderer(cars, zone_index, self._scene, self._camera).render(view)
        return view[0]


ENCODERS: dict[str, dict[str, str]] = {
    "libx264": {"crf": "24", "preset": "veryfast", "threads": "2"},
    "libopenh264": {"b": "2500000"},
    "libvpx-vp9": {"crf": "36", "b": "0", "deadline": "realtime", "cpu-used": "6"},
}
"""Encoders by preference, with their settings; every current browser plays their output."""


def write_mp4(
    path: Path, frames: Iterable[NDArray[np.uint8]], fps: int, on_frame: Callable[[], None] = lambda: None
) -> None:
    """Writes a video.

    Args:
        path: file to write.
        frames: images [H, W, 3], all of one size, H and W even.
        fps: frames a second.
        on_frame: called after each frame.

    Raises:
        UserError: if no encoder is available or `frames` is empty.
    """
    name = next((name for name in ENCODERS if name in av.codecs_available), None)
    if name is None:
        message = f"the installed package av has none of the encoders {', '.join(ENCODERS)}"
        raise UserError(message, hint="Install a build of av that has libx264.")
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as file:
        stream = file.add_stream(name, rate=fps, options=ENCODERS[name])
        assert isinstance(stream, VideoStream)
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, fps)
        num_frames = 0
        for image in frames:
            if num_frames == 0:
                stream.height, stream.width = image.shape[:2]
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
            num_frames += 1
            on_frame()
        if num_frames == 0:
            raise UserError("a video needs at least one frame")
        file.mux(stream.encode(None))
