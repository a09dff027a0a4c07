"""The rules of the board: its twenty tracks, the starts on each, their reference times, and hashes of all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable, action_table
from rulka.evaluation.race import EvaluationRaces, starts
from rulka.params import reference_params
from rulka.reference.lap import physics_hash, read_reference, shipped_lap
from rulka.simulator.simulator import Simulator
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.difficulty import DIFFICULTIES, VARIED
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track, geometry_hash

HELD_OUT = tuple((kind, seed) for kind in (*DIFFICULTIES, VARIED) for seed in (91_001, 91_002))
"""Difficulty and seed of the held-out tracks; `train.tracks` counts up from seeds that are far smaller."""
NUM_CAMPAIGN, NUM_STARTS = len(CAMPAIGN), 20
FIRST_SEED = 100
MAX_TICKS = 12_100
"""Longest race: 120 s, and a last decision that began before."""
NUM_HASHED = 60


class Rules(NamedTuple):
    """What all entries share.

    Attributes:
        races: of each track: track, settings and seeds.
        uids: [T] of the tracks.
        shapes: [T] hashes of the tracks, to a millimetre.
        starts: [T, S, 2] float32 metres left of the line and heading in radians.
        reference_ms: [T] times of the reference laps.
        physics: hash of the car's parameters.
        code: hash of where cars end that random inputs drive on each track: other code that moves a car otherwise, or
            another track, has another.
    """

    races: tuple[EvaluationRaces, ...]
    uids: tuple[str, ...]
    shapes: tuple[str, ...]
    starts: NDArray[np.float32]
    reference_ms: NDArray[np.int64]
    physics: str
    code: str


@cache
def rules() -> Rules:
    """Returns the rules of the board, with the package's own parameters."""
    held_out = [generate_track(seed, 800.0, 14.0, 0.12, 150.0, kind) for kind, seed in HELD_OUT]
    return rules_on([*(campaign_track(entry.slug) for entry in CAMPAIGN), *held_out])


def rules_on(tracks: Sequence[Track]) -> Rules:
    """Returns the rules on some tracks with a reference lap."""
    params = reference_params()
    evaluate = params.evaluate.model_copy(update={"num_races": NUM_STARTS, "seed": FIRST_SEED})
    races = tuple(EvaluationRaces.of(track, params, evaluate) for track in tracks)
    return Rules(
        races=races,
        uids=tuple(track.uid for track in tracks),
        shapes=tuple(map(geometry_hash, tracks)),
        starts=np.stack([np.stack([starts(each).lateral_m, starts(each).heading_rad], axis=1) for each in races]),
        reference_ms=np.array([_reference_ms(track) for track in tracks]),
        physics=physics_hash(params.simulator),
        code=_code_hash(races),
    )


def cars_at_start(races: EvaluationRaces, table: ActionTable) -> Simulator:
    """Returns a car for each start of a track."""
    cars = Simulator(races.track, NUM_STARTS, races.settings.simulator, table)
    cars.reset(np.ones(NUM_STARTS, np.bool_), *starts(races))
    return cars


def _reference_ms(track: Track) -> int:
    path = shipped_lap(track)
    assert path is not None, f"no lap comes with {track.uid}"
    return read_reference(path, action_table(5)).time_ms


def _code_hash(races: tuple[EvaluationRaces, ...]) -> str:
    digest, rng = hashlib.sha256(), np.random.default_rng(0)
    for each in races:
        cars = cars_at_start(each, action_table(5))
        for _ in range(NUM_HASHED):
            cars.step(rng.choice(4, NUM_STARTS, p=(0.8, 0.08, 0.08, 0.04)))
        digest.update(cars.save().tobytes())
    return digest.hexdigest()[:16]
