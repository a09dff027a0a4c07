"""The stages of `dvc.yaml`: one module each, plain functions, no Prefect.

A stage's process imports this package first, before libraries that take seconds to load. It therefore checks that
Rulka is installed in this Python, silences the traceback of an early Ctrl-C, and starts the still-working messages for
users at a terminal.
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


# `sys.argv[0]` is "-m" only while `python -m` looks for its module; any other import of this package does nothing.
if sys.argv[0] == "-m":
    _check_python()
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    from rulka.machine.terminal import keep_telling  # after the check that Rulka is installed

    keep_telling(sys.orig_argv[-1].removeprefix("tasks."))
