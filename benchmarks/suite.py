"""Runs a tier of the tests again and again, each time in another order, alone, beside a load, or in another place.

    python -m benchmarks.suite fast:13 busy:5 elsewhere:2 all:3

Prints a line for each run as it ends, with the names of what failed; exits with 1 if anything did. What each condition
means is in `CONDITIONS`. The seed of the order is printed: `--seed` repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

ROOT = Path(__file__).parents[1]
WORKERS = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
BUSY_LOOP = "while True: pass"
LOOK_S = 2.0


class Condition(NamedTuple):
    """What runs, and beside what."""

    tier: str
    """What pytest selects with `-m`."""
    num_loops: int = 0
    """Endless loops that run beside the tests."""
    environment: Mapping[str, str] = MappingProxyType({})


CONDITIONS = {
    "fast": Condition("not slow"),
    "busy": Condition("not slow", num_loops=2),
    "elsewhere": Condition("not slow", environment={"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8"}),
    "all": Condition("slow or not slow"),
}


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keeps as many cores busy until the block ends."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class PeakMemory(threading.Thread):
    """The most memory that a process and its descendants had together, in bytes; pages that they share count once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self.peak_bytes = 0

    def run(self) -> None:
        """Looks until the process has ended."""
        while self._root.is_running():
            num_bytes = 0
            try:
                for process in [self._root, *self._root.children(recursive=True)]:
                    num_bytes += process.memory_full_info().pss
            except psutil.Error:  # one ended meanwhile
                pass
            self.peak_bytes = max(self.peak_bytes, num_bytes)
            time.sleep(LOOK_S)


def run(name: str, seed: int, arguments: list[str]) -> bool:
    """Runs one tier under one condition, prints its line, and returns whether it was green."""
    condition = CONDITIONS[name]
    order = ["-p", "randomly", "--randomly-dont-reset-seed", f"--randomly-seed={seed}"]
    command = [sys.executable, "-m", "pytest", *WORKERS, "-m", condition.tier, *order, *arguments]
    started_s = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output, busy_loops(condition.num_loops):
        environment = os.environ | condition.environment
        pytest = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        memory = PeakMemory(pytest.pid)
        memory.start()
        code = pytest.wait()
        output.seek(0)
        text = output.read()
    minutes, gigabytes = (time.monotonic() - started_s) / 60, memory.peak_bytes / 1e9
    last = text.rstrip().rpartition("\n")[2].strip("= ")
    print(f"{name:<10} seed {seed:<11} {minutes:5.1f} min  {gigabytes:4.1f} GB  {last}", flush=True)
    for line in re.findall(r"^(?:FAILED|ERROR) .*", text, re.MULTILINE):
        print(f"    {line}", flush=True)
    if code and not re.search(r"^(?:FAILED|ERROR) ", text, re.MULTILINE):
        print(text[-3000:], flush=True)
    return code == 0


def main() -> int:
    """Runs what the command line asks for, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help=f"CONDITION:NUMBER; conditions are {', '.join(CONDITIONS)}")
    parser.add_argument("--seed", type=int, help="of the first order; each run takes the next (default: by chance)")
    options, arguments = parser.parse_known_args()
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    names = [name for asked in options.runs for name, _, number in [asked.partition(":")] for _ in range(int(number))]
    if unknown := set(names) - set(CONDITIONS):
        parser.error(f"there is no condition {', '.join(sorted(unknown))}")
    locales = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.lower()
    if "elsewhere" in names and "tr_tr.utf8" not in locales:
        parser.error("this machine has no locale tr_TR.UTF-8: localedef -i tr_TR -f UTF-8 tr_TR.UTF-8")
    green = [run(name, seed + place, arguments) for place, name in enumerate(names)]
    return 0 if all(green) else 1


if __name__ == "__main__":
    sys.exit(main())
