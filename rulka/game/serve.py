"""What `rulka game serve` does: serves, and stops cleanly at Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable

from rulka.errors import UserError
from rulka.game.frames import GameFrames
from rulka.game.protocol import LOOPBACK
from rulka.game.race import SimulatedRace
from rulka.game.server import GameServer
from rulka.game.simulated import SimulatedGame
from rulka.params import Params
from rulka.ports import check_port
from rulka.tracks.track import Track


def make_server(
    track: Track,
    params: Params,
    port: int,
    *,
    speed: float,
    is_in_menus: bool = False,
    is_step_first: bool = False,
    calls_back: bool = False,
) -> GameServer:
    """Puts a server together; it listens, and serves when told to.

    Args:
        track: what is raced.
        params: for the simulator.
        port: 0 takes a free one.
        speed: factor of the race clock until a program sets another.
        is_in_menus: begin without a race.
        is_step_first: see `GameServer`.
        calls_back: the same.

    Raises:
        UserError: if the speed is negative, there is no such port or it is taken, or the track has too many gates.
    """
    check_port(port, zero_takes_any=True)
    if not speed >= 0:
        message = f"a speed is a number from 0, got {speed}"
        raise UserError(message)
    race = SimulatedRace(track, params.simulator)
    sent = GameFrames(track, params.simulator)
    sent.draw(race.simulator, 8, 8)  # compiles now, which takes seconds, not while a program waits
    game = SimulatedGame(race, speed=speed, is_in_menus=is_in_menus)
    return GameServer(game, sent, port, is_step_first=is_step_first, calls_back=calls_back)


def serve_until_stopped(server: GameServer, say: Callable[[str], None]) -> None:
    """Serves until Ctrl-C or SIGTERM; both end it without a traceback.

    Args:
        server: what serves.
        say: gets one line when the server listens and one when it has stopped.
    """
    before = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    say(f"a game listens on {LOOPBACK}:{server.port}; Ctrl-C stops it")
    try:
        server.serve()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    say("stopped")
