"""Argument types and printing shared by the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Annotated, Any

import tyro

from rulka.machine.terminal import say
from rulka.stages.folders import preset_names
from rulka.tracks.campaign_slugs import CAMPAIGN_SLUGS

AsJson = Annotated[bool, tyro.conf.arg(name="json")]

_SLUGS = f"(slugs: {', '.join(CAMPAIGN_SLUGS)})"
_HINT = tyro.conf.arg(help_behavior_hint=_SLUGS)
TrackName = Annotated[str | None, _HINT]
"""Track argument whose help lists the campaign's slugs."""
TrackNames = Annotated[tuple[str, ...], _HINT]
OneTrack = Annotated[str, tyro.conf.arg(help=f"a slug, a track file, or the uid of a track in data/races {_SLUGS}")]
_PRESETS = f"{', '.join([*preset_names(), '`list`'])}, or `undo` while params.yaml is as the last one left it"
PresetName = Annotated[str, tyro.conf.arg(help=_PRESETS)]
DeviceName = Annotated[str | None, tyro.conf.arg(metavar="auto|cpu|cuda|cuda:N|mps")]


def say_json(value: Any) -> None:
    """Prints one JSON value on one line."""
    say(json.dumps(value, ensure_ascii=False))


def report(found: Any, text: Callable[[], str], as_json: bool) -> None:
    """Prints a command's result as one JSON value, or as text, which is built only if needed."""
    say_json(found) if as_json else say(text())


@contextmanager
def stdout_to_stderr(as_json: bool) -> Iterator[None]:
    """Redirects standard output to standard error within the block if the command prints JSON."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield
