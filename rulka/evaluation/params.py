"""Settings of greedy evaluation races: section `evaluate`."""

from __future__ import annotations

from rulka.contracts.section import Seed, Several, key
from rulka.simulator.race_params import LineStartParams
from rulka.tracks.params import TracksParams


class EvaluateParams(LineStartParams):
    """Stage `evaluate`: greedy races from fixed seeds."""

    tracks: tuple[TracksParams, ...] = key((), "raced on too, beside the track of data/races", strict=False)
    guests: tuple[str, ...] = key((), "functions that race too, each MODULE:FUNCTION; docs/library.md", strict=False)
    num_races: Several = key(20, "races of each contestant")
    seed: Seed = key(100, "start k of a race is drawn from seed + k")
    video_width: int = key(960, "pixels", ge=64, le=7680, multiple_of=2)
    video_height: int = key(540, "pixels", ge=64, le=7680, multiple_of=2)
    video_fps: int = key(25, "frames a second of the video, which plays in real time", ge=1, le=240)
