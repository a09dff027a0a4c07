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
