"""The `rulka` command. Subcommands import lazily, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import version
from inspect import isfunction
from itertools import takewhile

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes
from tyro.extras import SubcommandApp

from rulka.cli import agents, board, env, frames, game, parameters, pipeline, races, recordings, track
from rulka.machine.disk import disk_error_of
from rulka.machine.errors import UserError
from rulka.machine.terminal import escape_logs, keep_telling, say, tell
from rulka.stages.stage import EXIT_INTERRUPTED, EXIT_USER_ERROR

ABOUT = "Teach a car to race. `rulka --version` says which version this is."
SERVERS = ("up", "dashboard", "drive", "game", "watch")
"""Commands that run until the user ends them; they get no still-working messages."""
EXIT_USAGE = 2
"""Exit code of the parser for an invalid command line."""

NOUNS = {
    "params": parameters,
    "recordings": recordings,
    "frames": frames,
    "agents": agents,
    "board": board,
    "track": track,
    "game": game,
    "env": env,
}
"""Modules whose commands take the form noun verb."""
COMMANDS = {
    f"{noun} {name.removesuffix('_')}".strip(): function
    for noun, module in (("", pipeline), ("", races), *NOUNS.items())
    for name, function in vars(module).items()
    if getattr(function, "__module__", "") == module.__name__ and isfunction(function) and not name.startswith("_")
}
"""Every public function of these modules, by command name (without the `_` that avoids a Python keyword or builtin)."""


def main() -> None:
    """Entry point of the `rulka` command."""
    escape_logs()
    try:
        if sys.argv[1:] == ["--version"]:
            say(f"rulka {version('rulka')}")
            return
        _check_command(sys.argv[1:])
        if sys.argv[1:] and sys.argv[1] not in SERVERS:
            keep_telling(" ".join(["rulka", *takewhile(lambda word: not word.startswith("-"), sys.argv[1:3])]))
        _parser(sys.argv[1:]).cli(prog="rulka", description=ABOUT, config=(FlagCreatePairsOff, OmitArgPrefixes))
    except UserError as error:
        tell(f"error: {error.for_people()}")
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        tell("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `rulka track list | head`: the reader closed the pipe
        _drop_output()
        sys.exit(EXIT_USER_ERROR)
    except OSError as error:
        known = disk_error_of(error)
        if known is None:
            raise
        tell(f"error: {known.for_people()}")
        if error.filename is None:
            _drop_output()
        sys.exit(EXIT_USER_ERROR)


def _drop_output() -> None:
    """Discards unprinted output: otherwise the interpreter flushes it again at exit, and prints an error."""
    with suppress(OSError, ValueError):  # a test may have replaced stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_command(arguments: list[str]) -> None:
    """Exits with a message if the arguments name no known command: the parser would report an unknown option."""
    words = list(takewhile(lambda word: not word.startswith("-"), arguments[:2]))
    depth = 2 if words and words[0] in NOUNS else 1
    name = " ".join(words[:depth])
    if not name or name in COMMANDS or (depth == 2 and {"-h", "--help"} & set(arguments)):
        return
    split = [each.split() for each in COMMANDS]
    known = dict.fromkeys(" ".join(each[:depth]) for each in split if each[: depth - 1] == words[: depth - 1])
    near = get_close_matches(name, [*known, *COMMANDS], n=1)
    message = f"there is no command {name!r}{f'; did you mean {near[0]!r}?' if near else ''}"
    error = UserError(message, hint=f"The commands are {', '.join(known)}; `--help` of each says more.")
    tell(f"error: {error.for_people()}")
    sys.exit(EXIT_USAGE)


def _parser(arguments: list[str]) -> SubcommandApp:
    """Builds the parser. A command's help is its whole docstring; lists show the first paragraph only."""
    app, groups = SubcommandApp(), {noun: SubcommandApp() for noun in NOUNS}
    for name, command in COMMANDS.items():
        *noun, verb = words = name.split()
        sentence = (command.__doc__ or "").partition("\n\n")[0]
        place = groups[noun[0]] if noun else app
        place.command(name=verb, help=None if words == arguments[: len(words)] else sentence)(command)
    for noun, group in groups.items():
        app.command(group, name=noun, help=NOUNS[noun].__doc__)
    return app
