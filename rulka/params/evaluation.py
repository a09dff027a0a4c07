"""Section `evaluate`."""

from __future__ import annotations

from pydantic import Field

from rulka.params.base import AngleDeg, LateralM, Section, Seed, Several


class EvaluateParams(Section):
    """Stage `evaluate`: greedy races from fixed seeds."""

    num_races: Several = Field(description="races of each contestant")
    seed: Seed = Field(description="start k of a race is drawn from seed + k")
    start_lateral_m: LateralM = Field(description="a race starts at most this far beside the line")
    start_heading_deg: AngleDeg = Field(description="and turned by at most this much")
    video_width: int = Field(ge=64, le=7680, multiple_of=2, description="pixels")
    video_height: int = Field(ge=64, le=7680, multiple_of=2, description="pixels")
    video_fps: int = Field(ge=1, le=240, description="frames a second of the video, which plays in real time")
