"""The benchmark of IQN, to its end, on a small batch."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import iqn
from benchmarks.agents import agent_spec


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BATCH": 16,
        "NUM_ROUNDS": 1,
        "GEMM_SIZE": 64,
        "DEVICE_BATCHES": (16,),
        "DEVICE_STEPS": 1,
    }.items():
        monkeypatch.setattr(iqn, name, value)


@pytest.mark.slow
def test_updates_and_decisions_are_timed(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["iqn", "--json"])
    iqn.main()
    times = json.loads(capsys.readouterr().out)["cpu_ms"]
    assert set(times["update, batch 16"]) == {
        "naive",
        *(f"{name} {precision}" for name in ("rulka", "as shipped") for precision in ("float32", "bfloat16")),
    }
    assert all(time_ms > 0.0 for group in times.values() for time_ms in group.values())


def test_iqn_takes_the_settings_of_every_batch_that_is_measured_on_a_device() -> None:
    for batch_size in iqn.DEVICE_BATCHES:
        spec = agent_spec(iqn.reference_params(), "iqn", "float32", **iqn.device_settings(batch_size))
        assert spec.settings.batch_size == batch_size


def test_updates_on_a_device_are_timed(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["iqn", "--json", "--device", "cpu"])
    iqn.main()
    rates = json.loads(capsys.readouterr().out)
    assert rates["float32, batch 16: samples/s"] > 0.0
