"""Settings of greedy evaluation races: section `evaluate`."""

from __future__ import annotations

from rulka.contracts.section import Seed, Several, key
from rulka.simulator.race_params import LineStartParams
from rulka.tracks.params import TracksParams


class EvaluateParams(LineStartParams):
    """Stage `evaluate`: greedy races from fixed seeds."""

    tracks: tuple[TracksParams, ...] = key((), "Tracks to race on besides that of data/races.", strict=False)
    guests: tuple[str, ...] = key((), "Further contestants, each MODULE:FUNCTION; docs/library.md.", strict=False)
    num_races: Several = key(20, "Races of each contestant.")
    seed: Seed = key(100, "Seed of starts; that of race k is drawn from seed + k.")
    video_width: int = key(960, "Width of the video in pixels.", ge=64, le=7680, multiple_of=2)
    video_height: int = key(540, "Height of the video in pixels.", ge=64, le=7680, multiple_of=2)
    video_fps: int = key(25, "Frames per second of the video, which plays in real time.", ge=1, le=240)
