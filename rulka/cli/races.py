"""Commands that race: a single evaluation, the nightly evaluation, videos, a person's drive, what a race could gain."""

from __future__ import annotations

import datetime
import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from rulka.cli.options import AsJson, DeviceName, TrackName, TrackNames, report, say
from rulka.machine.ports import DRIVE_PORT
from rulka.stages.folders import KEPT_AGENTS, NIGHTS, RUNS, TRAINING_RUNS
from rulka.stages.outputs import check_file, check_folder

WATCHED = RUNS / "watch.mp4"


def evaluate(
    agent: str = "latest",
    track: TrackName = None,
    races: int | None = None,
    seed: int | None = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate an agent in greedy races from fixed seeds.

    Example: `rulka evaluate --agent promoted --track copper-oval --races 5`

    Args:
        agent: name of an agent (`rulka agents list`), "latest", "promoted", a folder of an agent or a cloned policy, or
            a function MODULE:FUNCTION, see docs/library.md.
        track: campaign slug, file or uid of the track, "campaign" for all its tracks, or "held-out" for four that are
            never trained on; "main", or if omitted, the main track of data/races.
        races: number of races on each track; if omitted, that of params.yaml.
        seed: of the first start, each further race takes the next; if omitted, that of params.yaml.
        device: where its network runs; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.evaluation.external_policy import is_guest
    from rulka.evaluation.one_agent import evaluate_agent, evaluate_on_tracks, format_evaluation, format_tracks_together
    from rulka.machine.device import use_device
    from rulka.operations.kept import find_agent
    from rulka.operations.tracks import HELD_OUT, MAIN, WHOLE_CAMPAIGN, tracks_to_race_on
    from rulka.params import read_params

    params, where = read_params(), use_device(device)
    driver = agent if is_guest(agent) else find_agent(agent)
    if track in (HELD_OUT, WHOLE_CAMPAIGN):
        tracks = tracks_to_race_on([track], params)
        found = evaluate_on_tracks(driver, tracks, num_races=races, seed=seed, params=params, device=where)
        report(found, lambda: format_tracks_together(found), as_json)
        return
    named = None if track == MAIN else track
    result = evaluate_agent(driver, track=named, num_races=races, seed=seed, params=params, device=where)
    report(result, lambda: format_evaluation(result), as_json)


def night(
    date: datetime.date | None = None,
    tracks: TrackNames = ("main", "campaign", "held-out"),
    races: int | None = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Race the promoted and the latest agent from the starts of a night, and record the result in data/nights.

    The latest agent is promoted if it wins, or if none is promoted yet. Nights and promoted agents are put under DVC.

    Example: `rulka night --date 2026-11-23 --tracks main`

    Args:
        date: of the night, such as 2026-11-23; if omitted, today in UTC.
        tracks: slugs, uids or files, "main" for the main track of data/races, "campaign" for all its tracks, "held-out"
            for four that are never trained on.
        races: races of each agent on each track; if omitted, evaluate.num_races.
        device: where networks run; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.machine.device import use_device
    from rulka.operations.nights import race_night
    from rulka.operations.versions import keep_by_dvc
    from rulka.params import read_params

    which = date or datetime.datetime.now(datetime.UTC).date()
    found = race_night(which, read_params(), tracks, num_races=races, device=use_device(device), stream=sys.stderr)
    report(found.to_json(), found.describe, as_json)
    keep_by_dvc([NIGHTS, KEPT_AGENTS], f"the night of {which} is noted")


def watch(
    sources: tuple[Path, ...],
    /,
    track: TrackName = None,
    races: int = 1,
    out: Path | None = None,
    port: int = 8477,
    device: DeviceName = None,
) -> None:
    """Show recordings and agents together in one video, or a running training on a live page, in the browser.

    The camera follows the first recording or agent; the others are ghosts. Without an agent, the driver that comes with
    Rulka races along.

    Example: `rulka watch copper-oval --out race.mp4`

    Args:
        sources: Gbx files or folders of them, agents by name (`rulka agents list`) or folder, data/races, reference
            laps or slugs of the campaign; or the folder of a training. If omitted, the training in runs/train.
        track: slug, uid or file of the track on which agents race; if omitted, that of the recordings.
        races: races of each agent, from different starts.
        out: MP4 file to write; if omitted, runs/watch.mp4, which is opened in a browser if there is a screen.
        port: of the live page of a training.
        device: where networks run; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
    """
    named = sources or (TRAINING_RUNS,)
    if len(named) == 1 and any(named[0].rglob("metrics.jsonl")):
        from rulka.dashboard.app import serve

        serve(port, "live", say, named[0])
        return
    from rulka.params import read_params
    from rulka.video.show import show_races

    if out is None:
        check_folder(RUNS).mkdir(exist_ok=True)
    path, found = check_file(out or WATCHED, ".mp4"), [_named_source(source) for source in sources]
    say(show_races(found, read_params(), track=track, num_races=races, out=path, device=device))
    if out is None:
        _open(path.resolve().as_uri())


def drive(
    track: TrackName = None,
    /,
    agent: str | None = None,
    ghost: Path | None = None,
    device: DeviceName = None,
    port: int = DRIVE_PORT,
    browser: bool = True,
) -> None:
    """Drive yourself in a browser, by keys or gamepad; every finished race is kept in data/recordings.

    The stage `races` reads these races as it reads recordings of the game. Where an agent drives and you take over,
    what you drove becomes labels of `clone`. Ctrl-C ends it.

    Example: `rulka drive copper-oval --agent latest`

    Args:
        track: slug, uid or file of a track, or a Gbx file, whose race is the ghost; if omitted, the main track of
            data/races, or without one copper-oval.
        agent: name or folder of an agent, or MODULE:FUNCTION; it drives until you hold Space.
        ghost: an agent, a recording, or a reference lap or its slug, which is the ghost.
        device: where networks run; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
        port: port to listen on; 0 takes any free one.
        browser: open the page in a browser, if there is a screen; its address is printed in any case.
    """
    from rulka.dashboard.app import serve
    from rulka.dashboard.drive_page import make_page
    from rulka.params import read_params

    driver, rival = (None if source is None else _named_source(Path(source)) for source in (agent, ghost))
    page = make_page(track, read_params(), agent=driver, ghost=rival, device=device)
    serve(port, "drive", _say_and_open if browser else say, drive=page)


def _say_and_open(line: str) -> None:
    """Prints a line, and opens the address that it begins with."""
    say(line)
    _open(line.split()[0])


def _open(address: str) -> None:
    # Without a screen, some systems would open a browser of text in this terminal.
    if sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        webbrowser.open(address)


def coach(
    source: Path,
    /,
    agent: str | None = None,
    track: TrackName = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Show where a race lost time: by bend, what the planner would have done from the same entry.

    Example: `rulka coach latest --track copper-oval`

    Args:
        source: a race: a Gbx file, an agent by name or folder, data/races, or a reference lap or its slug; the first
            race of several.
        agent: name or folder of an agent that takes the planner's place.
        track: slug, uid or file of the track on which an agent races; if omitted, the main track of data/races.
        device: where networks run; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
        as_json: print one JSON object.
    """
    from dataclasses import asdict

    from rulka.evaluation.coach import agent_coach, coach_race, coached_summary, coached_table, planner_coach
    from rulka.evaluation.contest import agent_driver
    from rulka.evaluation.metrics import text_table
    from rulka.evaluation.race import EvaluationRaces
    from rulka.machine.device import use_device
    from rulka.params import read_params
    from rulka.video.sources import gather, sort_sources

    params = read_params()
    result = gather(sort_sources([_named_source(source)]), params, track, 1, device).race
    races = EvaluationRaces.of(result.track, params)
    if agent is None:
        chosen = planner_coach(result, races.settings)
    else:
        chosen = agent_coach(agent_driver(_named_source(Path(agent)), races, use_device(device)).policy, races)
    found = coach_race(result, chosen)
    report(asdict(found), lambda: f"{text_table(coached_table(found))}\n\n{coached_summary(found)}", as_json)


def _named_source(source: Path) -> Path:
    """Resolves an agent's name to its folder; returns any other source unchanged."""
    from rulka.evaluation.external_policy import is_guest
    from rulka.operations.kept import UnknownAgentError, find_agent

    with suppress(UnknownAgentError):
        return source if source.exists() or is_guest(source) else find_agent(source.as_posix())
    return source
