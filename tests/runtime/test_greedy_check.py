"""Greedy checks, by hand; the weights that are chosen, and the record of a run, of chunks of actions too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime_fakes import NUM_ACTIONS, RACE_STEPS, SPEC, FakeActor, FakeCars, FakeNetwork, record_in

from rulka.agents.iqn.actor import IqnActor
from rulka.agents.shared.spec import AgentSpec
from rulka.contracts.actions import Choices, action_table
from rulka.contracts.observation import num_floats, reference_normalisation
from rulka.envs.vector import RaceVectorEnv
from rulka.params import Params, reference_params
from rulka.runtime.greedy_check import (
    RECORD_FILE,
    BestWeights,
    CheckResult,
    GreedyCheck,
    RaceKey,
    RaceOutcomes,
    Records,
)
from rulka.training.environment import block_spec
from tests.conftest import straight_track


def check_of(cars: FakeCars, *, is_by_return: bool = False) -> GreedyCheck:
    return GreedyCheck(cars, FakeActor(0), SPEC, lambda: None, is_by_return=is_by_return)


def _tensors(value: float) -> dict[str, torch.Tensor]:
    network = FakeNetwork()
    with torch.no_grad():
        network.weight.fill_(value)
    return network.state_dict()


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        # An unfinished race counts as speed 0: 20 m/s are better than three quarters of 25, not than seven eighths.
        (CheckResult(8, 1.0, 30.0, 20.0, 600.0, None), CheckResult(8, 0.75, 24.0, 18.75, 580.0, None)),
        (CheckResult(8, 0.875, 24.0, 21.875, 580.0, None), CheckResult(8, 1.0, 30.0, 20.0, 600.0, None)),
        (CheckResult(8, 0.125, 50.0, 1.5, 90.0, None), CheckResult(8, 0.0, None, 0.0, 500.0, None)),
        (CheckResult(8, 0.0, None, 0.0, 120.0, None), CheckResult(8, 0.0, None, 0.0, 100.0, None)),
        # Where returns count, nothing else does.
        (CheckResult(8, 0.0, None, 0.0, 0.0, None, -1.0), CheckResult(8, 1.0, 30.0, 20.0, 600.0, None, -2.0)),
    ],
)
def test_score(better: CheckResult, worse: CheckResult) -> None:
    assert better.score > worse.score


def test_one_race_in_each_car_by_hand() -> None:
    """Fake car k takes 7 decisions of 50 ms and k ms; odd ones are cut, so of cars 0, 1, 2 two finish in 351 ms."""
    steps = []
    check = GreedyCheck(FakeCars(3, at_line=True), FakeActor(0), SPEC, lambda: steps.append(1))
    result = check.run(_tensors(1.0), seed=1, num_races=4)
    assert (result.num_races, result.mean_progress_m) == (6, 2.0 * RACE_STEPS)
    assert (result.finish_rate, result.mean_time_s) == (pytest.approx(2 / 3), pytest.approx(0.351))
    assert result.mean_pace_mps == pytest.approx(2.0 * RACE_STEPS * (1 / 0.350 + 1 / 0.352) / 3)
    assert result.fastest is not None
    assert (result.fastest.car, result.fastest.time_ms) == (0, 350)
    assert len(steps) == 2 * RACE_STEPS  # two rounds of three for the four that were asked for


def test_numbers_of_a_check_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two races of each of two cars: 14 s, cut after 2 s, cut after 3 s, 10 s."""
    outcomes = RaceOutcomes(
        finished=np.array([True, False, False, True]),
        time_ms=np.array([14_000, 2_000, 3_000, 10_000]),
        progress_m=np.array([500.0, 100.0, 20.0, 500.0]),
        total_reward=np.zeros(4),
    )
    check = GreedyCheck(FakeCars(2, at_line=True), FakeActor(0), replace(SPEC, num_cars=2), lambda: None)
    monkeypatch.setattr(check, "race", lambda *_: outcomes)
    result = check.run({}, seed=1, num_races=4)
    assert (result.finish_rate, result.mean_time_s, result.mean_progress_m) == (0.5, 12.0, 280.0)
    assert result.fastest == RaceKey(int(check._seeds(1, 4)[1]), 1, 10_000), "the second start of the second car"


def test_returns_by_hand() -> None:
    """The fake actor's greedy action 1 pays 2, so a race of 7 decisions returns 14; what comes after it counts not."""
    check = check_of(FakeCars(3, at_line=True), is_by_return=True)
    assert check.race(_tensors(1.0), seed=1, num_races=4).total_reward.tolist() == [14.0] * 6
    assert check.run(_tensors(1.0), seed=1, num_races=3).mean_return == 14.0
    assert check_of(FakeCars(3, at_line=True)).run(_tensors(1.0), seed=1, num_races=3).mean_return is None


