"""Gymnasium environment of the game, with the observations, actions, rewards and infos of `rulka/Race-v0`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.envs.batch import Observation
from rulka.envs.game_race import GameRace
from rulka.envs.race import OneCarEnv
from rulka.envs.settings import read_track
from rulka.game.link import GameLink
from rulka.game.protocol import BASE_PORT
from rulka.simulator.race_settings import KEYWORDS, RaceSettings, read_settings
from rulka.tracks.track import Track

NOT_OF_A_GAME = {"randomisation", "continuous", "races_per_start"} | {
    name for name in KEYWORDS if name.startswith("start_")
}
"""Fields without a keyword: the game sets the start, and its keys are either pressed or not."""


class GameEnv(OneCarEnv[GameRace]):
    """A race in the game: image [L, H, W] and 184 floats in, one of twelve actions out, every 50 ms of race time.

    With `actions_per_decision=5` an action is five of them, each held for 10 ms, and there are 264 floats.
    A race terminates at the finish or off the track, and is truncated if it takes too long, makes no progress, or loses
    its connection (`info["is_crashed"]`). The next `reset` then reconnects, and raises if that fails.
    """

    def __init__(
        self,
        track: Track | Path | str | None = None,
        port: int = BASE_PORT,
        host: str = "127.0.0.1",
        speed: float = 10.0,
        patience_s: float = 10.0,
        timeout_s: float = 20.0,
        render_mode: str | None = None,
        settings: RaceSettings | None = None,
        **keywords: Any,
    ) -> None:
        """Connects to the game.

        Args:
            track: line and gates of the map open in the game: a track, a slug of the campaign, a track file, or None
                for the generated track of the reference parameters.
            port: of the game's plugin.
            host: of the game.
            speed: factor of the race clock.
            patience_s: how long to retry connecting.
            timeout_s: longest wait for a message from the game.
            render_mode: None or "rgb_array", which shows the agent's frame.
            settings: of the races; None takes the reference parameters.
            **keywords: fields of `RaceSettings` that override `settings`, except those of `NOT_OF_A_GAME`.

        Raises:
            UserError: if a keyword is unknown or out of range.
            GameError: if no game can be reached.
        """
        super().__init__(read_settings(settings, keywords, KEYWORDS - NOT_OF_A_GAME), render_mode)
        link = GameLink(host, port, speed=speed, timeout_s=timeout_s, patience_s=patience_s)
        self.batch = GameRace(read_track(track), self.settings, link)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Rewinds to the start; see gymnasium's `Env.reset`. Nothing is random, so the seed has no effect.

        Raises:
            ClosedEnvironmentError: after `close`.
            GameError: if the connection is lost and cannot be restored.
        """
        super().reset(seed=seed, options=options)
        self.batch.reset()
        observation, info = self._look()
        return observation, info | {"is_crashed": False}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one decision; see `OneCarEnv.step`."""
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"is_crashed": self.batch.is_crashed}

    def render(self) -> NDArray[np.uint8] | None:
        """Returns the newest grey image as a picture [H, W, 3], or None without a render mode."""
        self.batch.check_open()
        return (
            None if self.render_mode is None else np.repeat(self.batch.frame_stack.stack[0, -1, :, :, None], 3, axis=2)
        )
