"""The `rulka` command. Every subcommand imports what it needs when it is called, so that `--help` is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rulka.campaign_slugs import CAMPAIGN_SLUGS
from rulka.errors import UserError
from rulka.outputs import check_file, check_folder
from rulka.stage import EXIT_INTERRUPTED, EXIT_USER_ERROR

Names = Annotated[tuple[str, ...], tyro.conf.Positional]
OnePath = Annotated[Path, tyro.conf.Positional]
Paths = Annotated[tuple[Path, ...], tyro.conf.Positional]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
AsJson = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json")]

Slugs = tyro.conf.arg(help_behavior_hint=f"(slugs: {', '.join(CAMPAIGN_SLUGS)})")
"""Says beside the help of a track's name what the campaign's tracks are called."""
TrackName = Annotated[str | None, Slugs]

BENCHMARKS_DIR, TRAINING_DIR = Path("benchmarks"), Path("runs/train")


def run(stages: Names = (), /, force: Flag = False) -> None:
    """Run the flow `rulka` in this process: the given stages, or all of them.

    Args:
        stages: names of stages in dvc.yaml.
        force: run them even if nothing they read has changed.
    """
    from flows.local import run as run_flow

    run_flow(list(stages) or None, force)


def up() -> None:
    """Start Prefect's server, worker and deployments on this machine; Ctrl-C stops them."""
    from flows.stack import up as run_stack

    run_stack(_say)


def inspect(path: OnePath, /, as_json: AsJson = False) -> None:
    """Show what is in a recording, or in every Gbx file of a folder; exit code 1 where none can be read.

    Args:
        path: a Gbx file, or a folder of them.
        as_json: print one JSON object, or for a folder a list of them.
    """
    from rulka.datasets.from_recordings import find_recordings
    from rulka.recordings.summary import inspect_file

    files = find_recordings(path) if path.is_dir() else [path]
    if not files:
        message = f"no Gbx file is in {path}"
        raise UserError(message)
    summaries = [inspect_file(file) for file in files]
    if as_json:
        _say_json(summaries if path.is_dir() else summaries[0])
    else:
        _say("\n".join(map(_line, summaries)) if path.is_dir() else _lines(summaries[0]))
    if all(summary["error"] for summary in summaries):
        sys.exit(EXIT_USER_ERROR)


def fetch(  # noqa: PLR0913
    *,
    out: Path = Path("data/recordings"),
    map_id: tuple[int, ...] = (),
    map_uid: tuple[str, ...] = (),
    name: str = "",
    author: str = "",
    environment: str = "",
    min_length_s: float | None = None,
    max_length_s: float | None = None,
    maps: int | None = None,
    replays: int = 20,
    with_maps: bool = True,
    only_list: Flag = False,
    refresh: Flag = False,
    requests_per_s: float = 1.0,
    url: str | None = None,
) -> None:
    """Fetch maps and their best recordings from an exchange site; run again to go on after an interruption.

    Args:
        out: folder to fetch into.
        map_id: numbers of maps on the exchange.
        map_uid: unique names of maps.
        name: part of a map's name.
        author: who uploaded the map.
        environment: only maps of this environment, for example Stadium, as their files say.
        min_length_s: least author time.
        max_length_s: greatest author time.
        maps: at most so many maps; must be given where maps are not named one by one.
        replays: best-ranked recordings of each map; 0 for maps alone.
        with_maps: fetch the map files as well.
        only_list: show the maps that fit and fetch nothing.
        refresh: ask again for lists that were asked for before; files are never fetched twice.
        requests_per_s: how often to ask; the site is somebody's hobby.
        url: address of the exchange; RULKA_EXCHANGE_URL or https://tmnf.exchange when left out.
    """
    from rulka.exchange.command import Options, run_fetch

    lengths_ms = (None if length is None else round(1000 * length) for length in (min_length_s, max_length_s))
    least_ms, most_ms = lengths_ms
    check_folder(out)
    options = Options(map_id, map_uid, name, author, environment, least_ms, most_ms, maps, replays, with_maps)
    run_fetch(options, out, url=url, requests_per_s=requests_per_s, only_list=only_list, refresh=refresh, say=_say)


