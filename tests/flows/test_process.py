import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from flows.process import CommandError, error_lines, run_in_group
from tests.machine.test_processes import is_alive
from tests.waiting import PATIENCE_S, wait_for

FAMILY = """
import pathlib, subprocess, sys, time
try:
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[1]).write_text(str(child.wait()))
"""
"""Notes, where it is interrupted, how its child ended."""
SLOW = """
import pathlib, sys, time
print("a")
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("b")
"""


def python(code: str, *arguments: Path) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has been asked to end is not killed, however long a busy machine lets it wait for its turn."""
    monkeypatch.setattr("flows.process.SAVE_GRACE_S", PATIENCE_S)


def test_lines_arrive_in_order_while_the_command_runs(tmp_path: Path) -> None:
    code = "import sys, os; print('one'); print(); print('two', file=sys.stderr); print(os.environ['PATH'])"
    lines: list[str] = []
    run_in_group(python(code), lines.append, PATIENCE_S)
    assert lines[:2] == ["one", "two"]
    assert lines[2].startswith(os.path.dirname(sys.executable) + os.pathsep)
    # Its second comes when somebody has heard the first.
    assert run_in_group(python(SLOW, tmp_path / "a"), lambda line: (tmp_path / line).touch(), PATIENCE_S) == ["a", "b"]
    with pytest.raises(CommandError, match=r"raise SystemExit\(3\)` failed with exit code 3"):
        run_in_group(python("raise SystemExit(3)"), lambda _: None, PATIENCE_S)


def test_errors_are_found_among_lines_with_their_hints() -> None:
    assert error_lines(["  a", "error: no", "  Make some.", "b", "  c"]) == ["error: no", "  Make some."]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_ends_the_whole_group(tmp_path: Path, error: type[BaseException]) -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise error

    with pytest.raises(error):
        run_in_group(python(FAMILY, tmp_path / "child"), interrupt, PATIENCE_S)
    assert not is_alive(pids[0])
    assert int((tmp_path / "child").read_text()) == -signal.SIGINT, "by the interrupt, which parent and child heard"


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Timer(threading.Timer):
        """Begins when the command has started its child: a busy machine takes its time for that."""

        def run(self) -> None:
            wait_for(lambda: lines, "the first line")
            super().run()

    monkeypatch.setattr("flows.process.threading.Timer", Timer)
    with pytest.raises(CommandError, match="took longer than 1 s"):
        run_in_group(python(FAMILY, tmp_path / "child"), lines.append, timeout_s=1)
    assert not is_alive(int(lines[0]))
    assert int((tmp_path / "child").read_text()) == -signal.SIGINT
