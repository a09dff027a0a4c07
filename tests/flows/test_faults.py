"""What is killed, cut off or damaged between Prefect, DVC and a stage: `docs/operations.md` has the table.

Trainings, their collectors and learners: `tests/runtime/test_fault_matrix.py`.
Real stages: `tests/test_stage_in_dvc.py`.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from flows.dvc import Outcome, reproduce_stage
from flows.process import CommandError
from flows.server import is_ready
from tests.flows.conftest import ROOT, RULKA, change_command, make_project, use_before
from tests.flows.test_stack import PREFECT, call, free_port, wait_for

KILL = "{ test -e killed || { touch killed; kill -9 %s; sleep 1; }; }"
"""Kills once, by the shell's word for a process: itself or its parent, which is DVC."""
STEPS = ["mkdir -p data/races data/frames", "echo hal > data/frames/x", "cp data/races/x data/frames/x"]


def reproduced(stage: str) -> Outcome:
    return reproduce_stage(stage, force=False, say=lambda _: None, timeout_s=100.0)


@pytest.mark.parametrize("moment", ["before it writes", "half-written", "before DVC records it"])
@pytest.mark.parametrize("killed", ["stage", "DVC"])
def test_a_stage_or_dvc_killed_at_any_moment_is_run_again(toy_project: Path, killed: str, moment: str) -> None:
    assert reproduced("races") is Outcome.RAN
    at = ["before it writes", "half-written", "before DVC records it"].index(moment) + 1
    kill = KILL % ("$$" if killed == "stage" else "$PPID")
    change_command("capture", " && ".join([*STEPS[:at], kill, *STEPS[at:]]))
    with pytest.raises(CommandError):
        reproduced("capture")
    assert Path("killed").exists(), "or nothing was tested"
    assert Path("data/races/x").read_text() == "1\n"
    assert reproduced("capture") is Outcome.RAN
    assert Path("data/frames/x").read_text() == "1\n"
    assert reproduced("capture") is Outcome.UNCHANGED


def test_a_damaged_entry_of_dvcs_cache_is_not_taken(toy_project: Path) -> None:
    """The output is lost, and what the cache has of it was overwritten: it is made again."""
    reproduced("races")
    reproduced("capture")
    Path("data/frames/x").unlink()
    entries = [file for file in Path(".dvc/cache/files").rglob("*") if file.is_file()]
    damaged = [file for file in entries if file.read_bytes() == b"1\n"]
    assert damaged
    for file in damaged:
        file.chmod(0o644)
        file.write_bytes(b"damaged\n")
    assert reproduced("capture") is Outcome.RAN
    assert Path("data/frames/x").read_text() == "1\n"


def test_a_cut_off_output_is_brought_back(toy_project: Path) -> None:
    reproduced("races")
    reproduced("capture")
    Path("data/frames/x").write_text("")
    assert reproduced("capture") is Outcome.RESTORED
    assert Path("data/frames/x").read_text() == "1\n"


@dataclass(frozen=True)
class Up:
    """`rulka up` of the working directory, ready."""

    process: psutil.Process
    url: str

    def said(self) -> str:
        return Path("up.log").read_text()

    def named(self, *words: str) -> list[psutil.Process]:
        """Those of its processes whose command line has these words."""
        found = []
        for process in self.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found += [process] if set(words) <= {Path(word).name for word in process.cmdline()} else []
        return found


@pytest.fixture
def up(tmp_path: Path, prefect_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    monkeypatch.chdir(use_before(make_project(tmp_path), prefect_database))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    url = f"http://127.0.0.1:{free_port()}/api"
    Path(".env").write_text(f"PREFECT_API_URL={url}\n")
    with Path("up.log").open("w") as log, subprocess.Popen([*RULKA, "up"], stdout=log, stderr=log) as process:
        stack = Up(psutil.Process(process.pid), url)
        wait_for(lambda: "Ctrl-C stops" in stack.said() or process.poll() is not None, 300.0)
        assert process.poll() is None, stack.said()
        yield stack
        process.send_signal(signal.SIGINT)
        process.wait(120)


SERVER, WORKER, FLOW = ("prefect", "server", "start"), ("prefect", "worker", "start"), ("prefect.engine",)
IN_CAPTURE, IN_EVALUATE = ("sleep", "4.1"), ("sleep", "3.1")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found as Linux names them")
@pytest.mark.parametrize(
    ("victim", "moments", "said"),
    [
        (SERVER, [(), FLOW, IN_CAPTURE], "the server ended with exit code -9; starting it again"),
        (WORKER, [(), FLOW, IN_CAPTURE], "the worker ended with exit code -9; starting it again"),
        (FLOW, [FLOW, IN_CAPTURE, IN_EVALUATE], ""),
    ],
    ids=["server", "worker", "flow"],
)
def test_whatever_is_killed_of_the_stack_at_three_moments_the_next_run_completes(
    up: Up, victim: tuple[str, ...], moments: list[tuple[str, ...]], said: str
) -> None:
    """A moment is a process that is there: none is between two runs."""
    for number, moment in enumerate(moments):
        change_command("capture", f"sleep 4.1 && mkdir -p data/frames && echo {number} > data/frames/x")
        change_command("evaluate", "sleep 3.1 && mkdir -p data/evaluation && cp data/frames/x data/evaluation/x")
        if moment:
            assert call(*PREFECT, "deployment", "run", "rulka/full-pipeline").returncode == 0
            wait_for(lambda words=moment: up.named(*words))
        (process,) = up.named(*victim)
        process.kill()
        if said:
            wait_for(lambda times=number + 1: up.said().count(said) == times)
            wait_for(lambda: is_ready(up.url))
        next_run = call(*PREFECT, "deployment", "run", "rulka/full-pipeline", "--watch")
        assert next_run.returncode == 0, next_run.stdout + next_run.stderr + up.said()
        assert Path("data/evaluation/x").read_text() == f"{number}\n"
    # The worker looks after its runs' ends, each at its own time.
    wait_for(lambda: "\nrunning: " not in call(*RULKA, "status").stdout)
    runs = json.loads(call(*PREFECT, "flow-run", "ls", "--output", "json", "--limit", "50").stdout)
    ends = Counter(run["state"]["name"] for run in runs if not run["auto_scheduled"])
    assert ends["Completed"] >= len(moments)
    assert set(ends) <= {"Completed", "Crashed"}, ends
