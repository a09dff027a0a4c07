"""The record of an agent whose decisions are chunks of actions: real cars, a real network that likes full gas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from runtime_fakes import record_in

from rulka.actions import Choices, action_table
from rulka.agents.iqn_actor import IqnActor
from rulka.agents.spec import AgentSpec
from rulka.envs.vector import RaceVectorEnv
from rulka.observation import num_floats, reference_normalisation
from rulka.params import Params, reference_params
from rulka.runtime.greedy_check import GreedyCheck, Records
from rulka.training.run import block_spec
from tests.conftest import straight_track


def reckless_actor(params: Params) -> IqnActor:
    network = params.network.model_copy(update={"actions_per_decision": 5, "dense_hidden": 16, "float_hidden": 8})
    normalisation = reference_normalisation().for_chunks(5)
    sizes = (params.observation, params.encoder, network, params.iqn)
    spec = AgentSpec("iqn", *sizes, Choices(12, 5), normalisation, precision="float32")
    actor = IqnActor(spec, 0)
    with torch.no_grad():
        actor.network.output_layers()[0].bias[::12] += 100.0
    return actor


def test_a_record_has_every_action_and_its_values(tmp_path: Path) -> None:
    params = reference_params()
    track = straight_track(80.0)
    spec = block_spec(
        params.observation, params.train.model_copy(update={"cars_per_collector": 2}), action_table(5, 5), num_floats(5)
    )
    assert (spec.num_floats, spec.layout()["action"][0][2:]) == (num_floats(5), (5,))
    cars = RaceVectorEnv(2, track, actions_per_decision=5, start_anywhere=0.0, max_race_s=30.0).batch
    check, records = GreedyCheck(cars, reckless_actor(params), spec, lambda: None), Records(tmp_path)
    tensors = reckless_actor(params).network.state_dict()
    result = check.run(tensors, seed=1, num_races=2)
    assert result.finish_rate > 0.0
    records.offer(check, tensors, 10, result)
    race = record_in(tmp_path)
    assert race["time_ms"] == records.time_ms == result.fastest.time_ms, "driven again, in the same time"
    assert race["action"].shape == (len(race["floats"]), 5)
    assert not race["action"].any()
    assert race["floats"].shape[1] == 264
    assert race["q_value"].shape == (len(race["floats"]), 5, 12)
    np.testing.assert_array_equal(race["q_value"].argmax(axis=2), race["action"])
