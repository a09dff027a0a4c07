"""The whole runtime in one process, with fakes; stopping and going on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from runtime_fakes import (
    BLOCK_STEPS,
    HEIGHT,
    MOMENT,
    OVER_S,
    RACE_STEPS,
    SPEC,
    WIDTH,
    FakeActor,
    FakeCars,
    FakeNetwork,
    check_intact,
    drive,
    fake_run,
    newest,
    record_in,
)

from rulka.buffers.experience import new_block
from rulka.contracts.schedule import Moment
from rulka.runtime import learner_loop
from rulka.runtime.collector import Collector, LocalActor
from rulka.runtime.collectors import CollectLimits, Delivery
from rulka.runtime.connect import connect, train_run
from rulka.runtime.metrics_log import read_metrics
from rulka.runtime.ranks import DivergedError
from rulka.runtime.stop import StopRequestedError, StopSignals


def test_blocks_follow_each_other() -> None:
    """The first observation of a block is the last one of the block before, and nothing is overwritten in between."""
    cars = FakeCars(SPEC.num_cars, at_line=False)
    collector = Collector(0, cars, LocalActor(FakeActor(1)), 5, SPEC)
    first, second = new_block(SPEC), new_block(SPEC)
    collector.fill(first, Moment(0))
    kept = first.image[-1].copy(), first.floats[-1].copy(), first.potential[-1].copy()
    for name in ("image", "floats", "potential"):
        getattr(first, name)[:] = 99  # the slot is given to somebody else
    collector.fill(second, Moment(BLOCK_STEPS))
    for name, value in zip(("image", "floats", "potential"), kept, strict=True):
        np.testing.assert_array_equal(getattr(second, name)[0], value)
    assert second.number == first.number + 1
    anew = Collector(0, cars, LocalActor(FakeActor(1)), 6, SPEC)
    anew.load_state_dict(state := collector.state_dict() or {})
    assert int(state["arrays"]["number"]) == second.number + 1
    anew.fill(first, Moment(0))
    assert first.number == second.number + 1, "a resumed collector goes on"
    Collector(0, cars, LocalActor(FakeActor(1)), 7, SPEC).fill(first, Moment(0))
    assert abs(int(first.number - second.number)) > 10**9, "one that begins anew does not"
    check_intact(second, version=0)
    assert (second.log_prob == BLOCK_STEPS * MOMENT).all(), "the actor was told how many env steps were taken"


def test_races_by_hand() -> None:
    """A race lasts 7 decisions and one reset: in 16 decisions each of 3 cars ends two, with known sums of rewards."""
    actor = LocalActor(FakeActor(1))
    actor.load(3, FakeNetwork().state_dict())
    collector = Collector(4, FakeCars(SPEC.num_cars, at_line=True), actor, 5, SPEC)
    block = new_block(SPEC)
    races = collector.fill(block, Moment(0)).races
    assert len(races) == 6
    assert [race.is_finished for race in races] == [True, False, True] * 2
    assert {race.time_ms for race in races[:3]} == {350, 351, 352}
    assert {(race.collector, race.version, race.progress_m) for race in races} == {(4, 3, 2.0 * RACE_STEPS)}
    second_of_car_1 = block.reward[RACE_STEPS + 1 : 2 * RACE_STEPS + 1, 1].sum()
    assert races[4].total_reward == pytest.approx(second_of_car_1)


def test_metrics_hold_what_the_report_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the one report at its end: an earlier one, of a run that takes longer, would have the last update."""
    monkeypatch.setattr(learner_loop, "REPORT_S", OVER_S)
    outcome = train_run(fake_run(tmp_path))
    (last,) = read_metrics(tmp_path / "metrics.jsonl")
    needed = "env_steps gradient_steps minutes finish_rate mean_return mean_progress_m loss versions_behind record_s"
    assert set(needed.split()) <= set(last)
    assert last["env_steps"] == outcome.state.env_steps
    assert last["finish_rate"] == pytest.approx(2 / 3)  # cars 0 and 2 of 3 finish
    assert last["best_training_time_s"] == 0.350
    assert last["check_finish_rate"] == 0.5  # one car of two
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_only_greedy_races_make_records(tmp_path: Path) -> None:
    """Training races begin down the track; the one check car that finishes takes 7 decisions of 50 ms, kept whole."""
    outcome = train_run(fake_run(tmp_path, cars={"starts_at_line": False}))
    assert outcome.record_s == 0.35
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["best_training_time_s"] is None
    race = record_in(tmp_path)
    assert race["action"].tolist() == [1] * RACE_STEPS
    np.testing.assert_array_equal(race["floats"][:, 3], np.arange(RACE_STEPS))
    assert race["image"].shape == (RACE_STEPS, 1, HEIGHT, WIDTH)


def test_stall_is_an_error_that_names_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=rf"allows {2 * BLOCK_STEPS} .* {2 * BLOCK_STEPS} were taken"):
        train_run(fake_run(tmp_path, learner={"fault": "stall"}))


def test_divergence_is_noticed_and_not_saved(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="'weight' holds NaN"):
        train_run(fake_run(tmp_path, learner={"fault": "diverge"}))
    assert not list(tmp_path.glob("checkpoint-*"))


def test_stop_saves_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """The fake learner sends SIGTERM to this process in its second update: 4 blocks were taken in by then."""
    with pytest.raises(StopRequestedError):
        train_run(fake_run(tmp_path, learner={"fault": "interrupt"}))
    saved = newest(tmp_path)
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] == 4 * BLOCK_STEPS
    assert saved["learner"]["version"] == 2
    outcome, loop = drive(fake_run(tmp_path))
    learner = loop._learner
    assert outcome.state.num_starts == 2
    assert outcome.state.env_steps == 20 * BLOCK_STEPS
    assert len(learner.collectors) == 16, "only what was missing was collected"
    assert learner.version == 10
    assert outcome.state.gradient_steps == 30
    assert outcome.state.seconds > saved["run"]["seconds"]


def test_a_run_stopped_in_its_last_choice_offers_its_weights_once(tmp_path: Path) -> None:
    """Four places for the weights of 0, 10 and 20 blocks, however often the choice is broken off."""
    spec = fake_run(tmp_path, check_candidates=4)
    offered = []
    for _ in range(3):
        with StopSignals() as stop, connect(spec, stop) as loop:

            def broken_off(*_: object) -> None:
                raise StopRequestedError

            loop.best.choose = broken_off  # type: ignore[method-assign]
            with pytest.raises(StopRequestedError):
                loop.run()
        offered.append(sorted(candidate["env_steps"] for candidate in newest(tmp_path)["best"]))
    assert offered == [[blocks * BLOCK_STEPS for blocks in (0, 10, 20)]] * 3


def test_time_until_the_first_experience_is_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectors take ten minutes to import, by a clock that only they move, and the limit is two minutes."""
    now_s = 0.0
    monkeypatch.setattr("rulka.runtime.learner_loop.time", SimpleNamespace(monotonic=lambda: now_s))
    with StopSignals() as stop, connect(fake_run(tmp_path, max_minutes=2.0), stop) as loop:
        collect, num_calls = loop._collectors.collect, 0

        def late(turn: CollectLimits) -> list[Delivery]:
            nonlocal now_s, num_calls
            num_calls += 1
            now_s += 60.0 if num_calls <= 10 else 1.0
            return collect(turn) if num_calls > 10 else []

        loop._collectors.collect = late  # type: ignore[method-assign]
        outcome = loop.run()
    assert outcome.ended_by == "max_env_steps"
    assert 20.0 <= outcome.state.seconds <= 60.0
