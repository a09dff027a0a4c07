"""The game: serve its socket protocol from the simulator, check a game's conformance, verify races by its physics."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rulka.cli.options import AsJson, TrackName, report, say
from rulka.machine.errors import UserError
from rulka.machine.terminal import escape_logs
from rulka.stages.folders import RACES
from rulka.stages.stage import EXIT_USER_ERROR

if TYPE_CHECKING:
    from rulka.datasets.formats.races import Race


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
        port: port to listen on; 0 takes a free one.
        track: a slug, a track file, or the name of one in data/races/tracks; if omitted, the generated track of
            params.yaml.
        speed: factor of the race clock until a program sets another; 50 or more runs as fast as possible.
        in_menus: begin in the menus, without a race, until a program opens a map.
        step_first: send the run step of a tick before its checkpoint: the game's order is unknown.
        calls_back: report a rewind that changes the number of checkpoints at once, as a plain plugin may.
    """
    import logging

    from rulka.game.serve import make_server, serve_until_stopped
    from rulka.params import read_params
    from rulka.stages.folders import TRACKS
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
    """Drive a game, or any server of its protocol, and report every deviation; exit code 0 if there is none.

    Example: `rulka game check --port 8478 --speed 1`

    Args:
        port: port of the game.
        host: host of the game.
        decisions: decisions of 50 ms to take.
        speed: factor of the race clock.
        map: open this map first; without it, the current race is given up and restarted.
        limit_s: timeout in seconds; if omitted, 60 s plus 0.2 s for each decision.
        as_json: print one JSON object.
    """
    from rulka.game.check import check_game

    limit = 60.0 + 0.2 * decisions if limit_s is None else limit_s
    found = check_game(port, host, decisions, speed, map, limit)
    report(found.to_json(), found.to_text, as_json)
    if not found.conforms:
        sys.exit(EXIT_USER_ERROR)


def verify(
    agent_or_race: str,
    /,
    judge: Annotated[str | None, tyro.conf.arg(name="with")] = None,
    track: TrackName = None,
    map: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Have an external judge replay a race by the game's own physics, and compare; exit code 0 if both agree.

    The race becomes a replay in runs/judge, which embeds the map; see docs/game.md for a judge to install.

    Example: `rulka game verify latest --map data/recordings/A01.Replay.Gbx`

    Args:
        agent_or_race: an agent, as for `rulka evaluate`, which drives a race from the middle of the start line; or the
            race_id of a race in data/races, or its beginning.
        judge: command line of the judge, such as "forevervalidator --pak-dir /games/TmUnitedForever/Packs {replay}";
            if omitted, RULKA_GAME_JUDGE.
        track: slug, uid or file of the track on which an agent races; if omitted, the main track of data/races.
        map: recording or map file that holds the map; if omitted, the first in data/recordings that does.
        as_json: print one JSON object.
    """
    from rulka.datasets.replay import find_map, write_replay
    from rulka.game.judge import FOLDER, judge_replay
    from rulka.game.settings import read_game_settings

    settings = read_game_settings(os.environ | ({"RULKA_GAME_JUDGE": judge} if judge else {}))
    race = _race_of(agent_or_race, track)
    game_map = find_map(race.map_uid, map)
    FOLDER.mkdir(parents=True, exist_ok=True)
    replay = FOLDER / f"{re.sub(r'[^A-Za-z0-9._-]', '_', agent_or_race)}.Replay.Gbx"
    write_replay(replay, race, game_map)
    found = judge_replay(settings.judge, replay)
    report(found.to_json(), found.to_text, as_json)
    if not found.agrees:
        sys.exit(EXIT_USER_ERROR)


def _race_of(name: str, track: str | None) -> Race:
    """Returns a race driven now by the named agent, else the named race of data/races."""
    from rulka.datasets.export import NoSuchRaceError, find_race
    from rulka.evaluation.external_policy import is_guest
    from rulka.evaluation.one_agent import drive_from_the_line
    from rulka.operations.kept import UnknownAgentError, find_agent
    from rulka.params import read_params

    try:
        agent = name if is_guest(name) else find_agent(name)
    except UnknownAgentError as no_agent:
        try:
            return find_race(RACES, name)
        except NoSuchRaceError as no_race:
            message = f"{no_agent}; in {RACES.as_posix()} {no_race}"
            raise UserError(message, hint=f"{no_agent.hint} {no_race.hint}") from no_race
    return drive_from_the_line(agent, read_params(), track)