def test_best_are_kept_as_copies_and_race_once_more() -> None:
    best, weights = BestWeights(num_kept=2), _tensors(0.0)
    for env_steps, finish_rate in [(0, 0.5), (100, 0.25), (200, 0.75)]:
        weights["weight"].fill_(env_steps)
        best.offer(env_steps, CheckResult(4, finish_rate, 20.0, 2.5 * finish_rate, 50.0, None), weights)
    saved = best.state_dict()
    assert [(c["env_steps"], float(c["tensors"]["weight"][0])) for c in saved] == [(200, 200.0), (0, 0.0)]
    again = BestWeights(num_kept=2)
    for _ in range(2):  # what was there before is gone
        again.load_state_dict(saved)
    assert len(again.state_dict()) == 2
    chosen = again.choose(check_of(_FasterEveryTime()), seed=2, num_races=3)
    assert chosen.env_steps == 0, "the result of the last races counts, not that of the first"


def test_the_initial_weights_always_take_part_in_the_last_choice() -> None:
    """All of their races finish; lucky checks of weights that finish less often, but faster, outrank them all.

    Of equals the newer ones are kept.
    """
    best = BestWeights(num_kept=2)
    for number, pace in enumerate((20.0, 25.0, 25.0, 25.0)):
        best.offer(number, CheckResult(12, 1.0, 20.0, pace, 600.0, None), _tensors(number))
        again = BestWeights(num_kept=2)  # as a run that goes on after every check
        again.load_state_dict(best.state_dict())
        best = again
    assert [candidate["env_steps"] for candidate in best.state_dict()] == [3, 2, 0]

    class LastRaces(GreedyCheck):
        def __init__(self) -> None:
            pass

        def run(self, tensors, seed: int, num_races: int) -> CheckResult:
            finish_rate = 0.95 if tensors["weight"][0] else 1.0
            return CheckResult(num_races, finish_rate, 20.0, 20.0 * finish_rate, 600.0, None)

    assert best.choose(LastRaces(), 2, 100).env_steps == 0


def test_records_are_faster_ones_only_and_survive(tmp_path: Path) -> None:
    check, records = check_of(FakeCars(3, at_line=True)), Records(tmp_path)
    result = check.run(_tensors(1.0), seed=1, num_races=3)
    for env_steps in (10, 20):  # the second is no faster
        records.offer(check, _tensors(1.0), env_steps, result)
    records.offer(check, _tensors(1.0), 30, CheckResult(3, 0.0, None, 0.0, 9.0, None))
    race, number = record_in(tmp_path), np.arange(RACE_STEPS)
    assert (race["env_steps"], race["time_ms"], records.time_s) == (10, 350, 0.35)
    assert race["q_value"].shape == (RACE_STEPS, NUM_ACTIONS)
    np.testing.assert_array_equal(race["q_value"].argmax(axis=1), race["action"])
    np.testing.assert_array_equal(race["q_value"][:, 0], number, "of the observation before the decision")
    np.testing.assert_array_equal(race["floats"][:, 3], number)
    state = records.state_dict()
    resumed = Records(tmp_path)
    assert resumed.time_s is None
    (tmp_path / RECORD_FILE).write_bytes(b"of a later moment")
    resumed.load_state_dict(state)
    assert resumed.time_s == 0.35
    assert record_in(tmp_path)["time_ms"] == 350
    resumed.load_state_dict(Records(tmp_path / "another").state_dict())
    assert resumed.time_s is None
    assert not (tmp_path / RECORD_FILE).exists(), "a record that the checkpoint does not know is forgotten"


def test_a_record_that_cannot_be_repeated_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """These cars become faster with every reset: the race that was to confirm the record takes another time."""
    check, records = check_of(_FasterEveryTime()), Records(tmp_path)
    records.offer(check, _tensors(1.0), 10, check.run(_tensors(1.0), seed=1, num_races=3))
    assert records.time_s is None
    assert not (tmp_path / RECORD_FILE).exists()
    assert "not confirmed" in caplog.text


class _FasterEveryTime(FakeCars):
    """Becomes faster with every reset: the candidate that races last wins, unless results are mixed up."""

    def __init__(self) -> None:
        super().__init__(3, at_line=True)
        self._num_resets = 0

    def reset_into(self, image_out, floats_out, potential_out, seed: int) -> None:
        self._num_resets += 1
        super().reset_into(image_out, floats_out, potential_out, seed)

    def step_into(self, actions, image_out, floats_out, potential_out):
        step = super().step_into(actions, image_out, floats_out, potential_out)
        step.race_time_ms[:] = 10_000 // self._num_resets
        return step


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
