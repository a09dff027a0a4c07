"""The parts of the runtime's benchmark that no run of the pipeline takes."""

from __future__ import annotations

import pytest

from benchmarks import runtime
from rulka.device import CPU
from rulka.params import read_params


@pytest.mark.slow
def test_central_inference_is_timed_for_every_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "CENTRAL_CARS", (8,))
    rates = runtime.central(read_params(), CPU, seconds=0.01)
    assert set(rates) == {"ppo, 8 cars", "iqn, 8 cars"}
    assert all(rate > 0.0 for rate in rates.values())
