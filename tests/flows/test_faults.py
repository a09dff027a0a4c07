"""What is killed, cut off or damaged between Prefect, DVC and a stage: `docs/operations.md` has the table.

Trainings, their collectors and learners: `tests/runtime/test_fault_matrix.py`.
Real stages: `tests/stages/test_stage_in_dvc.py`.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from flows.dvc import Outcome, reproduce_stage
from flows.process import CommandError
from tests.flows.conftest import ROOT, RULKA, change_command, family_of, make_project, reserved_port, use_before
from tests.flows.test_up import PREFECT, READY, call, runs_of_prefect
from tests.waiting import PATIENCE_S, wait_for

KILL = "{ test -e killed || { touch killed; kill -9 %s; sleep 1; }; }"
"""Kills once, by the shell's word for a process: itself or its parent, which is DVC."""
STEPS = ["mkdir -p data/races data/frames", "echo hal > data/frames/x", "cp data/races/x data/frames/x"]


def reproduced(stage: str) -> Outcome:
    return reproduce_stage(stage, force=False, say=lambda _: None, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("killed", "moment"),
    [
        ("DVC", "before DVC records it"),
        pytest.param("stage", "half-written", marks=pytest.mark.slow),
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


@pytest.mark.slow
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


@contextmanager
def running(url: str) -> Iterator[Up]:
    """Has `rulka up` for the block, as systemd would start it again."""
    with Path("up.log").open("w") as log, subprocess.Popen([*RULKA, "up"], stdout=log, stderr=log) as process:
        try:
            stack = Up(psutil.Process(process.pid), url)
            wait_for(lambda: READY in stack.said() or process.poll() is not None, "`rulka up`")
            assert process.poll() is None, stack.said()
            yield stack
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)
        finally:
            process.kill()


SERVER, WORKER, FLOW = ("prefect", "server", "start"), ("prefect", "worker", "start"), ("prefect.engine",)
HELD = "touch 'in {0}' && until test -e 'go on'; do sleep 0.1; done && mkdir -p {1}"
"""The beginning of a stage that stays at work until it may go on."""


@pytest.fixture
def url(tmp_path: Path, prefect_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the server of a project, which is the working directory."""
    monkeypatch.chdir(use_before(make_project(tmp_path), prefect_database))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    change_command("capture", f"{HELD.format('capture', 'data/frames')} && cp data/races/x data/frames/")
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/api"
        Path(".env").write_text(f"PREFECT_API_URL={url}\n")
        yield url


def check_next_run_completes() -> None:
    """Checks that a run which is asked for now completes, and that the one before is said to have crashed."""
    Path("go on").touch()
    next_run = call(*PREFECT, "deployment", "run", "rulka/full-pipeline", "--watch")
    assert next_run.returncode == 0, next_run.stdout + next_run.stderr
    assert Path("data/evaluation/x").read_text() == "1\n"

    def ends() -> list[str]:
        runs = [run for run in runs_of_prefect() if not run["auto_scheduled"]]
        return sorted(run["state"]["name"] for run in runs)

    wait_for(lambda: ends() == ["Completed", "Crashed"], "the end of both runs")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found as Linux names them")
@pytest.mark.parametrize(
    ("victim", "said"),
    [
        (SERVER, "the Prefect server ended with exit code -9"),
        (WORKER, "the Prefect worker ended with exit code -9"),
    ],
    ids=["server", "worker"],
)
def test_a_killed_part_ends_up_and_the_next_up_goes_on(url: str, victim: tuple[str, ...], said: str) -> None:
    with running(url) as up:
        assert call(*PREFECT, "deployment", "run", "rulka/full-pipeline").returncode == 0
        wait_for(Path("in capture").exists, "the stage")
        family = list(family_of(up.process))
        up.kill(*victim)
        assert up.process.wait(PATIENCE_S) == 1
        assert f"error: {said}" in up.said()
        _, left = psutil.wait_procs(family, timeout=PATIENCE_S)
        assert left == []
    with running(url):
        check_next_run_completes()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found as Linux names them")
def test_a_killed_flow_is_a_crashed_run_and_the_next_one_completes(url: str) -> None:
    with running(url) as up:
        assert call(*PREFECT, "deployment", "run", "rulka/full-pipeline").returncode == 0
        wait_for(Path("in capture").exists, "the stage")
        up.kill(*FLOW)
        check_next_run_completes()
