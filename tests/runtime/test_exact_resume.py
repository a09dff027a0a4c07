"""A run that was killed and went on equals one that was not, bit for bit: real agents, cars and frames."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from real_run import assert_equal, facts, run_spec, small_params
from runtime_fakes import drive, killed_at, newest

from rulka.agents.params import ALGORITHMS
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.stop import StopSignals

ENCODER_LEARNS = {"rate_of": dict.fromkeys(("encoder", "float_head", "trunk", "heads"), 1.0)}
PRIORITISED = {"alpha": 0.6, "beta": {"interpolation": "linear", "points": [[0, 0.4]]}, "epsilon": 0.01}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "impala, lagging": ("impala", {"forced_lag": 2, "correction": {"kind": "one_step", "rho_bar": 2.0}}),
    "pql, encoder learning": ("pql", ENCODER_LEARNS | {"racer_tau": 1.0}),
    "iqn": ("iqn", {"epsilon": {"interpolation": "linear", "points": [[0, 0.5]]}}),
    "iqn, encoder learning": ("iqn", ENCODER_LEARNS),
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
WAYS: dict[str, dict[str, Any]] = {
    "serial": {},
    "two processes": {"num_collectors": 2},
    "two learners": {"learners": 2},
}
RUNS = [(case, way) for case in CASES for way in WAYS if way != "two learners" or case in ("ppo", "iqn")]
FAST = ("iqn", "serial")
"""The one that has most to remember."""


@pytest.mark.parametrize(
    ("case", "way"), [pytest.param(*run, marks=[] if run == FAST else pytest.mark.slow) for run in RUNS]
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path: Path, track: Path, case: str, way: str) -> None:
    """From its newest checkpoint, and from the one before where that is torn; a collector is killed before, too."""
    params = small_params(*CASES[case], **WAYS[way])
    whole, unharmed = drive(run_spec(params, track, tmp_path / "whole"))
    spec, die = run_spec(params, track, tmp_path / "killed"), killed_at(unharmed._learner.version // 2)

    def harm(loop: LearnerLoop) -> None:
        if way == "two processes" and loop._learner.version == 1:
            os.kill(loop._collectors.pids[1], signal.SIGKILL)
        die(loop)

    gone, _ = drive(spec, harm)
    assert gone is None, "or nothing was killed"
    torn = run_spec(params, track, tmp_path / "torn")
    shutil.copytree(spec.folder, torn.folder)
    checkpoints = sorted(torn.folder.glob("checkpoint-*.ckpt"))
    assert len(checkpoints) == 2
    checkpoints[-1].write_bytes(b"torn")
    for left in (spec, torn) if way == "serial" else (spec,):
        outcome, resumed = drive(left)
        assert outcome.state.num_starts == 2
        assert_equal(facts(resumed), facts(unharmed))
        assert_equal(outcome.best.tensors, whole.best.tensors)
        assert (outcome.best.env_steps, outcome.best.result) == (whole.best.env_steps, whole.best.result)
        one, other = newest(left.folder), newest(tmp_path / "whole")
        for ours, theirs in zip([one, *one["others"]], [other, *other["others"]], strict=True):
            assert_equal(ours["learner"], theirs["learner"])
            assert_equal(ours["experience"]["state"], theirs["experience"]["state"])
            if way != "two processes":  # which know how often they were started
                assert_equal(ours["collectors"], theirs["collectors"])


def test_experience_that_is_rebuilt_costs_no_file_and_learning_waits_for_it(tmp_path: Path, track: Path) -> None:
    params = small_params("iqn", {}, experience="rebuilt")
    spec = run_spec(params, track, tmp_path)
    drive(spec, killed_at(8))
    assert not list(tmp_path.rglob("*.npz"))
    with StopSignals() as stop, connect(spec, stop) as loop:
        assert loop._learner.experience().pieces == {}
        assert loop._learner.update() is None
        assert loop.run().state.env_steps >= params.train.max_env_steps


@pytest.mark.parametrize("damage", ["flipped", pytest.param("missing", marks=pytest.mark.slow)])
def test_damaged_experience_is_said_and_gathered_anew(
    tmp_path: Path, track: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    spec = run_spec(small_params("iqn", {}), track, tmp_path)
    drive(spec, killed_at(8))
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
