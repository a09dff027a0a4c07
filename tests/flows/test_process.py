import os
import sys
import time

import psutil
import pytest

from flows.process import CommandError, run_in_group

FAMILY = """
import subprocess, time
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_lines_of_both_streams_arrive_in_order() -> None:
    code = "import sys, os; print('one'); print(); print('two', file=sys.stderr); print(os.environ['PATH'])"
    lines: list[str] = []
    run_in_group(python(code), lines.append, timeout_s=30)
    assert lines[:2] == ["one", "two"]
    assert lines[2].startswith(os.path.dirname(sys.executable) + os.pathsep)


def test_lines_arrive_while_the_command_runs() -> None:
    times: list[float] = []
    code = "import time; print('a'); time.sleep(0.5); print('b')"
    run_in_group(python(code), lambda _: times.append(time.monotonic()), timeout_s=30)
    assert times[1] - times[0] > 0.3


def test_a_failure_names_the_command_and_its_exit_code() -> None:
    with pytest.raises(CommandError, match=r"raise SystemExit\(3\)` failed with exit code 3"):
        run_in_group(python("raise SystemExit(3)"), lambda _: None, timeout_s=30)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_ends_the_whole_group(error: type[BaseException]) -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise error

    started_s = time.monotonic()
    with pytest.raises(error):
        run_in_group(python(FAMILY), interrupt, timeout_s=30)
    assert not is_alive(pids[0])
    assert time.monotonic() - started_s < 10


def test_a_command_that_takes_too_long_is_ended() -> None:
    lines: list[str] = []
    with pytest.raises(CommandError, match="took longer than 1 s"):
        run_in_group(python(FAMILY), lines.append, timeout_s=1)
    assert not is_alive(int(lines[0]))
