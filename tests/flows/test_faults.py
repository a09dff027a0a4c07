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
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from flows.dvc import Outcome, reproduce_stage
from flows.process import CommandError
from flows.server import is_ready
from rulka.ports import reserved_port
from tests.flows.conftest import ROOT, RULKA, change_command, family_of, make_project, use_before
from tests.flows.test_stack import PREFECT, call
from tests.waiting import PATIENCE_S, wait_for

KILL = "{ test -e killed || { touch killed; kill -9 %s; sleep 1; }; }"
"""Kills once, by the shell's word for a process: itself or its parent, which is DVC."""
STEPS = ["mkdir -p data/races data/frames", "echo hal > data/frames/x", "cp data/races/x data/frames/x"]


def reproduced(stage: str) -> Outcome:
    return reproduce_stage(stage, force=False, say=lambda _: None, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("killed", "moment"),
    [
        ("stage", "half-written"),
        ("DVC", "before DVC records it"),
        pytest.param("stage", "before it writes", marks=pytest.mark.slow),
        pytest.param("stage", "before DVC records it", marks=pytest.mark.slow),
        pytest.param("DVC", "before it writes", marks=pytest.mark.slow),
        pytest.param("DVC", "half-written", marks=pytest.mark.slow),
    ],
)
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


@pytest.mark.slow
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
        family = family_of(self.process)
        return [one for one, command in family.items() if set(words) <= {Path(word).name for word in command}]

    def kill(self, *words: str) -> None:
        """Kills the one whose command line has these words."""
        # What it starts has its command line for a moment, too, and then one of its own.
        (process,) = wait_for(
            lambda: found if len(found := self.named(*words)) == 1 else [], f"one process of {' '.join(words)}"
        )
        process.kill()


@pytest.fixture
def up(tmp_path: Path, prefect_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    monkeypatch.chdir(use_before(make_project(tmp_path), prefect_database))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with reserved_port() as port, Path("up.log").open("w") as log:
        url = f"http://127.0.0.1:{port}/api"
        Path(".env").write_text(f"PREFECT_API_URL={url}\n")
        with subprocess.Popen([*RULKA, "up"], stdout=log, stderr=log) as process:
            try:
                stack = Up(psutil.Process(process.pid), url)
                wait_for(lambda: "Ctrl-C stops" in stack.said() or process.poll() is not None, "`rulka up`")
                assert process.poll() is None, stack.said()
                yield stack
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE_S)
            finally:
                process.kill()


SERVER, WORKER, FLOW = ("prefect", "server", "start"), ("prefect", "worker", "start"), ("prefect.engine",)
BETWEEN, IN_FLOW, IN_CAPTURE, IN_EVALUATE = "between two runs", "in a flow", "in capture", "in evaluate"
HELD = "touch 'in {0}' && until test -e 'go on from {0}'; do sleep 0.1; done && mkdir -p {1}"
"""The beginning of a stage that stays at work until it may go on."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found as Linux names them")
@pytest.mark.parametrize(
    ("victim", "moments", "said"),
    [
        (SERVER, [BETWEEN, IN_FLOW, IN_CAPTURE], "the server ended with exit code -9; starting it again"),
        (WORKER, [BETWEEN, IN_FLOW, IN_CAPTURE], "the worker ended with exit code -9; starting it again"),
        (FLOW, [IN_FLOW, IN_CAPTURE, IN_EVALUATE], ""),
    ],
    ids=["server", "worker", "flow"],
)
def test_whatever_is_killed_of_the_stack_at_three_moments_the_next_run_completes(
    up: Up, victim: tuple[str, ...], moments: list[str], said: str
) -> None:
    go_on = [Path(f"go on from {stage}") for stage in ("capture", "evaluate")]
    for number, moment in enumerate(moments):
        for file in (*go_on, Path(IN_CAPTURE), Path(IN_EVALUATE)):
            file.unlink(missing_ok=True)
        change_command("capture", f"{HELD.format('capture', 'data/frames')} && echo {number} > data/frames/x")
        change_command("evaluate", f"{HELD.format('evaluate', 'data/evaluation')} && cp data/frames/x data/evaluation/")
        if moment != BETWEEN:
            assert call(*PREFECT, "deployment", "run", "rulka/full-pipeline").returncode == 0
        if moment == IN_FLOW:
            wait_for(lambda: up.named(*FLOW), "a flow")
        if moment == IN_EVALUATE:
            go_on[0].touch()
        if moment in (IN_CAPTURE, IN_EVALUATE):
            wait_for(Path(moment).exists, moment)
        up.kill(*victim)
        for file in go_on:
            file.touch()
        if said:
            wait_for(lambda times=number + 1: up.said().count(said) == times, said)
            wait_for(lambda: is_ready(up.url), "the server")
        next_run = call(*PREFECT, "deployment", "run", "rulka/full-pipeline", "--watch")
        assert next_run.returncode == 0, next_run.stdout + next_run.stderr + up.said()
        assert Path("data/evaluation/x").read_text() == f"{number}\n"
    # The worker looks after its runs' ends, each at its own time.
    wait_for(lambda: "\nrunning: " not in call(*RULKA, "status").stdout, "the end of all runs")
    runs = json.loads(call(*PREFECT, "flow-run", "ls", "--output", "json", "--limit", "50").stdout)
    ends = Counter(run["state"]["name"] for run in runs if not run["auto_scheduled"])
    assert ends["Completed"] >= len(moments)
    assert set(ends) <= {"Completed", "Crashed"}, ends