def export(race: str, out: Path, /, races: Path = Path("data/races")) -> None:
    """Write a race of data/races as a recording or as an input script; an existing file is left alone.

    Args:
        race: race_id of the race, or its beginning.
        out: file to write: `.Replay.Gbx`, or `.txt` for a script that TMInterface plays.
        races: folder of the race dataset.
    """
    from rulka.datasets.export import export_race

    check_file(out)
    written = export_race(races, race, out)
    _say(f"{out}: {written.race_id}, {written.duration_ms / 1000:.2f} s on {written.map_uid}")


def evaluate(
    agent: Path = Path("data/agent"), track: TrackName = None, races: int | None = None, as_json: AsJson = False
) -> None:
    """Let an agent race greedily from fixed seeds.

    Args:
        agent: folder of the agent's weights.
        track: campaign slug, file or uid of the track; the main track of data/races when left out.
        races: number of races; the one of params.yaml when left out.
        as_json: print one JSON object.
    """
    from rulka.evaluation.command import evaluate_agent, format_evaluation
    from rulka.params import read_params

    result = evaluate_agent(agent, track=track, num_races=races, params=read_params())
    if as_json:
        _say_json(result)
    else:
        _say(format_evaluation(result))


def watch(
    sources: Paths,
    /,
    track: TrackName = None,
    races: int = 1,
    out: Path | None = None,
    port: int = 8477,
) -> None:
    """Show recordings and agents in one picture, or a running training on a live page.

    The first recording or agent is followed, the others are ghosts.

    Args:
        sources: Gbx files or folders of them, folders of agents such as data/agent, data/races, reference laps or slugs
            of the campaign; or the folder of a training. The training in runs/train when left out.
        track: slug, uid or file of the track on which agents race; that of the recordings when left out.
        races: races of each agent, from different starts.
        out: MP4 file to write; without it a window opens.
        port: of the live page of a training.
    """
    named = sources or (TRAINING_DIR,)
    if len(named) == 1 and any(named[0].rglob("metrics.jsonl")):
        _serve_page(named[0], port)
        return
    from rulka.evaluation.watch import watch as show
    from rulka.params import read_params

    if out is not None:
        check_file(out)
    _say(show(sources, read_params(), track=track, num_races=races, out=out))


def _serve_page(folder: Path, port: int) -> None:
    from rulka.runtime.page.server import make_server
    from rulka.runtime.page.snapshot import find_run

    run_folder = find_run(folder)
    with make_server(run_folder, port) as server:
        _say(f"{run_folder.as_posix()} on http://{server.server_address[0]}:{server.server_port}/  (Ctrl-C ends)")
        server.serve_forever()


