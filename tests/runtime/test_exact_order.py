"""In exact order a run with processes is the same again, whoever is slow and whoever is killed on the way."""

from __future__ import annotations

import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from real_run import assert_equal, facts
from runtime_fakes import BLOCK_STEPS, drive, fake_run, killed_at

from benchmarks.suite import busy_loops
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.specs import RunSpec
from tests.conftest import Killed

NUM_BLOCKS = 40
JITTER_S = 0.002


def fakes(folder: Path, **train: Any) -> RunSpec:
    """Returns a run whose collectors and learner all take random times."""
    cars = {"jitter_s": JITTER_S, **train.pop("cars", {})}
    sizes = {"order": "exact", "num_collectors": 2, "max_env_steps": NUM_BLOCKS * BLOCK_STEPS, "checkpoint_s": 0.05}
    return fake_run(folder, cars=cars, learner={"jitter_s": 10 * JITTER_S}, **sizes | train)


def run_killed(spec: RunSpec, versions: list[int], num_collectors: int = 0) -> LearnerLoop:
    """Runs to the end; the learner dies after each of some updates, and collectors after the first ones of a start."""

    def die(loop: LearnerLoop) -> None:
        if versions and loop._learner.version >= versions[0]:
            versions.pop(0)
            raise Killed
        if len(kills) < num_collectors:
            kills.append(loop._learner.version)
            os.kill(random.SystemRandom().choice(loop._collectors.pids), signal.SIGKILL)

    kills: list[int] = []
    while (run := drive(spec, die))[0] is None:
        kills.clear()
    return run[1]


def test_who_is_fast_changes_nothing_and_neither_do_deaths(tmp_path: Path) -> None:
    _, whole = drive(fakes(tmp_path / "whole"))
    learner: Any = whole._learner
    assert learner.collectors == [0, 1] * (NUM_BLOCKS // 2), "they take turns"
    assert set(learner.staleness[4:]) == {1}, "as many versions as the learner allows"
    killed = run_killed(fakes(tmp_path / "killed"), [7], num_collectors=1)
    assert killed.state.num_starts == 2
    assert_equal(facts(killed), facts(whole))
    assert not list((tmp_path / "killed").rglob("*.state")), "they go with the run"


@pytest.mark.slow
def test_ten_runs_and_deaths_at_five_random_moments_of_each_kind(tmp_path: Path) -> None:
    whole = facts(drive(fakes(tmp_path / "whole"))[1])
    for number in range(10):
        assert_equal(facts(drive(fakes(tmp_path / f"again{number}"))[1]), whole)
    for number in range(5):
        for num_collectors, times in ((1, 0), (0, 1), (2, 2)):
            versions = sorted(random.SystemRandom().sample(range(2, NUM_BLOCKS // 2), times))
            killed = run_killed(fakes(tmp_path / f"killed{number}-{num_collectors}"), versions, num_collectors)
            assert killed.state.num_starts == 1 + times
            assert_equal(facts(killed), whole)
    with busy_loops(2):
        killed = run_killed(fakes(tmp_path / "busy"), [NUM_BLOCKS // 4], num_collectors=1)
    assert_equal(facts(killed), whole)


@pytest.mark.slow
def test_several_learners_are_the_same_again(tmp_path: Path) -> None:
    """What they add up, which is part of their state, shows that the others had the same experience, too.

    The log has a line more where a turn was broken off between two of them.
    """
    sizes = {"learners": 2, "max_env_steps": 20 * BLOCK_STEPS}
    _, whole = drive(fakes(tmp_path / "whole", **sizes))
    killed = run_killed(fakes(tmp_path / "killed", **sizes), [4])
    assert killed.state.num_starts == 2
    again, once = ({name: fact for name, fact in facts(loop).items() if name != "log"} for loop in (killed, whole))
    assert_equal(again, once)


def test_fewer_blocks_ahead_are_made_by_newer_weights(tmp_path: Path) -> None:
    """A collector begins its next block when its last was taken: every other one behind the update of both."""
    learner: Any = drive(fakes(tmp_path, blocks_ahead=1))[1]._learner
    assert learner.staleness[4:] == [1, 0] * (NUM_BLOCKS // 2 - 2)


def test_a_checkpoint_of_another_processor_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rulka")
    drive(fakes(tmp_path), killed_at(7))
    assert not caplog.messages
    monkeypatch.setattr("rulka.runtime.learner_loop.numerics_fingerprint", lambda: "another one")
    _, loop = drive(fakes(tmp_path))
    assert loop.state.machines[1:] == ["another one"]
    [said] = [message for message in caplog.messages if "going on from" not in message]
    assert said.startswith("this training will not repeat bit by bit: it went on elsewhere (")


@pytest.mark.slow
def test_an_environment_that_cannot_say_where_it_was_begins_anew_and_the_run_says_so(tmp_path: Path) -> None:
    loop = run_killed(fakes(tmp_path, cars={"is_kept": False}), [7])
    assert not loop.state.is_whole
    assert loop.state.env_steps == NUM_BLOCKS * BLOCK_STEPS
