"""A run of real agents and cars, without what the pipeline puts around it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rulka.actions import Choices, action_table
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.learner import Learner
from rulka.agents.spec import AgentSpec
from rulka.observation import reference_normalisation
from rulka.params import Params
from rulka.race_settings import RaceSettings
from rulka.runtime.specs import LearnerShare, RunSpec
from rulka.tracks.track import load_track
from rulka.training.races import Races
from rulka.training.run import block_spec, collecting_actor, share_of_agent


def learner_of(spec: AgentSpec, share: LearnerShare) -> Learner:
    """Returns one of several learners."""
    return make_learner(share_of_agent(spec, share), 7, share.device)


def run_spec(params: Params, track: Path, folder: Path) -> RunSpec:
    """Returns a run of `params.train.algorithm` from scratch, in float32."""
    train = params.train
    race = RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, params.rewards, train, 1
    )
    race = race.with_equal_starts(params.algorithms[train.algorithm].races_per_start)
    spec = AgentSpec(
        train.algorithm,
        params.observation,
        params.encoder,
        params.network,
        params.algorithms[train.algorithm],
        Choices(12),
        reference_normalisation(),
        precision="float32",
    )
    return RunSpec(
        make_cars=Races(race, [load_track(track)]).make_cars,
        make_actor=partial(make_actor, spec),
        make_collecting_actor=collecting_actor(spec, train),
        build_learner=partial(learner_of, spec),
        block=block_spec(params.observation, train, action_table(params.actions.ticks_per_action)),
        train=train,
        folder=folder,
        label="test",
    )
