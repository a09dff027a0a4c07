"""The `rulka` command. Every subcommand imports what it needs when it is called, so that `--help` is quick."""

from __future__ import annotations

import sys

import tyro

from rulka.cli.game import game_check, serve_game
from rulka.cli.pipeline import bench, doctor, preset, run, up
from rulka.cli.races import evaluate, reference, track, watch
from rulka.cli.recordings import calibrate, export, fetch, frames, inspect
from rulka.errors import UserError
from rulka.stage import EXIT_INTERRUPTED, EXIT_USER_ERROR

COMMANDS = {
    "run": run,
    "up": up,
    "inspect": inspect,
    "fetch": fetch,
    "export": export,
    "evaluate": evaluate,
    "watch": watch,
    "track": track,
    "frames": frames,
    "calibrate": calibrate,
    "reference": reference,
    "doctor": doctor,
    "bench": bench,
    "serve-game": serve_game,
    "game-check": game_check,
    "preset": preset,
}


def main() -> None:
    """Entry point of the `rulka` command."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="rulka", description="Teach a car to race.")
    except UserError as error:
        sys.stderr.write(f"error: {error.for_people()}\n")
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
