"""A serial run that was killed and went on equals one that was not, bit for bit: real agents, cars and frames."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_run import run_spec
from runtime_fakes import record_in

from rulka.agents.params import ALGORITHM_NAMES
from rulka.params import Params, read_params
from rulka.runtime.connect import connect
from rulka.runtime.greedy_check import RECORD_FILE
from rulka.runtime.learner_loop import LearnerLoop, Outcome
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals

ROOT = Path(__file__).parents[2]
SMALL = {"steps_per_update": 60, "batch_size": 24, "epochs": 2, "value_warmup_steps": 144, "start_steps": 96}
"""What a section says that nothing else is said of, as far as it knows the key."""


class Killed(BaseException):
    """Stands for `kill -9`: nothing is saved when it comes."""


def small_params(algorithm: str, extras: Mapping[str, Any], **train: Any) -> Params:
    """Returns parameters of a run of some 20 updates; `extras` are of the algorithm's section, `network` or `train`."""
    params = read_params(ROOT / "params.yaml").model_dump()
    params["observation"] |= {"height": 36, "width": 36}
    params["network"] |= {"float_hidden": 16, "dense_hidden": 32}
    params["network"]["iqn"]["tau_embedding"] = 8
    params["race_end"]["max_race_s"] = 1.0
    params["train"] |= (
        {
            "algorithm": algorithm,
            "compared": [],
            "precision": "float32",
            "num_collectors": 0,
            "cars_per_collector": 3,
            "block_steps": 8,
            "max_env_steps": 720,
            "max_minutes": None,  # schedules must not go by the clock
            "checkpoint_s": 1e-9,
            "num_checks": 3,
            "check_races": 2,
            "check_candidates": 2,
            "final_check_races": 2,
        }
        | extras.get("train", {})
        | train
    )
    params[algorithm] |= {name: value for name, value in SMALL.items() if name in params[algorithm]}
    params["ppo"] |= {"steps_per_update": 72, "batch_size": 24, "epochs": 2, "value_warmup_steps": 144}
    params["impala"] |= {"steps_per_update": 48, "batch_size": 24, "value_warmup_steps": 144}
    params["iqn"] |= {
        "start_steps": 96,
        "buffer_steps": 288,
        "batch_size": 16,
        "samples_per_insert": 1.0,
        "warmup_steps": 0,
        "demonstration_share": 0.0,
    }
    alike = {"steps_per_update": 60, "batch_size": 24, "epochs": 2}
    params["grpo"] |= alike | {"group_size": 3}
    params["dpo"] |= alike | {
        "pairs": {"kind": "online", "group_size": 3, "gamma": 1.0, "cut_worth": -4.0, "min_gap": 0.0}
    }
    params["pql"] |= {
        "start_steps": 96,
        "buffer_steps": 288,
        "batch_size": 16,
        "steps_per_critic_update": 9,
        "critic_updates_per_version": 3,
        "critic_warmup_updates": 8,
        "max_steps_ahead": 20,
    }
    params["network"]["iqn"] |= extras.get("network", {})
    params[algorithm] |= {name: value for name, value in extras.items() if name not in ("network", "train")}
    return Params.model_validate(params)


def drive(spec: RunSpec, killed_at: int | None = None) -> tuple[Outcome | None, LearnerLoop]:
    """Runs until the end, or until just after an update of a number, which is learned and never saved."""
    with StopSignals() as stop, connect(spec, stop) as loop:
        update = loop._learner.update

        def update_or_die() -> dict[str, float] | None:
            values = update()
            if values is not None and loop._learner.version == killed_at:
                raise Killed
            return values

        loop._learner.update = update_or_die
        try:
            return loop.run(), loop
        except Killed:
            return None, loop


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """Compares nested dictionaries and sequences of tensors, arrays and numbers, to the bit."""
    assert type(one) is type(other), where
    if isinstance(one, Mapping):
        assert list(one) == list(other), where
        for name in one:
            assert_equal(one[name], other[name], f"{where}/{name}")
    elif isinstance(one, Sequence) and not isinstance(one, str):
        assert len(one) == len(other), where
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{where}/{number}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, where)
    else:
        assert one == other, where


