"""The game's socket protocol: serve it without the game, or check whoever speaks it."""

from __future__ import annotations

import sys

from rulka.cli.options import AsJson, TrackName, report, say
from rulka.stage import EXIT_USER_ERROR
from rulka.terminal import escape_logs


def serve(
    port: int = 8478,
    track: TrackName = None,
    speed: float = 1.0,
    in_menus: bool = False,
    step_first: bool = False,
    calls_back: bool = False,
) -> None:
    """Serve a simulated race to programs that speak the game's socket protocol; see docs/game.md.

    Example: `rulka game serve --port 0 --track copper-oval --speed 100`

    Args:
        port: where to listen on this machine; 0 takes a free port.
        track: a slug, a track file, or the name of one in data/races/tracks; the generated one of params.yaml when
            left out.
        speed: factor of the race clock until a program sets another; 50 or more runs as fast as it can.
        in_menus: begin in the menus, without a race, until a program opens a map.
        step_first: send the run step of a tick before its checkpoint: nobody knows which comes first in the game.
        calls_back: have a rewind that changes the count of checkpoints say so at once, as a plain plugin may.
    """
    import logging

    from rulka.folders import TRACKS
    from rulka.game.serve import make_server, serve_until_stopped
    from rulka.params import read_params
    from rulka.tracks.find import find_track
    from rulka.tracks.generate import generate_track

    escape_logs(logging.INFO)
    params = read_params()
    where = generate_track(**dict(params.track)) if track is None else find_track(track, TRACKS)
    unknown = {"is_step_first": step_first, "calls_back": calls_back}
    server = make_server(where, params, port, speed=speed, is_in_menus=in_menus, **unknown)
    say(f"{where.name} ({where.uid}), {where.length_m:.0f} m")
    serve_until_stopped(server, say)


def check(
    port: int = 8478,
    host: str = "127.0.0.1",
    decisions: int = 50,
    speed: float = 10.0,
    map: str | None = None,
    limit_s: float | None = None,
    as_json: AsJson = False,
) -> None:
    """Drive a game, or anything that speaks its protocol, and report every deviation; exit code 0 when there is none.

    Example: `rulka game check --port 8478 --speed 1`

    Args:
        port: where it listens.
        host: where it runs.
        decisions: decisions of 50 ms to take.
        speed: factor of the race clock.
        map: open this map first; without it, the race that is under way is given up and driven anew.
        limit_s: end after so many seconds at the latest; a minute and 0.2 s for each decision when left out.
        as_json: print one JSON object.
    """
    from rulka.game.check import check_game

    limit = 60.0 + 0.2 * decisions if limit_s is None else limit_s
    found = check_game(port, host, decisions, speed, map, limit)
    report(found.to_json(), found.to_text, as_json)
    if not found.conforms:
        sys.exit(EXIT_USER_ERROR)
