"""A short track, and servers on free ports that end with their test."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rulka.game import protocol
from rulka.game.serve import make_server
from rulka.game.server import GameServer
from rulka.params import Params, read_params
from rulka.tracks.generate import lay_line
from rulka.tracks.track import Track
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
ServerMaker = Callable[..., GameServer]


@pytest.fixture(scope="session")
def params() -> Params:
    return read_params(ROOT / "params.yaml")


@pytest.fixture(scope="session")
def track() -> Track:
    """A gentle bend of 160 m with a gate in the middle; a car on full gas is through in some six seconds."""
    zones = 321
    return Track(
        uid="short",
        name="short",
        centre_m=lay_line(np.full(zones, 1e-3), np.zeros(zones)),
        width_m=np.full(zones, 24.0),
        bank_rad=np.zeros(zones),
        material=np.full(zones, 16, np.uint8),
        edge=np.zeros(zones, np.uint8),
        gate_m=np.array([80.0, 160.0]),
        source="test",
    )


@pytest.fixture
def serve(track: Track, params: Params, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerMaker]:
    """Starts servers in threads of their own, which wait for an echo as long as a busy machine may take."""
    running: list[tuple[GameServer, threading.Thread]] = []
    monkeypatch.setattr(protocol, "DEFAULT_TIMEOUT_MS", round(1000 * PATIENCE_S))

    def start(on: Track = track, port: int = 0, **options: object) -> GameServer:
        server = make_server(on, params, port, **{"speed": 100.0, **options})
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
