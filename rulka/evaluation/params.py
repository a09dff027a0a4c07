"""Greedy races of finished drivers: section `evaluate`."""

from __future__ import annotations

from typing import Self

from rulka.errors import UserError
from rulka.race_params import LineStartParams
from rulka.section import Seed, Several, key
from rulka.tracks.params import TracksParams


class EvaluateParams(LineStartParams):
    """Stage `evaluate`: greedy races from fixed seeds."""

    tracks: tuple[TracksParams, ...] = key((), "raced on too, beside the track of data/races", strict=False)
    num_races: Several = key(20, "races of each contestant")
    seed: Seed = key(100, "start k of a race is drawn from seed + k")
    video_width: int = key(960, "pixels", ge=64, le=7680, multiple_of=2)
    video_height: int = key(540, "pixels", ge=64, le=7680, multiple_of=2)
    video_fps: int = key(25, "frames a second of the video, which plays in real time", ge=1, le=240)

    def asked_for(self, num_races: int | None, seed: int | None) -> Self:
        """Returns these parameters with the races that a command asks for.

        Args:
            num_races: at least 1; None keeps what there is.
            seed: of the first start, in 0..2^32-1; None keeps what there is.

        Raises:
            UserError: if these are out of range.
        """
        if num_races is not None and num_races < 1:
            message = f"{num_races} races are too few: at least 1 is needed"
            raise UserError(message)
        if seed is not None and not 0 <= seed < 2**32:
            message = f"{seed} is no seed: it is a whole number from 0 to {2**32 - 1}"
            raise UserError(message)
        asked = {"num_races": num_races, "seed": seed}
        return self.model_copy(update={name: value for name, value in asked.items() if value is not None})
