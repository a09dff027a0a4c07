"""Implements `rulka game serve`: serves, and stops cleanly at Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable

from rulka.game.frames import GameFrames
from rulka.game.protocol import LOOPBACK
from rulka.game.race import SimulatedRace
from rulka.game.server import GameServer
from rulka.game.simulated import SimulatedGame
from rulka.machine.errors import UserError
from rulka.machine.ports import check_port
from rulka.params import Params
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
    """Creates a server that listens; call `serve` on it to start.

    Args:
        track: the track.
        params: parameters, for the simulator.
        port: port to listen on; 0 takes a free one.
        speed: factor of the race clock until a program sets another.
        is_in_menus: True to begin in the menus, without a race.
        is_step_first: see `GameServer`.
        calls_back: see `GameServer`.

    Raises:
        UserError: if the speed is negative, the port is out of range or taken, or the track has too many gates.
    """
    check_port(port, zero_takes_any=True)
    if not speed >= 0:
        raise UserError(f"a speed is a number from 0, got {speed}")
    race = SimulatedRace(track, params.simulator)
    sent = GameFrames(track, params.simulator)
    sent.draw(race.simulator, 8, 8)  # compiles kernels now, for seconds, not while a program waits
    game = SimulatedGame(race, speed=speed, is_in_menus=is_in_menus)
    return GameServer(game, sent, port, is_step_first=is_step_first, calls_back=calls_back)


def serve_until_stopped(server: GameServer, say: Callable[[str], None]) -> None:
    """Serves until Ctrl-C or SIGTERM, then returns without a traceback.

    Args:
        server: the server.
        say: called with one line when the server listens and one when it has stopped.
    """
    before = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    say(f"a game listens on {LOOPBACK}:{server.port}; Ctrl-C stops it")
    try:
        server.serve()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    say("stopped")
