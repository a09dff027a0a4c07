from dataclasses import replace
from typing import Any

import pytest
import simpy

from benchmarks.scale import __main__ as scale
from benchmarks.scale.__main__ import ahead, appetite_of, elsewhere, table
from benchmarks.scale.costs import Costs, _costs_of
from benchmarks.scale.model import Cores, Found, Link, Machines, OnPolicy, Replay, Wire, simulate
from rulka.params import read_params

COSTS = Costs(
    fill_s=1.0,
    load_s=0.0,
    insert_s=0.0,
    update_s=0.0,
    publish_s=0.0,
    gradient_steps=1.0,
    block_env_steps=100,
    block_bytes=1000,
    weight_bytes=500,
)
MANY_CORES = 64
A_BLOCK_AHEAD = OnPolicy(100, 1)


def found(machines: Machines, appetite: OnPolicy | Replay = A_BLOCK_AHEAD, **costs: Any) -> Found:
    return simulate(replace(COSTS, **costs), machines, appetite)


class TestCores:
    """By hand: work of 3 s and, from second 1 on, of 1 s."""

    @pytest.mark.parametrize(
        ("count", "crowded", "ends"),
        [(1, 1.0, [4.0, 3.0]), (2, 1.0, [3.0, 2.0]), (2, 0.5, [4.0, 3.0]), (3, 0.5, [1 / 3 + 3.0, 1 + 4 / 3])],
        ids=["shared", "each their own", "each at half the speed", "two of three at three quarters"],
    )
    def test_they_share_themselves_out(self, count: int, crowded: float, ends: list[float]) -> None:
        env = simpy.Environment()
        cores, ended = Cores(env, count, crowded), [0.0, 0.0]

        def work(index: int, after_s: float, seconds: float):
            yield env.timeout(after_s)
            yield cores.work(seconds)
            ended[index] = env.now

        env.process(work(0, 0.0, 3.0))
        env.process(work(1, 1.0, 1.0))
        env.run()
        assert ended == pytest.approx(ends)


def test_messages_go_one_after_another() -> None:
    env = simpy.Environment()
    link, ended = Link(env, Wire(100.0, 0.5)), []

    def send():
        yield from link.send(200)
        ended.append(env.now)

    for _ in range(3):
        env.process(send())
    env.run()
    assert ended == pytest.approx([2.5, 4.5, 6.5])
    assert link.busy_s == pytest.approx(6.0)


