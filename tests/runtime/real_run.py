"""A run of real agents and cars, without what the pipeline puts around it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.spec import AgentSpec
from rulka.observation import reference_normalisation
from rulka.params import Params
from rulka.runtime.parts import RaceSpec, block_spec, build_cars
from rulka.runtime.specs import RunSpec


def run_spec(params: Params, track: Path, folder: Path) -> RunSpec:
    """Returns a run of `params.train.algorithm` from scratch, in float32."""
    train = params.train
    ticks = params.actions.ticks_per_action
    race = RaceSpec(track, params.simulator, params.observation, params.rewards, ticks, train, params.race_end)
    spec = AgentSpec(
        train.algorithm,
        params.observation,
        params.network,
        params.algorithms[train.algorithm],
        12,
        reference_normalisation(),
        precision="float32",
    )
    return RunSpec(
        make_cars=partial(build_cars, race),
        make_actor=partial(make_actor, spec),
        make_learner=partial(make_learner, spec, 7),
        block=block_spec(params.observation, train),
        train=train,
        folder=folder,
        label="test",
    )
