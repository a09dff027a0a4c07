"""Shows frames in a window at a given rate."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rulka.machine.errors import UserError

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


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
        message = "there is no screen: neither DISPLAY nor WAYLAND_DISPLAY is set"
        raise UserError(message, hint=hint)
