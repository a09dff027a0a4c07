from __future__ import annotations

import pytest
import torch
from runtime_fakes import RACE_STEPS, SPEC, FakeActor, FakeCars, FakeNetwork

from rulka.runtime.greedy_check import BestWeights, CheckResult, GreedyCheck


def _nothing() -> None:
    pass


def _tensors(value: float) -> dict[str, torch.Tensor]:
    network = FakeNetwork()
    with torch.no_grad():
        network.weight.fill_(value)
    return network.state_dict()


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (CheckResult(8, 1.0, 30.0, 600.0), CheckResult(8, 0.875, 20.0, 580.0)),  # finishing counts more than speed
        (CheckResult(8, 1.0, 29.9, 600.0), CheckResult(8, 1.0, 30.0, 600.0)),
        (CheckResult(8, 0.125, 50.0, 90.0), CheckResult(8, 0.0, None, 500.0)),
        (CheckResult(8, 0.0, None, 120.0), CheckResult(8, 0.0, None, 100.0)),
    ],
)
def test_rank(better: CheckResult, worse: CheckResult) -> None:
    assert better.rank > worse.rank


def test_one_race_in_each_car_by_hand() -> None:
    """Fake car k takes 7 decisions of 50 ms and k ms; odd ones are cut, so of cars 0, 1, 2 two finish in 351 ms."""
    steps = []
    check = GreedyCheck(FakeCars(3, start_anywhere=0.0), FakeActor(0), SPEC, lambda: steps.append(1))
    result = check.run(_tensors(1.0), seed=1, num_races=4)
    assert result == CheckResult(6, pytest.approx(2 / 3), pytest.approx(0.351), 2.0 * RACE_STEPS)
    assert len(steps) == 2 * RACE_STEPS  # two rounds of three for the four that were asked for


def test_best_are_kept_as_copies_and_race_once_more() -> None:
    best, weights = BestWeights(num_kept=2), _tensors(0.0)
    for env_steps, finish_rate in [(0, 0.5), (100, 0.25), (200, 0.75)]:
        weights["weight"].fill_(env_steps)
        best.offer(env_steps, CheckResult(4, finish_rate, 20.0, 50.0), weights)
    saved = best.state_dict()
    assert [(c["env_steps"], float(c["tensors"]["weight"][0])) for c in saved] == [(200, 200.0), (0, 0.0)]
    again = BestWeights(num_kept=2)
    again.load_state_dict(saved)
    chosen = again.choose(GreedyCheck(_SlowWithHighWeights(), FakeActor(0), SPEC, _nothing), seed=2, num_races=3)
    assert chosen.env_steps == 0, "the result of the last races counts, not that of the first"


def test_newer_of_equals_is_taken() -> None:
    best = BestWeights(num_kept=1)
    for env_steps in (0, 100):
        best.offer(env_steps, CheckResult(4, 0.5, 20.0, 50.0), _tensors(0.0))
    assert best.state_dict()[0]["env_steps"] == 100


class _SlowWithHighWeights(FakeCars):
    """Becomes slower with every check: the candidate that races first wins, unless results are mixed up."""

    def __init__(self) -> None:
        super().__init__(3, start_anywhere=0.0)
        self._num_resets = 0

    def reset_into(self, image_out, floats_out, potential_out, seed: int) -> None:
        self._num_resets += 1
        super().reset_into(image_out, floats_out, potential_out, seed)

    def step_into(self, actions, image_out, floats_out, potential_out):
        step = super().step_into(actions, image_out, floats_out, potential_out)
        step.race_time_ms[:] = 10_000 // self._num_resets
        return step
