"""A stage made of fakes, started as a process of its own: `fake_main.py FOLDER NUM_COLLECTORS [MOMENT [LEARNERS]]`.

At a moment that is named, the process kills itself as `kill -9` would: nothing can be saved any more.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from runtime_fakes import FakeLearner, fake_run, saved_env_steps

from rulka.runtime.connect import train_run
from rulka.runtime.greedy_check import GreedyCheck
from rulka.stages.stage import run_stage

PLACES: dict[str, tuple[Any, str, int, str]] = {
    "learning": (FakeLearner, "update", 3, ""),
    "inserting": (FakeLearner, "insert", 3, ""),
    "a check": (GreedyCheck, "_race", 2, ""),
    "writing experience": (np, "savez", 2, ""),
    "before a checkpoint is in its place": (Path, "replace", 1, "checkpoint-0*[1-9]"),
}
"""Where to die, by moment: a function, and in which call of those whose first argument holds a pattern.

Calls count in this process, collectors have theirs, and from the first checkpoint on that has experience.
"""


def die_at(moment: str, folder: Path) -> None:
    """Replaces a function by one that kills this process in one of its calls."""
    owner, name, number, pattern = PLACES[moment]
    function: Callable[..., Any] = getattr(owner, name)
    count = 0

    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += saved_env_steps(folder) > 0 and re.search(pattern, str(arguments[0])) is not None
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)

    setattr(owner, name, deadly)


def main(folder: str, num_collectors: str, moment: str = "", learners: str = "1") -> None:
    if moment:
        die_at(moment, Path(folder))
    spec = fake_run(
        Path(folder),
        learners=int(learners),
        num_collectors=int(num_collectors),
        max_env_steps=10**9,
        max_minutes=60.0,
        num_checks=7200,  # two a second
        cars={"step_s": 0.002},
        checkpoint_s=0.2,
    )
    train_run(spec)


if __name__ == "__main__":
    run_stage(partial(main, *sys.argv[1:]))
