"""A run of real agents and cars, without what the pipeline puts around it."""

from __future__ import annotations

from pathlib import Path

from rulka.observation import reference_normalisation
from rulka.params import Params
from rulka.race_settings import RaceSettings
from rulka.runtime.specs import RunSpec
from rulka.tracks.track import load_track
from rulka.training import run
from rulka.training.races import Races


def run_spec(params: Params, track: Path, folder: Path) -> RunSpec:
    """Returns a run of `params.train.algorithm` from scratch."""
    train = params.train
    race = RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, params.rewards, train, 1
    )
    races = Races(race.with_equal_starts(params.algorithms[train.algorithm].races_per_start), [load_track(track)])
    spec = run.agent_spec(params, train.algorithm, races, reference_normalisation())
    return run.run_spec(races, spec, train, folder)
