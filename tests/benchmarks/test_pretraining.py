"""The benchmark of Levels 0 and 1, to its end, on a few frames."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import pretraining
from rulka.params import Params, read_params
from rulka.pretraining.objectives import OBJECTIVES


def small_params() -> Params:
    params = read_params().model_dump()
    params["track"] |= {"length_m": 150.0}
    params["capture"] |= {"num_workers": 1}
    for level in ("pretrain", "clone"):
        params[level] |= {"batch_size": 8, "precision": "float32"}
    return Params.model_validate(params)


@pytest.mark.slow
def test_every_objective_and_the_clone_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"NUM_ROUNDS": 1, "NUM_BATCHES": 2, "NUM_DEMONSTRATIONS": 2}.items():
        monkeypatch.setattr(pretraining, name, value)
    monkeypatch.setattr(pretraining, "read_params", small_params)
    monkeypatch.setattr(sys, "argv", ["pretraining", "--json"])
    pretraining.main()
    rates = json.loads(capsys.readouterr().out.splitlines()[-1])["frames_per_s"]
    assert list(rates) == [*(params().kind for params in OBJECTIVES), "clone"]
    assert all(value > 0.0 for row in rates.values() for value in row.values())
