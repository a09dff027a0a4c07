"""Each benchmark of the runtime in a short version: it runs to its end and prints what its table needs."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from benchmarks import cluster, learners, link, order, runtime
from rulka.params import read_params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "options", "parts"),
    [
        (runtime, "--seconds 2", {"alone", "together", "inference", "central"}),
        (learners, "--env-steps 16384 --rounds 1", {f"ppo, learners {n}, collectors {c}" for n, c in learners.PLANS}),
        (cluster, "--blocks 1 --rounds 1", {"processes", "cluster"}),
        (order, "--env-steps 8192 --rounds 1", {"ppo, exact beside free", "iqn, exact beside free"}),
        (link, "", {"target_cycles_per_s", "with the state"}),
        (link, "--engine", {"target_cycles_per_s", "with the state", "the plugin"}),
    ],
)
def test_it_comes_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: ModuleType,
    options: str,
    parts: set[str],
) -> None:
    params = read_params()
    learns_at_once = {
        "ppo": params.ppo.model_copy(update={"value_warmup_steps": 0}),
        "iqn": params.iqn.model_copy(update={"buffer_steps": 20_000, "start_steps": 1024, "warmup_steps": 0}),
    }
    monkeypatch.setattr(module, "read_params", lambda: params.model_copy(update=learns_at_once), raising=False)
    monkeypatch.setattr(runtime, "CENTRAL_CARS", (8,))
    monkeypatch.setattr(link, "TRIES", 1)
    monkeypatch.setattr(link, "TRY_S", 0.05)
    monkeypatch.setattr(link, "HELD_S", 0.1)
    monkeypatch.setattr(sys, "argv", [module.__name__, "--json", *options.split()])
    module.main()
    found = json.loads(capsys.readouterr().out)
    assert parts <= set(found)
