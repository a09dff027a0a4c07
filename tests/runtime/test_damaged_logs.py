"""Logs that a full disk or a kill left half written: the run goes on, and says what it left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from rulka.runtime.live import METRICS_FILE
from rulka.runtime.metrics_log import MetricsLog, read_metrics

PLOT = "dvclive/plots/metrics/Training/loss.tsv"
SUMMARY = "dvclive/metrics.json"


@pytest.fixture
def num_bytes(tmp_path: Path) -> int:
    """Length of the metrics of a run of two reports, at 10 and 20 steps."""
    log = MetricsLog(tmp_path, env_steps=0, num_bytes=0)
    for env_steps in (10, 20):
        log.write(env_steps, {"Training": {"loss": float(env_steps)}}, {})
    length = log.num_bytes
    log.close()
    return length


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (PLOT, b"", "begun anew"),
        (PLOT, b"\0" * 40, "begun anew"),
        (PLOT, b"st", "begun anew"),
        (PLOT, b"step\tloss\n10\t10.0\n20\t", "1 damaged lines"),
        (PLOT, b"step\tloss\n10\t10.0\n" + b"\0" * 20, "1 damaged lines"),
        (PLOT, b"step\tloss\n10\t10.0\n\xff\xfe\n20\t20.0\n", "1 damaged lines"),
        (SUMMARY, b"", "begun anew"),
        (SUMMARY, b'{"Training": {"lo', "begun anew"),
        (SUMMARY, b"\0" * 30, "begun anew"),
        (METRICS_FILE, b'{"env_steps": 10, "loss": 10.0}\n{"env_st', "1 damaged lines"),
        (METRICS_FILE, b'{"env_steps": 10, "loss": 10.0}\n' + b"\0" * 20, "1 damaged lines"),
        (METRICS_FILE, b'{"env_steps": 10, "loss": 10.0}\n7\n', "1 damaged lines"),
    ],
)
def test_a_run_goes_on_with_what_can_be_read(
    tmp_path: Path, num_bytes: int, caplog: pytest.LogCaptureFixture, file: str, content: bytes, said: str
) -> None:
    (tmp_path / file).write_bytes(content)
    log = MetricsLog(tmp_path, env_steps=20, num_bytes=num_bytes)
    log.write(30, {"Training": {"loss": 30.0}}, {})
    log.close()
    steps = [line["env_steps"] for line in read_metrics(tmp_path / METRICS_FILE)]
    assert steps == ([10, 30] if file == METRICS_FILE else [10, 20, 30])
    rows = (tmp_path / PLOT).read_text(encoding="utf-8").splitlines()
    assert rows[0] == "step\tloss"
    assert [int(row.split("\t")[0]) for row in rows[1:]][-1] == 30
    assert Path(file).name in caplog.text
    assert said in caplog.text


def test_undamaged_logs_are_not_spoken_of(tmp_path: Path, num_bytes: int, caplog: pytest.LogCaptureFixture) -> None:
    MetricsLog(tmp_path, env_steps=20, num_bytes=num_bytes).close()
    assert caplog.text == ""


def test_a_lost_end_of_the_metrics_is_no_reason_to_stop(tmp_path: Path, num_bytes: int) -> None:
    """The file is shorter than the checkpoint remembers."""
    path = tmp_path / METRICS_FILE
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    MetricsLog(tmp_path, env_steps=20, num_bytes=num_bytes).close()
    assert [line["env_steps"] for line in read_metrics(path)] == [10]
