"""The `rulka` command. Every subcommand imports what it needs when it is called, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import version
from inspect import isfunction
from typing import NoReturn

import tyro

from rulka.cli import agents, env, game, pipeline, races, recordings
from rulka.disk import disk_error_of
from rulka.errors import UserError
from rulka.stage import EXIT_INTERRUPTED, EXIT_USER_ERROR

ABOUT = "Teach a car to race. `rulka --version` says which version this is."
EXIT_USAGE = 2
"""What the parser exits with where it does not understand the command line."""

COMMANDS = {
    name.replace("_", "-"): function
    for module in (pipeline, recordings, agents, races, game, env)
    for name, function in vars(module).items()
    if getattr(function, "__module__", "") == module.__name__ and isfunction(function) and not name.startswith("_")
}
"""Every public function of these modules, by its name."""
GONE = {
    "run": "`dvc repro` runs stages, and `prefect deployment run rulka/full-pipeline` does in the worker of `rulka up`",
    "down": "Ctrl-C, or `systemctl --user stop rulka`, ends `rulka up`",
    "status": "`prefect flow-run ls` lists runs, `dvc status` says what has changed",
    "cluster": "`ray start`, `ray status` and `ray stop` make, show and end a cluster",
    "bench": "`python -m benchmarks.iqn` and the like run a benchmark",
    "recordings": "`dvc add data/recordings` puts recordings under DVC",
    "remote": "`dvc remote add` sets a remote, which `dvc push` and `dvc pull` use",
    "push": "`dvc push` sends data to the remote",
    "pull": "`dvc pull` brings data from the remote",
    "reproduce": "`git worktree add FOLDER REV`, and `dvc checkout` there, bring an old agent back",
    "gc": "`dvc gc --all-commits --dry` names what no commit needs",
}
"""Commands of earlier versions, and what takes their place."""


def main() -> None:
    """Entry point of the `rulka` command."""
    try:
        if sys.argv[1:] == ["--version"]:
            sys.stdout.write(f"rulka {version('rulka')}\n")
            return
        _check_command(sys.argv[1:])
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="rulka", description=ABOUT)
    except UserError as error:
        sys.stderr.write(f"error: {error.for_people()}\n")
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `rulka track list | head`: whoever reads has enough
        _drop_output()
        sys.exit(EXIT_USER_ERROR)
    except OSError as error:
        known = disk_error_of(error)
        if known is None:
            raise
        sys.stderr.write(f"error: {known.for_people()}\n")
        if error.filename is None:
            _drop_output()
        sys.exit(EXIT_USER_ERROR)


def _drop_output() -> None:
    """Gives up what could not be printed: the interpreter would try once more as it ends, and complain."""
    with suppress(OSError, ValueError):  # a test may have put something else in its place
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_command(arguments: list[str]) -> None:
    """Ends the process where the first argument is no command: the parser would call it an unknown option."""
    if not arguments or arguments[0].startswith("-") or arguments[0] in COMMANDS:
        return
    if arguments[0] in GONE:
        _end(UserError(f"there is no command {arguments[0]!r} any more: {GONE[arguments[0]]}, see docs/operations.md"))
    near = get_close_matches(arguments[0], COMMANDS, n=1)
    message = f"there is no command {arguments[0]!r}{f'; did you mean {near[0]!r}?' if near else ''}"
    _end(UserError(message, hint=f"The commands are {', '.join(COMMANDS)}; `rulka --help` says what they do."))


def _end(error: UserError) -> NoReturn:
    sys.stderr.write(f"error: {error.for_people()}\n")
    sys.exit(EXIT_USAGE)