PRIORITISED = {"alpha": 0.6, "beta": {"interpolation": "linear", "points": [[0, 0.4]]}, "epsilon": 0.01}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHM_NAMES},
    "impala, lagging": ("impala", {"forced_lag": 2, "correction": {"kind": "one_step", "rho_bar": 2.0}}),
    "pql, encoder learning": (
        "pql",
        {
            "rate_of": {"encoder": 1.0, "float_head": 1.0, "trunk": 1.0, "heads": 1.0},
            "racer_tau": 1.0,
        },
    ),
    "iqn": ("iqn", {"epsilon": {"interpolation": "linear", "points": [[0, 0.5]]}}),
    "iqn, encoder learning": (
        "iqn",
        {"rate_of": {"encoder": 1.0, "float_head": 1.0, "trunk": 1.0, "heads": 1.0}},
    ),
    "iqn with everything": (
        "iqn",
        {
            "prioritised": PRIORITISED | {"min_actions_left": 10},
            "held_out_share": 0.2,
            "boltzmann_epsilon": {"interpolation": "linear", "points": [[0, 0.2]]},
            "network": {"noisy_sigma": 0.5},
        },
    ),
    **{
        f"{name} in int8": (name, {"network": {"embedding_at": "hidden"}, "train": {"acting_precision": "int8"}})
        for name in ("ppo", "iqn")
    },
}
FAST = "iqn"
"""The one that has most to remember."""


@pytest.mark.parametrize("case", [pytest.param(name, marks=[] if name == FAST else pytest.mark.slow) for name in CASES])
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path: Path, track: Path, case: str) -> None:
    """From its newest checkpoint, and from the one before where that is torn."""
    params = small_params(*CASES[case])
    whole, unharmed = drive(run_spec(params, track, tmp_path / "whole"))
    assert whole is not None
    spec = run_spec(params, track, tmp_path / "killed")
    gone, _ = drive(spec, killed_at=unharmed._learner.version // 2)
    assert gone is None, "or nothing was killed"
    torn = run_spec(params, track, tmp_path / "torn")
    shutil.copytree(spec.folder, torn.folder)
    checkpoints = sorted(torn.folder.glob("checkpoint-*.ckpt"))
    assert len(checkpoints) == 2
    checkpoints[-1].write_bytes(b"torn")
    for left in (spec, torn):
        went_on_alike(*drive(left), whole, unharmed)


def went_on_alike(outcome: Outcome | None, resumed: LearnerLoop, whole: Outcome, unharmed: LearnerLoop) -> None:
    assert outcome is not None
    assert outcome.state.num_starts == 2
    assert_equal(outcome.best.tensors, whole.best.tensors, "best")
    assert (outcome.best.env_steps, outcome.best.result) == (whole.best.env_steps, whole.best.result)
    assert_equal(resumed._learner.state_dict(), unharmed._learner.state_dict(), "learner")
    assert_equal(resumed._learner.experience(), unharmed._learner.experience(), "experience")
    assert_equal(resumed._quantiser.state_dict(), unharmed._quantiser.state_dict(), "quantiser")
    assert_equal(resumed._collectors.state_dict(), unharmed._collectors.state_dict(), "collector")
    assert resumed.races.values() == unharmed.races.values()
    records = [run.spec.folder / RECORD_FILE for run in (resumed, unharmed)]
    assert records[0].exists() == records[1].exists()
    if records[0].exists():
        one, other = (record_in(path.parent) for path in records)
        assert all(one[name] == other[name] for name in ("seed", "car", "time_ms"))


def test_experience_that_is_rebuilt_costs_no_file_and_learning_waits_for_it(tmp_path: Path, track: Path) -> None:
    params = small_params("iqn", {}, experience="rebuilt")
    spec = run_spec(params, track, tmp_path)
    drive(spec, killed_at=8)
    assert not list(tmp_path.rglob("*.npz"))
    with StopSignals() as stop, connect(spec, stop) as loop:
        assert loop._learner.experience().pieces == {}
        assert loop._learner.update() is None
        assert loop.run().state.env_steps >= params.train.max_env_steps


def test_only_what_is_new_is_written_and_only_what_is_needed_is_kept(tmp_path: Path, track: Path) -> None:
    spec = run_spec(small_params("iqn", {}), track, tmp_path)
    drive(spec)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "experience").glob("*.npz")}
    assert 288 // 24 <= len(files) <= 288 // 24 + 1, "the ring's blocks, and those of the checkpoint before"
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("damage", ["flipped", pytest.param("missing", marks=pytest.mark.slow)])
def test_damaged_experience_is_said_and_gathered_anew(
    tmp_path: Path, track: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    spec = run_spec(small_params("iqn", {}), track, tmp_path)
    drive(spec, killed_at=8)
    victim = sorted((tmp_path / "experience").glob("*.npz"))[-2]
    if damage == "flipped":
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    else:
        victim.unlink()
    with StopSignals() as stop, connect(spec, stop) as loop:
        assert f"{victim.name} is damaged or missing" in caplog.text
        assert "gathering experience anew" in caplog.text
        assert loop._learner.version >= 7, "the weights go on"
        assert loop._learner.experience().pieces == {}
        assert loop.run().ended_by == "max_env_steps"
