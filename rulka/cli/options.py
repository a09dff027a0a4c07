"""Types of arguments that commands share, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Annotated, Any

import tyro

from rulka.campaign_slugs import CAMPAIGN_SLUGS
from rulka.terminal import say

AsJson = Annotated[bool, tyro.conf.arg(name="json")]

_SLUGS = f"(slugs: {', '.join(CAMPAIGN_SLUGS)})"
_HINT = tyro.conf.arg(help_behavior_hint=_SLUGS)
TrackName = Annotated[str | None, _HINT]
"""Says beside its help what the campaign's tracks are called."""
TrackNames = Annotated[tuple[str, ...], _HINT]
OneTrack = Annotated[str, tyro.conf.arg(help=f"a slug, a track file, or the uid of a track in data/races {_SLUGS}")]
DeviceName = Annotated[str | None, tyro.conf.arg(metavar="auto|cpu|cuda|cuda:N|mps")]


def say_json(value: Any) -> None:
    """Prints one JSON value on one line."""
    say(json.dumps(value, ensure_ascii=False))


def report(found: Any, text: Callable[[], str], as_json: bool) -> None:
    """Prints what a command found: as one JSON value, or as text for people, which is made only then."""
    say_json(found) if as_json else say(text())


@contextmanager
def lines_aside(as_json: bool) -> Iterator[None]:
    """Sends what is printed in the block to standard error where JSON was asked for, which has the output to itself."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield
