"""Games in threads of the tests' own process, and the track that they are driven on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rulka.game.serve import make_server
from rulka.game.server import GameServer
from rulka.params import Params, read_params
from rulka.tracks.generate import lay_line
from rulka.tracks.track import Track
from tests.conftest import plain_road
from tests.waiting import PATIENCE_S


def gentle_bend() -> Track:
    """160 m with a gate in the middle; a car on full gas is through in some six seconds."""
    return plain_road(lay_line(np.full(321, 1e-3), np.zeros(321)), 24.0, (80.0,), uid="bend", name="bend")


@contextmanager
def served(track: Track, params: Params | None = None, port: int = 0, **options: object) -> Iterator[GameServer]:
    """Yields a game that listens; it has ended when the block has."""
    server = make_server(track, params or read_params(), port, **{"speed": 100.0, **options})
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
