"""Trainings of real agents in real cars on two nodes, threads here: from blocks that cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nodes_here import ClusterHere, nodes, until_all_work
from real_run import run_spec
from test_exact_resume import small_params

from rulka.agents.params import ALGORITHM_NAMES
from rulka.runtime import connect as connecting
from rulka.runtime.connect import connect
from rulka.runtime.stop import StopSignals


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=[] if name == "iqn" else pytest.mark.slow) for name in ALGORITHM_NAMES],
)
@pytest.mark.filterwarnings("error:The given NumPy array")
def test_every_algorithm_learns_from_blocks_where_they_came(
    tmp_path: Path, track: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    cluster = ClusterHere(nodes(1, 1))
    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", lambda _address: cluster)
    spec = run_spec(small_params(algorithm, {}, cluster="ray", num_collectors=2, checkpoint_s=60.0), track, tmp_path)
    with StopSignals() as stop, connect(spec, stop) as loop:
        heard: set[int] = set()
        insert = loop._learner.insert

        def note(block: Any, collector: int, version: int) -> None:
            heard.add(collector)
            insert(block, collector, version)

        loop._learner.insert = note  # type: ignore[method-assign]
        until_all_work(loop._collectors)
        outcome = loop.run()
    assert outcome.state.env_steps == spec.train.max_env_steps
    assert outcome.state.gradient_steps > 0
    assert heard == {0, 1}
    assert cluster.is_closed
