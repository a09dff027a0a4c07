"""Turns of real runs: one after another they are one run; copies are of whole checkpoints that turns ended with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rulka.machine.device import CPU
from rulka.params import Params
from rulka.runtime.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.greedy_check import RaceOutcomes
from rulka.runtime.ranks import DivergedError
from rulka.runtime.run_lock import locked
from rulka.study.turn import Order, Result, do_turn, score_races, take_over
from rulka.training.agent_run import AgentRun, Folders
from tests.conftest import Killed

TURN_STEPS = 256
FIRST = Order(member=0, turn=0, parent=0, begin=None, values={}, races=10, seed=3)
OWN = {"compared": [], "max_minutes": None}
OWN |= {"num_checks": 1, "check_candidates": 1, "final_check_races": 1}


def params_of(params: Params, num_turns: int, algorithm: str = "ppo", seed: int = 1, **own: Any) -> Params:
    """Returns the parameters of a turn that so many end with, without schedules over the budget."""
    values = params.model_dump()
    values["train"] |= OWN | {"algorithm": algorithm, "seed": seed, "max_env_steps": num_turns * TURN_STEPS}
    values[algorithm] |= {"learning_rate": 0.0005, **own}
    if algorithm == "ppo":
        values["ppo"]["entropy_weight"] = 0.003
    else:
        values["iqn"] |= {"epsilon": 0.1, "guide_floor": 0.0, "buffer_steps": 300}
    return Params.model_validate(values)


def turn(number: int, own: Params, folders: Folders, here: Path, begin: str | None = None, member: int = 0) -> Result:
    """Does a turn in a folder of its own; a member of another number has been replaced by member 0."""
    order = Order(member=member, turn=number, parent=0, begin=begin, values={}, races=10, seed=3)
    here.mkdir(exist_ok=True)
    return do_turn(order, own, replace(folders, runs=here / "runs", out=here / "agent"), CPU, here)


def learned(here: Path, result: Result) -> dict[str, Any]:
    assert result.checkpoint is not None
    return load_checkpoint(here / result.checkpoint)


def assert_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(
    ("algorithm", "learners"),
    [("ppo", 1), *(pytest.param("iqn", learners, marks=pytest.mark.slow) for learners in (1, 2))],
)
def test_turns_one_after_another_learn_what_one_run_learns(
    algorithm: str, learners: int, small_params: Params, folders: Folders, tmp_path: Path
) -> None:
    changes = {"algorithm": algorithm, "learners": learners}
    params = small_params.model_copy(update={"train": small_params.train.model_copy(update=changes)})
    init = folders.agent_init if algorithm == "ppo" else folders.agent_init / "compared" / algorithm
    folders = replace(folders, agent_init=init)
    first = turn(0, params_of(params, 1, algorithm), folders, tmp_path / "a")
    second = turn(1, params_of(params, 2, algorithm), folders, tmp_path / "b", f"../a/{first.checkpoint}")
    whole = AgentRun(algorithm, params_of(params, 2, algorithm), replace(folders, runs=tmp_path / "whole"))
    with locked(whole.folder):
        whole.train()
    once, turns = load_checkpoint(Checkpoints(whole.folder).files()[0]), learned(tmp_path / "b", second)
    assert (first.env_steps, second.env_steps) == (TURN_STEPS, once["run"]["env_steps"]) == (TURN_STEPS, 2 * TURN_STEPS)
    assert_equal(turns["learner"]["network"], once["learner"]["network"])
    assert turns["run"]["gradient_steps"] == once["run"]["gradient_steps"] > 0
    assert (tmp_path / "b/agent/weights.safetensors").is_file()


def test_a_copied_member_has_the_others_weights_its_own_settings_and_races_of_its_own(
    small_params: Params, folders: Folders, tmp_path: Path
) -> None:
    first = turn(0, params_of(small_params, 1), folders, tmp_path / "a")
    begin = f"../a/{first.checkpoint}"
    goes_on = turn(1, params_of(small_params, 2), folders, tmp_path / "b", begin)
    copied = turn(1, params_of(small_params, 2, seed=2, learning_rate=0.05), folders, tmp_path / "c", begin, member=1)
    assert copied.order.is_copied
    assert copied.env_steps == goes_on.env_steps
    own, other = (learned(tmp_path / name, each) for name, each in (("c", copied), ("b", goes_on)))
    start = learned(tmp_path / "a", first)["learner"]["network"]
    moved = {
        name: max(float((each["learner"]["network"][part] - start[part]).abs().max()) for part in start)
        for name, each in (("copied", own), ("goes on", other))
    }
    assert moved["copied"] > 10 * moved["goes on"] > 0.0, "a hundred times the rate"
    assert [entry["env_steps"] for entry in own["best"]] == [2 * TURN_STEPS], "nothing of the turns before is chosen"
    # A turn that is killed goes on from its own checkpoint.
    (tmp_path / "a" / str(first.checkpoint)).unlink()
    assert turn(1, params_of(small_params, 2), folders, tmp_path / "b", begin) == goes_on


@pytest.mark.slow
def test_a_settings_change_reaches_the_optimizer_and_what_is_killed_while_it_takes_over_does_so_again(
    small_params: Params, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IQN's weight decay lies in the optimizer, which a checkpoint holds as it was."""
    params = small_params.model_copy(update={"train": small_params.train.model_copy(update={"algorithm": "iqn"})})
    folders = replace(folders, agent_init=folders.agent_init / "compared/iqn")
    first = turn(0, params_of(params, 1, "iqn"), folders, tmp_path / "a")
    second = params_of(params, 2, "iqn", weight_decay=0.7)
    ended = turn(1, second, folders, tmp_path / "b", f"../a/{first.checkpoint}")
    groups = learned(tmp_path / "b", ended)["learner"]["optimizer"]["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.7}
    checkpoint = tmp_path / "a" / str(first.checkpoint)
    pieces = sorted(path.name for path in ExperienceFiles(checkpoint.parent, 0).folder.iterdir())
    assert pieces

    def kill(*_: object) -> Path:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", kill)
        with pytest.raises(Killed):
            take_over(checkpoint, tmp_path / "c", is_copied=True)
    assert not Checkpoints(tmp_path / "c").files(), "the experience is there, and no run begins with half of it"
    take_over(checkpoint, tmp_path / "c", is_copied=True)
    taken = load_checkpoint(Checkpoints(tmp_path / "c").files()[0])
    assert sorted(path.name for path in ExperienceFiles(tmp_path / "c", 0).folder.iterdir()) == pieces
    assert_equal(taken["learner"]["network"], load_checkpoint(checkpoint)["learner"]["network"])
    assert taken["collectors"] == {}, "its cars begin anew"
    (ExperienceFiles(checkpoint.parent, 0).folder / pieces[0]).unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        take_over(checkpoint, tmp_path / "d", is_copied=True)


def test_nothing_is_taken_over_from_within_a_turn(small_params: Params, folders: Folders, tmp_path: Path) -> None:
    """Of two checkpoints the newer one is damaged: a run that goes on takes the older, a copy none."""
    first = turn(0, params_of(small_params, 1), folders, tmp_path / "a")
    newest = tmp_path / "a" / str(first.checkpoint)
    shutil.copy(newest, newest.with_name("checkpoint-000000000100.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"missing or damaged: its checksum does not match"):
        turn(1, params_of(small_params, 2), folders, tmp_path / "b", f"../a/{first.checkpoint}", member=1)
    newest.unlink()
    (newest.with_suffix(".tmp")).write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"missing or damaged: .*No such file"):
        turn(1, params_of(small_params, 2), folders, tmp_path / "b", f"../a/{first.checkpoint}", member=1)


def test_a_turn_that_diverges_says_so(
    small_params: Params, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(_: AgentRun) -> None:
        message = "training diverged"
        raise DivergedError(message)

    monkeypatch.setattr(AgentRun, "train", diverge)
    result = turn(0, params_of(small_params, 1), folders, tmp_path / "a")
    assert (result.scores, result.checkpoint, result.diverged) == (None, None, "training diverged")


def test_a_race_is_worth_its_mean_speed_and_one_that_ends_early_little() -> None:
    outcomes = RaceOutcomes(
        finished=np.array([True, True, False, False]),
        time_ms=np.array([10_000, 12_500, 3_000, 3_000]),
        progress_m=np.array([500.0, 500.0, 240.0, 120.0]),
        total_reward=np.zeros(4),
    )
    np.testing.assert_allclose(score_races(outcomes, 120.0), [50.0, 40.0, 2.0, 1.0])
