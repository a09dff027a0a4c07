"""The stages of `dvc.yaml`: one module each, plain functions, no Prefect.

As the first of ours that a stage's process imports, before the seconds that libraries take, it sees to what no stage
can see to itself: that this Python is the one Rulka is installed in, that Ctrl-C shows no traceback, and that somebody
at a terminal is told that the stage is at work.
"""

import os
import signal
import sys
from importlib.util import find_spec

_NEEDED = ("numba", "numpy", "psutil", "pydantic", "torch", "yaml")


def _check_python() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"error: {sys.executable} has no {', '.join(missing)}: Rulka is not installed in it\n"
            "  Stages run in the Python that comes first on PATH: activate the environment first "
            "(`. .venv/bin/activate`),\n"
            '  or start it as `PATH="$PWD/.venv/bin:$PATH" dvc repro`, or as `make demo`.'
        )


def _end(_number: int, _frame: object) -> None:
    sys.stderr.write("interrupted before the stage began\n")
    os._exit(130)


# Python says so while it looks for the module that `python -m` names; any other import of this package does nothing.
if sys.argv[0] == "-m":
    _check_python()
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    from rulka.terminal import keep_telling  # not before it is known to be installed

    keep_telling(sys.orig_argv[-1].removeprefix("tasks."))
