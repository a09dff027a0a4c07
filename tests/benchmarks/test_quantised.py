"""The benchmark of quantised actors, of an agent that has learned nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import quantised
from rulka.actions import action_table
from rulka.agents.algorithms import make_actor
from rulka.agents.quantisation import ActingPrecisionError, check_acting_precision
from rulka.agents.spec import AgentSpec
from rulka.artifacts import Artifact, sight_contract
from rulka.device import CPU
from rulka.observation import reference_normalisation
from rulka.params import read_params
from rulka.training.run import agent_config
from tests.conftest import straight_track


def test_a_row_for_each_precision_beside_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        check_acting_precision("int8", CPU)
    except ActingPrecisionError as error:
        pytest.skip(str(error))  # sums would saturate
    sizes = {"CARS_DRIVEN": 2, "NUM_RACES": 2, "NUM_ROUNDS": 1, "CARS_TIMED": {1: 1}, "NUM_VERSIONS": 1}
    for name, value in sizes.items():
        monkeypatch.setattr(quantised, name, value)
    monkeypatch.setattr(quantised, "precisions", lambda: ["float32", "int8"])
    params, table = read_params(), action_table(5)
    params = params.model_copy(update={"race_end": params.race_end.model_copy(update={"max_race_s": 1.0})})
    spec = AgentSpec(
        "ppo", params.observation, params.encoder, params.network, params.ppo, table.space, reference_normalisation()
    )
    tensors = dict(make_actor(spec, 0).network.state_dict())
    sight = sight_contract(params.observation)
    artifact = Artifact("agent", tensors, agent_config(spec), sight, table, spec.normalisation)
    track = tmp_path / "track.npz"
    straight_track().save(track)
    rows = quantised.measure(quantised.Agent(artifact, track, params))
    exact, low = rows["float32"], rows["int8"]
    assert (exact.same_action, exact.finish_rate, exact.median_s) == (1.0, 0.0, None)
    assert 0.9 < low.same_action <= 1.0
    assert low.version_bytes < 0.4 * exact.version_bytes
    assert low.decisions_per_s is not None
    assert np.isfinite(low.decisions_per_s[1])
