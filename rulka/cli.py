"""The `rulka` command. Every subcommand imports what it needs when it is called, so that `--help` is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rulka.errors import UserError
from rulka.stage import EXIT_INTERRUPTED, EXIT_USER_ERROR

Names = Annotated[tuple[str, ...], tyro.conf.Positional]
OnePath = Annotated[Path, tyro.conf.Positional]
Paths = Annotated[tuple[Path, ...], tyro.conf.Positional]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
AsJson = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json")]

BENCHMARKS_DIR = Path("benchmarks")


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
    """Show what is in a recording, or in every Gbx file of a folder.

    Args:
        path: a Gbx file, or a folder of them.
        as_json: print one JSON object, or for a folder a list of them.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() == ".gbx") if path.is_dir() else [path]
    if not files:
        message = f"no Gbx file is in {path}"
        raise UserError(message)
    from rulka.recordings.summary import inspect_file

    summaries = [inspect_file(file) for file in files]
    if as_json:
        _say_json(summaries if path.is_dir() else summaries[0])
    else:
        _say("\n".join(map(_line, summaries)) if path.is_dir() else _lines(summaries[0]))
    if not path.is_dir() and summaries[0]["error"]:
        sys.exit(EXIT_USER_ERROR)


def evaluate(
    agent: Path = Path("data/agent"), track: str | None = None, races: int | None = None, as_json: AsJson = False
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
    track: str | None = None,
    races: int = 1,
    out: Path | None = None,
    port: int = 8477,
) -> None:
    """Show recordings and agents in one picture, or a running training on a live page.

    The first recording or agent is followed, the others are ghosts.

    Args:
        sources: Gbx files or folders of them, folders of agents such as data/agent, or data/races; or runs/train.
        track: uid or file of the track on which agents race; that of the recordings when left out.
        races: races of each agent, from different starts.
        out: MP4 file to write; without it a window opens.
        port: of the live page of a training.
    """
    if len(sources) == 1 and any(sources[0].rglob("metrics.jsonl")):
        _serve_page(sources[0], port)
        return
    from rulka.evaluation.watch import watch as show
    from rulka.params import read_params

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
    name: Annotated[str | None, tyro.conf.Positional] = None,
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
        index = export_dataset(frames, folder, licence=licence, with_players=players)
        _say(
            f"{sum(race.num_frames for race in index.races):,} frames of {len(index.races)} races: {folder.as_posix()}"
        )
    else:
        index = import_dataset(folder, frames)
        _say(
            f"{sum(race.num_frames for race in index.races):,} frames of {len(index.races)} races: {frames.as_posix()}"
        )


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


def reference(
    track: Annotated[str | None, tyro.conf.Positional] = None,
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
        budget: decisions to simulate; 25,000 for each metre of track when left out.
        out: file to write; <uid>.reference.txt here when left out.
        campaign: all tracks of the campaign that have no valid lap yet, into the package.
    """
    from rulka.params import read_params
    from rulka.reference.command import find_for_campaign, find_for_track

    if (track is None) != campaign or (campaign and out is not None):
        message = "`rulka reference` needs a track or --campaign, not both; --out goes with a track"
        raise UserError(message)
    if track is None:
        find_for_campaign(read_params(), seed, budget, _say)
    else:
        find_for_track(track, read_params(), seed, budget, out, _say)


COMMANDS = {
    "run": run,
    "up": up,
    "inspect": inspect,
    "evaluate": evaluate,
    "watch": watch,
    "track": track,
    "frames": frames,
    "reference": reference,
    "doctor": doctor,
    "bench": bench,
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
    return f"{summary['kind'] or '?':10}{race}  {summary['error'] or counts}  {summary['file']}"


def _lines(summary: dict[str, Any]) -> str:
    """One file alone, field by field; ghosts hold the same fields."""
    shown = {**summary, "ghosts": len(summary["ghosts"])}
    return "\n".join(f"{name:21}{'' if value is None else value}" for name, value in shown.items())


if __name__ == "__main__":
    main()