class TestARun:
    """By hand, too."""

    def test_a_collector_that_never_waits(self) -> None:
        one = found(Machines(1, learner_cores=MANY_CORES))
        assert one.env_steps_per_s == pytest.approx(100.0)
        assert one.limit == "collectors"
        assert one.collectors_waiting == pytest.approx(0.0, abs=1e-9)

    @pytest.mark.parametrize(("ahead", "rate"), [(0, 100.0), (1, 200.0), (3, 400.0), (9, 400.0)])
    def test_no_more_collectors_work_than_blocks_are_allowed(self, ahead: int, rate: float) -> None:
        four = found(Machines(4, learner_cores=MANY_CORES), OnPolicy(100, ahead))
        assert four.env_steps_per_s == pytest.approx(rate)
        assert four.limit == ("collectors" if ahead >= 3 else "permission")

    def test_a_learner_that_never_waits(self) -> None:
        slow = found(Machines(4, learner_cores=MANY_CORES), update_s=2.0, insert_s=0.25, publish_s=0.25)
        assert slow.env_steps_per_s == pytest.approx(100 / 2.5)
        assert (slow.busy, slow.limit) == (pytest.approx(1.0), "learner")

    def test_in_turns_nothing_is_old(self) -> None:
        turns = found(Machines(1, learner_cores=MANY_CORES), OnPolicy(100, 0), update_s=3.0)
        assert turns.env_steps_per_s == pytest.approx(100 / 4.0)
        assert set(turns.lag_learned) == set(turns.lag_taken) == {0}

    def test_experience_is_as_old_as_allowed(self) -> None:
        for versions in (1, 4):
            old = found(Machines(8, learner_cores=MANY_CORES), OnPolicy(100, versions), update_s=5.0)
            assert set(old.lag_learned) == {versions}
            assert max(old.lag_taken) <= versions

    def test_one_core_is_shared_by_all(self) -> None:
        shared = found(Machines(1, learner_cores=1), update_s=1.0)
        assert shared.env_steps_per_s == pytest.approx(50.0)

    def test_learners_wait_for_each_other_and_for_the_sum(self) -> None:
        """Two learners, half an update of 2 s each, 3 gradient sums of 500 bytes at 500 B/s and 2 times 0.25 s."""
        pair = Machines(1, 2, MANY_CORES, learners_wire=Wire(500.0, 0.25))
        both = found(pair, OnPolicy(200, 3), update_s=2.0, gradient_steps=3.0)
        assert both.updates_per_s == pytest.approx(1 / (1.0 + 3 * 1.5))
        assert both.env_steps_per_s == pytest.approx(200 * both.updates_per_s)
        assert both.summing == pytest.approx(4.5 / 5.5)
        assert both.limit == "sum of gradients"

    def test_blocks_wait_for_the_network(self) -> None:
        narrow = Machines(8, learner_cores=1, collectors_per_node=4, wire=Wire(2000.0, 0.0))
        crowd = found(narrow, OnPolicy(100, 20), weight_bytes=1)
        assert crowd.env_steps_per_s == pytest.approx(200.0, rel=0.01)
        assert crowd.limit == "network, blocks"

    def test_weights_go_once_to_each_machine(self) -> None:
        """Two versions a second of 500 bytes each, to two machines."""
        far = Machines(8, learner_cores=1, collectors_per_node=4, wire=Wire(1e4, 0.0))
        run = found(far, OnPolicy(800, 1))
        assert run.link_out == pytest.approx(2 * run.updates_per_s * 500 / 1e4, rel=0.05)

    def test_replay_holds_its_ratio(self) -> None:
        """An update of 400 samples a second; each decision is learned from 8 times."""
        run = found(Machines(4, learner_cores=MANY_CORES), Replay(1000, 8.0, 400), update_s=1.0)
        assert run.env_steps_per_s == pytest.approx(50.0, rel=0.05)
        assert run.limit == "learner"


def test_what_is_allowed_is_what_learners_allow() -> None:
    """The rules are written twice: here, and in the learners."""
    params = read_params()
    ppo = appetite_of(params, "ppo")
    assert isinstance(ppo, OnPolicy)
    assert ppo.allowed(0, 0) == params.ppo.steps_per_update * (1 + params.ppo.max_versions_behind)
    with pytest.raises(ValueError, match="no rule for grpo"):
        appetite_of(params, "grpo")


def test_costs_are_read_from_reports() -> None:
    """By hand: in 6 s, 4 blocks and 2 updates."""
    names = ("waiting", "inserting", "updating", "publishing")
    shares = {f"learner_{name}_share": share for name, share in zip(names, (0.4, 0.1, 0.3, 0.01), strict=True)}
    first = {"env_steps": 100, "version": 1, "gradient_steps": 8, "minutes": 1.0}
    second = shares | {"env_steps": 300, "version": 2, "gradient_steps": 16, "minutes": 1.05}
    third = shares | {"env_steps": 500, "version": 3, "gradient_steps": 24, "minutes": 1.1}
    costs = _costs_of([first, second, third], 100, 1, {})
    assert costs.fill_s == pytest.approx(6.0 * 0.4 / 4)
    assert costs.insert_s == pytest.approx(6.0 * 0.1 / 4)
    assert costs.update_s == pytest.approx(6.0 * 0.3 / 2)
    assert costs.publish_s == pytest.approx(6.0 * 0.01 / 2)
    assert costs.gradient_steps == 8.0


def test_ahead_is_paid_for_with_lag() -> None:
    rows = [*ahead(read_params(), "ppo", replace(COSTS, block_env_steps=4096))]
    rates, lags = [row["env steps/s"] for row in rows], [row["at most"] for row in rows]
    assert rates == sorted(rates)
    assert lags == [row["versions ahead"] for row in rows]
    assert not [*ahead(read_params(), "iqn", COSTS)]


def test_tables_have_a_row_for_each_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "COLLECTORS", (8, 16))
    rows = [*elsewhere(read_params(), "ppo", COSTS)]
    assert len(rows) == 2 * 4 * 2
    lines = table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert {line.count("|") for line in lines} == {12}
