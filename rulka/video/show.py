"""Implements `rulka watch` for races: shows them together, in a window or as a video."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.machine.errors import UserError, counted
from rulka.params import Params
from rulka.stages.outputs import new_file
from rulka.video.race_video import race_frames, write_video
from rulka.video.sources import LEFT_TO_RIGHT, gather, sort_sources

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def show_races(
    sources: Sequence[Path],
    params: Params,
    *,
    track: str | None,
    num_races: int,
    out: Path | None,
    device: str | None = None,
) -> str:
    """Shows races together, in a window or as a video.

    Args:
        sources: Gbx files or folders of them, folders of agents or cloned policies, race datasets, files of reference
            laps, or slugs of campaign tracks for their bundled laps.
        params: race settings, and size and frame rate of the video.
        track: uid or file of the track on which agents race, see `rulka.video.sources.gather`.
        num_races: races of each agent and of each dataset.
        out: MP4 file to write; None opens a window.
        device: device of the agents' networks; see `rulka.machine.device.choose_device`.

    Returns:
        One line that describes what was shown.

    Raises:
        UserError: if there is no source or no screen, a source is of no known kind, or sources are of different tracks.
    """
    found = sort_sources(sources)
    if out is None:
        check_screen()  # before minutes of racing
    shown = gather(found, params, track, num_races, device)
    title, ghosts = shown.texts.title.replace(LEFT_TO_RIGHT, ""), counted(len(shown.ghosts), "ghost")
    said = f"{title} on {shown.race.track.name}, {ghosts}"
    size = (shown, params.simulator.camera, params.observation, params.evaluate)
    if out is None:
        show_frames(race_frames(*size), params.evaluate.video_fps, said)
        return said
    with new_file(out) as beside:
        write_video(beside, *size, sys.stderr)
    return f"{said}: {out.as_posix()}"


def show_frames(frames: Iterable[NDArray[np.uint8]], fps: int, title: str) -> None:
    """Shows all frames in turn, or until the window is closed or Escape is pressed.

    The space bar pauses. If rendering is slower than `fps`, the race plays slower; no frame is dropped.

    Args:
        frames: images [H, W, 3] of one size.
        fps: frames per second.
        title: window title.

    Raises:
        UserError: if there is no screen, or pygame is not installed.
    """
    check_screen()
    import pygame

    pygame.display.init()
    try:
        clock, is_paused = pygame.time.Clock(), False
        for frame in frames:
            surface = pygame.display.get_surface() or pygame.display.set_mode(frame.shape[1::-1])
            pygame.display.set_caption(title)
            pygame.surfarray.blit_array(surface, frame.swapaxes(0, 1))
            pygame.display.flip()
            is_first_look = True
            while is_first_look or is_paused:
                is_first_look = False
                for event in pygame.event.get():
                    is_key = event.type == pygame.KEYDOWN
                    if event.type == pygame.QUIT or (is_key and event.key == pygame.K_ESCAPE):
                        return
                    is_paused ^= is_key and event.key == pygame.K_SPACE
                clock.tick(fps)
    finally:
        pygame.display.quit()


def check_screen() -> None:
    """Raises UserError if no window can be opened."""
    hint = "Write a video instead: `rulka watch ... --out race.mp4`."
    if importlib.util.find_spec("pygame") is None:
        message = "a window needs the package pygame-ce, which is not installed"
        raise UserError(message, hint=f"Install it with `pip install 'rulka[window]'`. {hint}")
    has_x = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if sys.platform == "linux" and not has_x:
        raise UserError("there is no screen: neither DISPLAY nor WAYLAND_DISPLAY is set", hint=hint)
