"""Stopping and going on, in one process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runtime_fakes import BLOCK_STEPS, fake_run

from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import Delivery
from rulka.runtime.connect import connect, train_run
from rulka.runtime.messages import RaceEnd
from rulka.runtime.metrics import RaceStatistics
from rulka.runtime.metrics_log import MetricsLog, read_metrics
from rulka.runtime.stop import StopRequestedError, StopSignals


def test_stop_saves_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """The fake learner sends SIGTERM to this process in its second update: 4 blocks were taken in by then."""
    with pytest.raises(StopRequestedError):
        train_run(fake_run(tmp_path, learner={"fault": "interrupt"}))
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] == 4 * BLOCK_STEPS
    assert saved["learner"]["version"] == 2
    with StopSignals() as stop, connect(fake_run(tmp_path), stop) as loop:
        learner = loop._learner
        outcome = loop.run()
    assert outcome.state.num_starts == 2
    assert outcome.state.env_steps == 20 * BLOCK_STEPS
    assert len(learner.collectors) == 16, "only what was missing was collected"
    assert learner.version == 10
    assert outcome.state.gradient_steps == 30
    assert outcome.state.seconds > saved["run"]["seconds"]


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = train_run(fake_run(tmp_path))
    with StopSignals() as stop, connect(fake_run(tmp_path), stop) as loop:
        again = loop.run()
        assert loop._learner.collectors == []
    assert again.best.result == first.best.result
    assert again.best.env_steps == first.best.env_steps


def test_metrics_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, env_steps=0, num_bytes=0)
    log.write(10, {"Training": {"loss": 1.0}}, {})
    num_bytes = log.num_bytes
    log.write(20, {"Training": {"loss": 2.0}}, {})
    log.close()
    log = MetricsLog(tmp_path, env_steps=10, num_bytes=num_bytes)
    log.write(15, {"Training": {"loss": float("nan"), "text": "x"}}, {})
    log.close()
    expected = [{"env_steps": 10, "loss": 1.0}, {"env_steps": 15, "loss": None, "text": "x"}]
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == expected
    # The same in DVCLive's folder, where what is not a number has no place.
    assert (tmp_path / "dvclive/plots/metrics/Training/loss.tsv").read_text().split() == ["step", "loss", "10", "1.0"]


def test_new_run_does_not_inherit_metrics(tmp_path: Path) -> None:
    for _ in range(2):
        log = MetricsLog(tmp_path, env_steps=0, num_bytes=0)
        log.write(10, {"Training": {"loss": 1.0}}, {})
        log.close()
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
    assert len((tmp_path / "dvclive/plots/metrics/Training/loss.tsv").read_text().splitlines()) == 2


def test_race_statistics_survive(tmp_path: Path) -> None:
    statistics = RaceStatistics()
    assert statistics.values()["finish_rate"] is None
    for time_ms, is_finished, is_full in [(9000, False, True), (20_000, True, True), (8000, True, False)]:
        statistics.add([RaceEnd(0, 0, is_finished, is_full, time_ms, 100.0, 3.0)])
    assert statistics.best_training_time_s == 20.0
    again = RaceStatistics()
    again.load_state_dict(statistics.state_dict())
    assert again.values() == statistics.values()
    assert again.values()["finish_rate"] == pytest.approx(1 / 2), "the third began down the track"


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
        saved = Checkpoints(tmp_path).load_newest()
        assert saved is not None
        offered.append(sorted(candidate["env_steps"] for candidate in saved["best"]))
    assert offered == [[blocks * BLOCK_STEPS for blocks in (0, 10, 20)]] * 3


def test_time_until_the_first_experience_is_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectors take ten minutes to import, by a clock that only they move, and the limit is two minutes."""
    now_s = 0.0
    monkeypatch.setattr("rulka.runtime.learner_loop.time", SimpleNamespace(monotonic=lambda: now_s))
    with StopSignals() as stop, connect(fake_run(tmp_path, max_minutes=2.0), stop) as loop:
        collect, num_calls = loop._collectors.collect, 0

        def late(*turn: Any) -> list[Delivery]:
            nonlocal now_s, num_calls
            num_calls += 1
            now_s += 60.0 if num_calls <= 10 else 1.0
            return collect(*turn) if num_calls > 10 else []

        loop._collectors.collect = late  # type: ignore[method-assign]
        outcome = loop.run()
    assert outcome.ended_by == "max_env_steps"
    assert 20.0 <= outcome.state.seconds <= 60.0
