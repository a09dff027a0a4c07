"""Gymnasium environment of one car."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rulka.contracts.schedule import Moment
from rulka.envs.batch import Observation, RaceBatch, RacingCars
from rulka.envs.picture import RENDER_FPS, RENDER_MODES, check_render_mode, pictures_per_s, race_picture
from rulka.envs.scoring import REWARD, TERMINATED, TRUNCATED
from rulka.envs.settings import STATE, action_space, check_options, observation_space, read_places, read_track
from rulka.simulator.race_settings import RaceSettings, read_settings
from rulka.tracks.track import Track

CarsT = TypeVar("CarsT", bound=RacingCars)


class OneCarEnv(gymnasium.Env[Any, Any], Generic[CarsT]):
    """Base class of environments with one car. Subclasses create `batch`.

    Attributes:
        settings: of the races.
        batch: the car.
    """

    metadata: dict[str, Any] = {"render_modes": [*RENDER_MODES], "render_fps": RENDER_FPS}  # noqa: RUF012 as in gymnasium
    batch: CarsT

    def __init__(self, settings: RaceSettings, render_mode: str | None) -> None:
        self.settings = settings
        self.metadata = self.metadata | {"render_fps": pictures_per_s(settings.table)}
        self.render_mode = check_render_mode(render_mode)
        self.observation_space = observation_space(settings)
        self.action_space = action_space(settings)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one decision.

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first reset, and after the end of a race.
            InvalidAction: if the action is not in the action space.
        """
        batch = self.batch
        batch.check_running()
        batch.advance([action])
        observation, info = self._look()
        measures, flags = batch.scores.measures[:, 0].tolist(), batch.scores.flags[:, 0].tolist()
        return observation, measures[REWARD], flags[TERMINATED], flags[TRUNCATED], info

    def set_moment(self, moment: Moment) -> None:
        """Sets the training progress of the run, for scheduled rewards; see `Scores`."""
        self.batch.set_moment(moment)

    def close(self) -> None:
        """Closes the environment: later steps and resets raise."""
        self.batch.close()

    def _look(self) -> tuple[Observation, dict[str, Any]]:
        """Returns the observation and info of the car."""
        observation, info = self.batch.look()
        car = {name: values[0] for name, values in observation.items()}
        return car, {name: values.item() for name, values in info.items()}


class RaceEnv(OneCarEnv[RaceBatch]):
    """A timed race: image [L, H, W] and 184 floats in, one of twelve actions out, every 50 ms.

    With `actions_per_decision=5` an action is five of them, each held for 10 ms, and there are 264 floats.
    With `continuous=True` an action is steer in [-1, 1] (positive right), gas and brake in [0, 1].

    The reward pays for progress along the centreline and charges for time. A race terminates at the finish or off the
    track, and is truncated if it takes too long or makes no progress.
    """

    def __init__(
        self,
        track: Track | Path | str | None = None,
        render_mode: str | None = None,
        settings: RaceSettings | None = None,
        **keywords: Any,
    ) -> None:
        """Bakes the track and places the car.

        Args:
            track: a track, a slug of the campaign, a track file, or None for the generated track of the reference
                parameters.
            render_mode: None or "rgb_array".
            settings: of the races; None takes the reference parameters.
            **keywords: fields of `RaceSettings` that override `settings`.

        Raises:
            UserError: if a keyword is unknown or out of range.
        """
        super().__init__(read_settings(settings, keywords), render_mode)
        self.batch = RaceBatch(read_track(track), self.settings, 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts a race; see gymnasium's `Env.reset`.

        Args:
            seed: of the generator; None continues it.
            options: start pose, see `rulka.simulator.race_start.Starts`; or "state", a result of
                `RaceBatch.state_dict`, including its generator unless a seed is given.

        Raises:
            ClosedEnvironmentError: after `close`.
            UserError: if an option is unknown or wrong.
            SimulatorError: if the start pose is not on the track, or the state belongs to another track.
        """
        given = check_options(options, (STATE,))
        places = read_places(given, 1)
        super().reset(seed=seed, options=options)
        batch = self.batch
        if STATE not in given:
            batch.reset([self.np_random], places=places)
        else:
            batch.load_state_dict(given[STATE])
            if seed is None and batch.generators:
                self.np_random = batch.generators[0]
            batch.generators = [self.np_random]
        return self._look()

    def render(self) -> NDArray[np.uint8] | None:
        """Returns a picture [480, 640, 3] of the car with speed, time and inputs, or None without a render mode."""
        self.batch.check_open()
        return None if self.render_mode is None else race_picture(self.batch, 0)
