"""Runs a tier of the tests repeatedly in random order: alone, under load, or in another time zone and locale.

    python -m benchmarks.suite fast:13 busy:5 elsewhere:2 all:3

Prints one line per finished run, with its failures and warnings; exits with 1 if a run failed. `CONDITIONS` defines
the conditions. The seed of the order is printed; `--seed` repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WORKERS = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
BUSY_LOOP = "while True: pass"


class Condition(NamedTuple):
    """Test tier and the conditions it runs under."""

    tier: str
    """Marker expression for pytest's `-m`."""
    num_loops: int = 0
    """Number of busy loops that run beside the tests."""
    environment: Mapping[str, str] = MappingProxyType({})


CONDITIONS = {
    "fast": Condition("not slow"),
    "busy": Condition("not slow", num_loops=2),
    "elsewhere": Condition("not slow", environment={"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8"}),
    "all": Condition("slow or not slow"),
}


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keeps `number` cores busy until the block ends."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(name: str, seed: int, arguments: list[str]) -> bool:
    """Runs one tier under one condition, prints its result, and returns True if it passed."""
    condition = CONDITIONS[name]
    order = ["-p", "randomly", "--randomly-dont-reset-seed", f"--randomly-seed={seed}"]
    command = [sys.executable, "-m", "pytest", *WORKERS, "-m", condition.tier, *order, *arguments]
    started_s = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output, busy_loops(condition.num_loops):
        environment = os.environ | condition.environment
        code = subprocess.call(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        output.seek(0)
        text = output.read()
    minutes = (time.monotonic() - started_s) / 60
    last = text.rstrip().rpartition("\n")[2].strip("= ")
    print(f"{name:<10} seed {seed:<11} {minutes:5.1f} min  {last}", flush=True)
    for line in re.findall(r"^(?:FAILED|ERROR|  .*Warning:) .*", text, re.MULTILINE):
        print(f"    {line}", flush=True)
    if code and not re.search(r"^(?:FAILED|ERROR) ", text, re.MULTILINE):
        print(text[-3000:], flush=True)
    return code == 0


def main() -> int:
    """Runs the conditions of the command line, and returns the exit code."""
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
