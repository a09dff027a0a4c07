"""A short track, and servers on free ports that stop with their test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from rulka.game import protocol
from rulka.game.server import GameServer
from rulka.params import Params, reference_params
from rulka.tracks.track import Track
from tests.game.serving import gentle_bend, served
from tests.waiting import PATIENCE_S

ServerMaker = Callable[..., GameServer]


@pytest.fixture(scope="session")
def params() -> Params:
    return reference_params()


@pytest.fixture(scope="session")
def track() -> Track:
    return gentle_bend()


@pytest.fixture
def serve(track: Track, params: Params, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerMaker]:
    """Starts servers in threads, with an echo timeout long enough for a busy machine."""
    monkeypatch.setattr(protocol, "DEFAULT_TIMEOUT_MS", round(1000 * PATIENCE_S))
    with ExitStack() as running:
        yield lambda on=track, **options: running.enter_context(served(on, params, **options))
