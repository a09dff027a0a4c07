"""In exact order a run with processes is the same again, whoever is slow and whoever is killed on the way."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from real_run import run_spec
from runtime_fakes import BLOCK_STEPS, FakeLearner, fake_run, fake_train
from test_exact_resume import CASES, Killed, assert_equal, small_params

from benchmarks.suite import busy_loops
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.live import METRICS_FILE
from rulka.runtime.metrics import MEASURED
from rulka.runtime.metrics_log import read_metrics
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals

NUM_BLOCKS = 40
JITTER_S = 0.002


def fakes(folder: Path, **train: Any) -> RunSpec:
    """Returns a run whose collectors and learner all take random times."""
    cars = {"jitter_s": JITTER_S, **train.pop("cars", {})}
    sizes = {"order": "exact", "num_collectors": 2, "max_env_steps": NUM_BLOCKS * BLOCK_STEPS, "checkpoint_s": 0.05}
    return fake_run(folder, cars=cars, learner={"jitter_s": 10 * JITTER_S}, **sizes | train)


def run(spec: RunSpec, happens: Callable[[LearnerLoop], None] = lambda _loop: None) -> LearnerLoop | None:
    """Runs to the end, or until `happens`, called after each update, raises `Killed`."""
    with StopSignals() as stop, connect(spec, stop) as loop:
        update = loop._learner.update

        def update_and_more() -> dict[str, float] | None:
            values = update()
            if values is not None:
                happens(loop)
            return values

        loop._learner.update = update_and_more
        try:
            loop.run()
        except Killed:
            return None
        return loop


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
    while (loop := run(spec, die)) is None:
        kills.clear()
    return loop


def facts(loop: LearnerLoop) -> dict[str, Any]:
    """Returns all that is to be the same again."""
    learner = loop._learner
    state = replace(loop.state, seconds=0.0, cpu_seconds=0.0, num_starts=1)
    best = [(each.env_steps, each.result, each.tensors) for each in loop.best._candidates]
    experience, lines = learner.experience(), read_metrics(loop.spec.folder / METRICS_FILE)
    return {
        "state": vars(state),
        "learner": learner.state_dict(),
        "experience": (experience.state, experience.pieces),
        "best": [[*values] for values in best],
        "races": loop.races.values(),
        "record": loop.records.time_ms,
        "log": [{name: value for name, value in line.items() if name not in MEASURED} for line in lines],
    }


def digest_of(loop: LearnerLoop) -> tuple[Any, ...]:
    learner = loop._learner
    assert isinstance(learner, FakeLearner)
    return learner.version, learner.seen, vars(replace(loop.state, seconds=0.0, cpu_seconds=0.0, num_starts=1))


def test_who_is_fast_changes_nothing_and_neither_do_deaths(tmp_path: Path) -> None:
    whole = run(fakes(tmp_path / "whole"))
    assert whole is not None
    learner = whole._learner
    assert learner.collectors == [0, 1] * (NUM_BLOCKS // 2), "they take turns"
    assert set(learner.staleness[4:]) == {1}, "as many versions as the learner allows"
    killed = run_killed(fakes(tmp_path / "killed"), [7], num_collectors=1)
    assert killed.state.num_starts == 2
    assert digest_of(killed) == digest_of(whole)
    assert not list((tmp_path / "killed").rglob("*.state")), "they go with the run"


@pytest.mark.slow
def test_ten_runs_and_deaths_at_five_random_moments_of_each_kind(tmp_path: Path) -> None:
    whole = run(fakes(tmp_path / "whole"))
    assert whole is not None
    for number in range(10):
        again = run(fakes(tmp_path / f"again{number}"))
        assert again is not None
        assert digest_of(again) == digest_of(whole)
    for number in range(5):
        for num_collectors, times in ((1, 0), (0, 1), (2, 2)):
            versions = sorted(random.SystemRandom().sample(range(2, NUM_BLOCKS // 2), times))
            spec = fakes(tmp_path / f"killed{number}-{num_collectors}")
            killed = run_killed(spec, versions, num_collectors)
            assert killed.state.num_starts == 1 + times
            assert digest_of(killed) == digest_of(whole), (num_collectors, times)
    with busy_loops(2):
        killed = run_killed(fakes(tmp_path / "busy"), [NUM_BLOCKS // 4], num_collectors=1)
    assert digest_of(killed) == digest_of(whole)


@pytest.mark.slow
def test_several_learners_are_the_same_again(tmp_path: Path) -> None:
    """What they add up shows that the others had the same experience, too."""
    sizes = {"learners": 2, "max_env_steps": 20 * BLOCK_STEPS}
    whole = run(fakes(tmp_path / "whole", **sizes))
    assert whole is not None
    killed = run_killed(fakes(tmp_path / "killed", **sizes), [4])
    assert killed.state.num_starts == 2
    assert digest_of(killed) == digest_of(whole)
    assert killed._learner.state_dict()["together"] == whole._learner.state_dict()["together"]


def test_fewer_blocks_ahead_are_made_by_newer_weights(tmp_path: Path) -> None:
    """A collector begins its next block when its last was taken: every other one behind the update of both."""
    loop = run(fakes(tmp_path, blocks_ahead=1))
    assert loop is not None
    assert loop._learner.staleness[4:] == [1, 0] * (NUM_BLOCKS // 2 - 2)


def test_a_checkpoint_of_another_processor_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rulka")

    def die(loop: LearnerLoop) -> None:
        if loop.state.num_starts == 1 and loop._learner.version == 7:
            raise Killed

    assert run(fakes(tmp_path), die) is None
    assert not caplog.messages
    monkeypatch.setattr("rulka.runtime.learner_loop.arithmetic_here", lambda: "another one")
    loop = run(fakes(tmp_path))
    assert loop is not None
    assert loop.state.machines[1:] == ["another one"]
    [said] = [message for message in caplog.messages if "going on from" not in message]
    assert said.startswith("this training will not repeat bit by bit: it went on elsewhere (")


@pytest.mark.slow
def test_an_environment_that_cannot_say_where_it_was_begins_anew_and_the_run_says_so(tmp_path: Path) -> None:
    loop = run_killed(fakes(tmp_path, cars={"is_kept": False}), [7])
    assert not loop.state.is_whole
    assert loop.state.env_steps == NUM_BLOCKS * BLOCK_STEPS


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"num_collectors": 1, "inference": "central"}, "central inference decides for whoever has asked"),
        ({"num_collectors": 1, "cluster": "ray"}, "cluster ray starts collectors where there is room"),
    ],
)
def test_what_does_not_repeat_is_refused(train: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=rf"{words}.*set train.order to free"):
        fake_train(order="exact", **train)
    fake_train(order="free", **train)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_agents_are_the_same_again_bit_for_bit(tmp_path: Path, track: Path, case: str) -> None:
    """Real ones: the second run loses collectors and is killed on the way."""
    algorithm, extras = CASES[case]
    params = small_params(algorithm, extras, num_collectors=2)
    whole = run(run_spec(params, track, tmp_path / "whole"))
    assert whole is not None
    at = whole._learner.version // 2
    killed = run_killed(run_spec(params, track, tmp_path / "killed"), [at], num_collectors=1)
    assert killed.state.num_starts == 2
    assert_equal(facts(killed), facts(whole))
