"""The log of a run that goes on, also where a full disk or a kill left it half written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rulka.runtime.live import METRICS_FILE
from rulka.runtime.metrics_log import MetricsLog, read_metrics

FIRST = {"env_steps": 10, "loss": 10.0}


def write(folder: Path, env_steps: int, num_bytes: int, *steps: int) -> int:
    """Opens the log where a run goes on, writes reports at some steps, and returns its length before the last one."""
    log, length = MetricsLog(folder, env_steps=env_steps, num_bytes=num_bytes), 0
    for step in steps:
        length = log.num_bytes
        log.write(step, {"Training": {"loss": float(step) if step < 30 else float("nan"), "text": "x"}}, {})
    log.close()
    return length


def test_what_came_after_the_checkpoint_is_forgotten_and_a_new_run_inherits_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        num_bytes = write(tmp_path, 0, 0, 10, 20)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
    write(tmp_path, 10, num_bytes, 30)
    expected = [FIRST | {"text": "x"}, {"env_steps": 30, "loss": None, "text": "x"}]
    assert list(read_metrics(tmp_path / METRICS_FILE)) == expected
    assert caplog.text == "", "nothing was damaged"


@pytest.mark.parametrize("end", [b"", b'{"env_st', b"\0" * 20, b"7\n", b"\xff\xfe\n"])
def test_a_run_goes_on_with_what_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture, end: bytes) -> None:
    """The file may also be shorter than the checkpoint remembers."""
    write(tmp_path, 0, 0, 10)
    path = tmp_path / METRICS_FILE
    path.write_bytes(path.read_bytes() + end)
    write(tmp_path, 20, 1000, 25)
    assert [line["env_steps"] for line in read_metrics(path)] == [10, 25]
    assert (f"{METRICS_FILE}: 1 damaged lines are left out" in caplog.text) == bool(end)
