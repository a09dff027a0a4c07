"""What is lost when the whole run dies: `docs/runtime.md` has the table, these are its rows.

Single collectors, signals and silence: `test_processes.py`; damaged files: `test_checkpoint.py` and
`test_exact_resume.py`.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import psutil
import pytest
from fake_main import PLACES
from runtime_fakes import BLOCK_STEPS, fake_run, fake_stage, is_alive, memory_of, newest, until_saved

from rulka.machine.errors import UserError
from rulka.runtime.checkpoint import CheckpointError
from rulka.runtime.connect import connect, train_run
from rulka.runtime.metrics_log import MetricsLog
from rulka.runtime.stop import StopRequestedError, StopSignals
from tests.waiting import PATIENCE_S, wait_for


@pytest.mark.parametrize(
    ("moment", "num_collectors"),
    [
        ("inserting", 0),
        # What writes files does so in this process, with collectors or without.
        *(pytest.param(moment, 0, marks=pytest.mark.slow) for moment in PLACES if moment != "inserting"),
        *(pytest.param(moment, 1, marks=pytest.mark.slow) for moment in ("learning", "inserting")),
    ],
)
def test_killed_at_any_moment_it_goes_on_from_the_last_checkpoint(
    tmp_path: Path, moment: str, num_collectors: int
) -> None:
    """The killed run had saved at least once; what it saved is whole, and the next start begins there."""
    with fake_stage(tmp_path, str(num_collectors), moment) as killed:
        text, _ = killed.communicate(timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL, text
    saved = newest(tmp_path)
    env_steps = saved["run"]["env_steps"]
    assert env_steps > 0
    with StopSignals() as stop, connect(fake_run(tmp_path, max_env_steps=env_steps + 5 * BLOCK_STEPS), stop) as loop:
        learner = loop._learner
        assert loop.state.env_steps == learner.num_env_steps == env_steps
        assert len(learner.seen) == env_steps // BLOCK_STEPS, "every block that the checkpoint counts is there"
        assert learner.version == saved["learner"]["version"]
        assert loop.run().state.env_steps == env_steps + 5 * BLOCK_STEPS


@pytest.mark.slow
def test_all_processes_killed_at_once_leave_no_memory(tmp_path: Path) -> None:
    """With the resource tracker, too, nobody is left to remove it: the system does."""
    with fake_stage(tmp_path, "1") as stage:
        until_saved(stage, tmp_path)
        family, left = psutil.Process(stage.pid).children(recursive=True), memory_of(stage.pid)
        assert left
        os.killpg(stage.pid, signal.SIGKILL)
        stage.wait(PATIENCE_S)
        wait_for(lambda: not any(map(is_alive, family)), "all processes to end")
    assert not any(path.exists() for path in left)
    env_steps = newest(tmp_path)["run"]["env_steps"]
    spec = fake_run(tmp_path, num_collectors=1, max_env_steps=env_steps + BLOCK_STEPS)
    assert train_run(spec).state.env_steps >= env_steps + BLOCK_STEPS


def test_a_full_disk_for_metrics_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(MetricsLog, "write", full)
    with pytest.raises(UserError, match=r"no room to write metrics\.jsonl; checkpoints are untouched"):
        train_run(fake_run(tmp_path))


@pytest.mark.parametrize("full_at", [1, 2, 3, 4])
def test_a_full_disk_ends_the_run_and_leaves_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int
) -> None:
    """Whichever file does not fit any more, an experience file or the checkpoint itself."""
    with pytest.raises(StopRequestedError):  # after its second update, with a checkpoint
        train_run(fake_run(tmp_path, learner={"fault": "interrupt"}))
    before = newest(tmp_path)
    count, sync = 0, os.fsync

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count >= full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; earlier checkpoints are untouched"):
        train_run(fake_run(tmp_path, checkpoint_s=1e-9))
    monkeypatch.undo()
    after = newest(tmp_path)
    assert after["run"]["env_steps"] >= before["run"]["env_steps"]
    assert not list(tmp_path.rglob("*.tmp"))
    with StopSignals() as stop, connect(fake_run(tmp_path), stop) as loop:
        assert len(loop._learner.seen) == after["run"]["env_steps"] // BLOCK_STEPS
        loop.run()
