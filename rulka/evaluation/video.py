"""The video of a race: seen from behind one car, with others as ghosts, and what the driver sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.evaluation.hud import HudState, HudTexts, draw_hud, split_at
from rulka.evaluation.minimap import Minimap
from rulka.evaluation.motion import Moment, Motion
from rulka.evaluation.mp4 import write_mp4
from rulka.evaluation.result import RaceResult
from rulka.params import CameraParams, EvaluateParams, ObservationParams
from rulka.simulator.camera import camera_array
from rulka.simulator.render import POSE_SIZE, render_frames, render_rgb
from rulka.simulator.scene import bake_scene
from rulka.tracks.track import Track

BEFORE_START_S = 0.6
AFTER_END_S = 1.6
"""The first and the last picture stand still for this long."""


@dataclass(frozen=True)
class VideoRace:
    """What a video shows.

    Attributes:
        race: whose car is followed.
        ghosts: further cars, started at the same moment; splits are compared with the first one's.
        track: where.
        texts: what stands in the corner.
    """

    race: RaceResult
    ghosts: tuple[RaceResult, ...]
    track: Track
    texts: HudTexts


def write_video(
    path: Path,
    shown: VideoRace,
    camera: CameraParams,
    observation: ObservationParams,
    evaluate: EvaluateParams,
    on_frame: Callable[[int, int], None] | None = None,
) -> None:
    """Writes the video of a race in real time.

    Args:
        path: MP4 file.
        shown: the race.
        camera: through which the agent sees.
        observation: size of what it sees.
        evaluate: size and rate of the video.
        on_frame: called after each frame with how many there are so far and in all.

    Raises:
        VideoError: if no encoder is installed.
    """
    write_mp4(path, race_frames(shown, camera, observation, evaluate, on_frame), evaluate.video_fps)


def race_frames(
    shown: VideoRace,
    camera: CameraParams,
    observation: ObservationParams,
    evaluate: EvaluateParams,
    on_frame: Callable[[int, int], None] | None = None,
) -> Iterator[NDArray[np.uint8]]:
    """Yields the pictures [H, W, 3] of a race in order, `evaluate.video_fps` a second; arguments of `write_video`."""
    painter = _Painter(shown, camera, observation, (evaluate.video_width, evaluate.video_height))
    times_ms = frame_times_ms(painter.motion.duration_ms, evaluate.video_fps)
    for number, time_ms in enumerate(times_ms, start=1):
        yield painter.paint(time_ms)
        if on_frame:
            on_frame(number, len(times_ms))


def frame_times_ms(duration_ms: int, fps: int) -> NDArray[np.float64]:
    """Returns the race time shown by each frame; time stands still before the start and after the end."""
    num_frames = round((BEFORE_START_S + duration_ms / 1000.0 + AFTER_END_S) * fps)
    return np.clip((np.arange(num_frames) / fps - BEFORE_START_S) * 1000.0, 0.0, duration_ms)


class _Painter:
    """Paints the picture of any moment."""

    def __init__(
        self, shown: VideoRace, camera: CameraParams, observation: ObservationParams, size: tuple[int, int]
    ) -> None:
        self.motion = Motion(shown.race, shown.track)
        self._ghosts = [Motion(ghost, shown.track) for ghost in shown.ghosts]
        self._texts = shown.texts
        self._scene = bake_scene(shown.track)
        self._camera = camera_array(camera)
        self._view = np.zeros((1, observation.height, observation.width), np.uint8)
        self._size = size
        self._minimap = Minimap(shown.track, size[1])

    def paint(self, time_ms: float) -> NDArray[np.uint8]:
        """Returns the picture [H, W, 3] at a race time."""
        moment = self.motion.at(time_ms)
        others = np.array([ghost.at(time_ms).pose for ghost in self._ghosts], np.float32).reshape(-1, POSE_SIZE)
        width, height = self._size
        frame = render_rgb(self._scene, moment.pose, moment.zone_index, width, height)
        if len(others):
            with_ghosts = render_rgb(self._scene, moment.pose, moment.zone_index, width, height, others)
            frame = ((frame.astype(np.uint16) + with_ghosts) // 2).astype(np.uint8)  # the own car shows through them
        draw_hud(frame, self._texts, self._hud_state(moment))
        self._minimap.draw(frame, moment.pose[:3], others[:, :3])
        return frame

    def _hud_state(self, moment: Moment) -> HudState:
        rival = self._ghosts[0].race if self._ghosts else None
        split, is_ahead = split_at(self.motion.race, rival, moment.time_ms)
        return HudState(moment.time_ms, moment.speed_mps, moment.controls, split, is_ahead, self._seen(moment))

    def _seen(self, moment: Moment) -> NDArray[np.uint8]:
        """Returns the image on which the driver's current action rests."""
        cars = self.motion.race.cars[moment.seen : moment.seen + 1]
        zone_index = self.motion.zone_index[moment.seen : moment.seen + 1]
        render_frames(cars, zone_index, self._scene, self._camera, self._view)
        return self._view[0]