def track(
    action: Annotated[Literal["show", "list"], tyro.conf.Positional],
    name: Annotated[str | None, tyro.conf.Positional, Slugs] = None,
    /,
    campaign: Flag = False,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Draw a track and tell its facts, or list the tracks of the campaign.

    Args:
        action: show one track, or the campaign; or list the campaign.
        name: with show: a slug of the campaign, or a track file.
        campaign: with show: all tracks of the campaign.
        out: with show: draw it into this PNG file.
        as_json: print JSON: one object, or a list of them for the campaign.
    """
    from rulka.evaluation.track_command import format_campaign, show_campaign, show_track

    if out is not None:
        check_file(out)
    if action == "list" or campaign:
        if name is not None or (action == "list" and out is not None):
            message = "the whole campaign is asked for: leave out the name, and draw it with `rulka track show`"
            raise UserError(message)
        facts: Any = show_campaign(out)
        text = format_campaign()
    elif name is None:
        message = "no track is named; `rulka track list` shows those of the campaign"
        raise UserError(message)
    else:
        facts = show_track(name, out)
        text = "\n".join(f"{key:14}{'' if value is None else value}" for key, value in facts.items())
    if as_json:
        _say_json(facts)
    else:
        _say(text)


def frames(
    action: Annotated[Literal["export", "import"], tyro.conf.Positional],
    folder: OnePath,
    /,
    frames: Path = Path("data/frames"),
    licence: str = "other",
    players: Flag = False,
) -> None:
    """Write captured frames in the layout of the Hugging Face Hub, or read such a folder again.

    Args:
        action: export frames into the folder, or import them from it.
        folder: in the layout of the Hub.
        frames: the frame dataset; with import it must not exist yet.
        licence: with export: the Hub's name of the licence, for example cc-by-4.0.
        players: with export: name who drove each race, as data/races does.
    """
    from rulka.datasets.hugging_face_command import export_dataset, import_dataset

    if action == "export":
        check_folder(folder)
        index = export_dataset(frames, folder, licence=licence, with_players=players)
        _say(
            f"{sum(race.num_frames for race in index.races):,} frames of {len(index.races)} races: {folder.as_posix()}"
        )
    else:
        check_folder(frames)
        index = import_dataset(folder, frames)
        _say(
            f"{sum(race.num_frames for race in index.races):,} frames of {len(index.races)} races: {frames.as_posix()}"
        )


def calibrate(folder: OnePath, /, *, out: Path, holdout: float = 0.34, write: Flag = False) -> None:
    """Fit the simulator's physics to real recordings and report how well they agree.

    Args:
        folder: Gbx files at any depth; finished Stadium races of TrackMania Forever or United are used.
        out: folder to write the report into; docs/calibration holds that of the values in params.yaml.
        holdout: share of the recordings that is used for the report only.
        write: also put the fitted values into params.yaml.
    """
    from rulka.calibration.command import calibrate as run_calibration

    _say(run_calibration(folder, holdout=holdout, out=check_folder(out), write=write))


def doctor(as_json: AsJson = False) -> None:
    """Check this machine and say what to do where something is wrong.

    Args:
        as_json: print one JSON object.
    """
    from flows.server import api_url
    from rulka.doctor import examine

    findings = examine(api_url())
    if as_json:
        _say_json({finding.name: finding._asdict() for finding in findings})
    for finding in () if as_json else findings:
        _say(f"{'ok   ' if finding.is_fine else 'WRONG'} {finding.name}: {finding.text}")
    if not all(finding.is_fine for finding in findings):
        sys.exit(EXIT_USER_ERROR)


def bench(names: Names = (), /, as_json: AsJson = False) -> None:
    """Run benchmarks, each of which prints a table.

    Args:
        names: names of modules in benchmarks/; all of them when left out.
        as_json: let each print one JSON object instead.
    """
    known = sorted(path.stem for path in BENCHMARKS_DIR.glob("*.py") if not path.stem.startswith("_"))
    unknown = sorted(set(names) - set(known))
    if unknown or not known:
        message = f"no benchmark is called {', '.join(unknown) or 'anything'}; {BENCHMARKS_DIR}/ holds {known}"
        raise UserError(message)
    for name in names or known:
        command = [sys.executable, "-m", f"{BENCHMARKS_DIR}.{name}", *(["--json"] if as_json else [])]
        if subprocess.run(command, check=False).returncode != 0:
            message = f"benchmark {name} failed"
            raise UserError(message)


def serve_game(
    port: int = 8478,
    track: TrackName = None,
    speed: float = 1.0,
    frames: Literal["grey", "colour"] = "grey",
    in_menus: Flag = False,
) -> None:
    """Serve a simulated race to programs that speak the game's socket protocol; see docs/game.md.

    Args:
        port: where to listen on this machine; 0 takes a free port.
        track: a slug, a track file, or the name of one in data/races/tracks; the generated one of params.yaml when
            left out.
        speed: factor of the race clock until a program sets another; 50 or more runs as fast as it can.
        frames: the agents' grey image, or colour for people.
        in_menus: begin in the menus, without a race, until a program opens a map.
    """
    import logging

    from rulka.game.serve import find_track, make_server, serve_until_stopped
    from rulka.params import read_params

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    params = read_params()
    where = find_track(track, params)
    server = make_server(where, params, port, speed=speed, frames=frames, is_in_menus=in_menus)
    _say(f"{where.name} ({where.uid}), {where.length_m:.0f} m")
    serve_until_stopped(server, _say)


def game_check(
    port: int = 8478,
    host: str = "127.0.0.1",
    decisions: int = 50,
    speed: float = 10.0,
    map: str | None = None,
    limit_s: float | None = None,
    as_json: AsJson = False,
) -> None:
    """Drive a game, or anything that speaks its protocol, and report every deviation; exit code 0 when there is none.

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
    report = check_game(port, host, decisions, speed, map, limit)
    if as_json:
        _say_json(report.to_json())
    else:
        _say(report.to_text())
    if not report.conforms:
        sys.exit(EXIT_USER_ERROR)


def preset(name: Annotated[str, tyro.conf.Positional], /) -> None:
    """Lay a preset of presets/ over params.yaml, or list them; comments in params.yaml are not kept.

    Args:
        name: blocks, btr, reference, or that of another file of presets/; `list` shows all.
    """
    from rulka.presets import apply_preset, preset_lines

    if name == "list":
        _say("\n".join(preset_lines()))
        return
    applied = apply_preset(name)
    _say("\n".join(applied.changes or [f"params.yaml holds all of {name} already: nothing is changed"]))
    for remark in applied.remarks:
        _say(f"note: {remark}")


def reference(
    track: Annotated[str | None, tyro.conf.Positional, Slugs] = None,
    /,
    seed: int = 1,
    budget: int | None = None,
    out: Path | None = None,
    campaign: Flag = False,
) -> None:
    """Search a lap near the fastest possible and write it as an input script.

    Args:
        track: campaign slug or file of the track.
        seed: of the search.
        budget: decisions to simulate, about; 25,000 for each metre of track when left out. The first lap is driven
            whatever it costs.
        out: file to write; <uid>.reference.txt here when left out.
        campaign: all tracks of the campaign that have no valid lap yet, into the package.
    """
    from rulka.params import read_params
    from rulka.reference.command import find_for_campaign, find_for_track

    if (track is None) != campaign or (campaign and out is not None):
        message = "`rulka reference` needs a track or --campaign, not both; --out goes with a track"
        raise UserError(message)
    if out is not None:
        check_file(out)
    if track is None:
        find_for_campaign(read_params(), seed, budget, _say)
    else:
        find_for_track(track, read_params(), seed, budget, out, _say)


COMMANDS = {
    "run": run,
    "up": up,
    "inspect": inspect,
    "fetch": fetch,
    "export": export,
    "evaluate": evaluate,
    "watch": watch,
    "track": track,
    "frames": frames,
    "calibrate": calibrate,
    "reference": reference,
    "doctor": doctor,
    "bench": bench,
    "serve-game": serve_game,
    "game-check": game_check,
    "preset": preset,
}


def main() -> None:
    """Entry point of the `rulka` command."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="rulka", description="Teach a car to race.")
    except UserError as error:
        sys.stderr.write(f"error: {error.for_people()}\n")
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(EXIT_INTERRUPTED)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_json(value: Any) -> None:
    _say(json.dumps(value, ensure_ascii=False))


def _line(summary: dict[str, Any]) -> str:
    """One file of many: its race, or what is wrong with it."""
    race_ms = summary["race_time_ms"]
    race = f"{race_ms / 1000:8.2f} s" if race_ms is not None else " " * 10
    counts = f"{summary['num_inputs']:6,} inputs {summary['num_samples']:6,} samples"
    problem = ". ".join(text for text in (summary["error"], summary["hint"]) if text)
    return f"{summary['kind'] or '?':10}{race}  {problem or counts}  {summary['file']}"


def _lines(summary: dict[str, Any]) -> str:
    """One file alone, field by field; ghosts hold the same fields."""
    shown = {**summary, "ghosts": len(summary["ghosts"])}
    if shown["hint"] is None:
        shown.pop("hint")
    shown.pop("blocks", None)  # thousands of them; as JSON they are all there
    return "\n".join(f"{name:21}{'' if value is None else value}" for name, value in shown.items())


if __name__ == "__main__":
    main()
