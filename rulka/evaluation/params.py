"""Greedy races of finished drivers: section `evaluate`."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationError

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
        """Returns these parameters with the races that a command asks for, within the same limits.

        Args:
            num_races: None keeps what there is.
            seed: of the first start; None keeps what there is.

        Raises:
            UserError: if these are out of range.
        """
        asked = {name: value for name, value in (("num_races", num_races), ("seed", seed)) if value is not None}
        try:
            return type(self).model_validate(dict(self) | asked)  # `model_copy` would check nothing
        except ValidationError as error:
            from rulka.params.problems import problems_of  # which imports this

            raise UserError("; ".join(problems_of(error, type(self)))) from error
