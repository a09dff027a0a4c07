"""Commands that race: agents, tracks, the best possible laps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from rulka.cli.options import (
    AsJson,
    DeviceName,
    Flag,
    OnePath,
    OneTrack,
    Paths,
    TrackName,
    lines_aside,
    report,
    say,
    say_json,
)
from rulka.errors import UserError
from rulka.folders import AGENT, RACES, TRAINING_RUNS
from rulka.outputs import check_file, check_folder

LATEST = AGENT.as_posix()


def evaluate(
    agent: str = LATEST,
    track: TrackName = None,
    races: int | None = None,
    seed: int | None = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Let an agent race greedily from fixed seeds.

    Args:
        agent: name of an agent (`rulka agents`), "latest", "promoted", or a folder of an agent or a cloned policy.
        track: campaign slug, file or uid of the track; the main track of data/races when left out.
        races: number of races; the one of params.yaml when left out.
        seed: of the first start, the next race takes the next; the one of params.yaml when left out.
        device: where its network runs; RULKA_DEVICE when left out, and without it a GPU that works, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.evaluation.one_agent import evaluate_agent, format_evaluation
    from rulka.device import use_device
    from rulka.params import read_params
    from rulka.registry.kept import find_agent

    params, where = read_params(), use_device(device)
    result = evaluate_agent(find_agent(agent), track=track, num_races=races, seed=seed, params=params, device=where)
    report(result, lambda: format_evaluation(result), as_json)


def agent(
    action: Annotated[Literal["export", "import"], tyro.conf.Positional],
    folder: OnePath,
    /,
    agent: str = LATEST,
    as_json: AsJson = False,
) -> None:
    """Write an agent or a cloned policy in the layout of Hugging Face, or read such a folder again.

    Args:
        action: export an agent into the folder, or import one from it.
        folder: with config.json and model.safetensors.
        agent: with export: name of an agent (`rulka agents`), "latest", "promoted", or a folder of an agent or a cloned
            policy; with import: folder to write, which must not exist yet.
        as_json: print one JSON object.
    """
    from rulka.agents.hugging_face import export_agent, import_agent
    from rulka.agents.load import CLONING, label_of
    from rulka.registry.kept import find_agent

    written = check_folder(folder if action == "export" else Path(agent))
    artifact = export_agent(find_agent(agent), folder) if action == "export" else import_agent(folder, written)
    algorithm, num_tensors = artifact.config.get("algorithm", CLONING), len(artifact.tensors)
    facts = {"folder": written.as_posix(), "kind": artifact.kind, "algorithm": algorithm, "num_tensors": num_tensors}
    text = f"{written.as_posix()}: {artifact.kind} ({label_of(algorithm)}), {num_tensors} tensors"
    report(facts, lambda: text, as_json)


def watch(
    sources: Paths,
    /,
    track: TrackName = None,
    races: int = 1,
    out: Path | None = None,
    port: int = 8477,
    device: DeviceName = None,
) -> None:
    """Show recordings and agents in one picture, or a running training on a live page.

    The first recording or agent is followed, the others are ghosts.

    Args:
        sources: Gbx files or folders of them, agents by name (`rulka agents`) or folder, data/races, reference laps or
            slugs of the campaign; or the folder of a training. The training in runs/train when left out.
        track: slug, uid or file of the track on which agents race; that of the recordings when left out.
        races: races of each agent, from different starts.
        out: MP4 file to write; without it a window opens.
        port: of the live page of a training.
        device: where networks of agents run; RULKA_DEVICE when left out, and without it a GPU that works, else the CPU.
    """
    named = sources or (TRAINING_RUNS,)
    if len(named) == 1 and any(named[0].rglob("metrics.jsonl")):
        from rulka.dashboard.app import serve

        serve(port, "live", say, named[0])
        return
    from rulka.video.show import show_races
    from rulka.params import read_params

    if out is not None:
        check_file(out, ".mp4")
    found = [_named_source(source) for source in sources]
    say(show_races(found, read_params(), track=track, num_races=races, out=out, device=device))


def _named_source(source: Path) -> Path:
    """Returns the folder of an agent that is called by its name; every other source as it is."""
    from rulka.registry.kept import UnknownAgentError, find_agent

    if source.exists():
        return source
    try:
        return find_agent(source.as_posix())
    except UnknownAgentError:
        return source


def track(
    action: Annotated[Literal["show", "list"], tyro.conf.Positional],
    name: OneTrack = None,
    /,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Draw a track and tell its facts, or list the tracks of the campaign.

    Args:
        action: show one track, or list the campaign.
        name: with show: a slug of the campaign, or a track file.
        out: draw it, or the whole campaign, into this PNG file.
        as_json: print JSON: one object, or a list of them for the campaign.
    """
    from rulka.cli.track import list_campaign, show_track

    if (name is None) != (action == "list"):
        message = "`rulka track show` needs a track, `rulka track list` tells all of the campaign"
        raise UserError(message)
    if out is not None:
        check_file(out, ".png")
    facts, text = list_campaign(out) if name is None else show_track(name, out)
    report(facts, lambda: text, as_json)


def reference(
    track: OneTrack = None,
    /,
    seed: int | None = None,
    searches: int | None = None,
    budget: int | None = None,
    agent: str | None = None,
    out: Path | None = None,
    campaign: Flag = False,
    as_json: AsJson = False,
) -> None:
    """Search a lap near the fastest possible, or take over an agent's faster one; write it as an input script.

    Args:
        track: campaign slug or file of the track.
        seed: of the first search; 1 when left out.
        searches: how many, each with the next seed; one when left out. The fastest lap is taken, and the times of all
            are kept with it.
        budget: decisions to simulate, about; 25,000 for each metre of track when left out. The first lap is driven
            whatever it costs.
        agent: name (`rulka agents`) or folder of one, which drives instead, twice; its lap is taken over if it is
            faster than the one there is.
        out: file to write; <uid>.reference.txt here when left out, or the package's for an agent on the campaign.
        campaign: all tracks of the campaign that have no valid lap of so many searches yet, into the package.
        as_json: print a list of JSON objects, one for each track.
    """
    from rulka.params import read_params
    from rulka.reference.command import Searches, find_for_campaign, find_for_track

    if (track is None) != campaign or (campaign and (out is not None or agent is not None)):
        message = "`rulka reference` needs a track or --campaign, not both; --out and --agent go with a track"
        raise UserError(message)
    if agent is not None and (seed, searches, budget) != (None, None, None):
        message = (
            "an agent drives the lap and nothing is searched: --seed, --searches and --budget do not go with --agent"
        )
        raise UserError(message)
    if out is not None:
        check_file(out)
    how = Searches(1 if seed is None else seed, 1 if searches is None else searches, budget)
    with lines_aside(as_json):
        if track is None:
            laps = find_for_campaign(read_params(), how, say)
        elif agent is not None:
            from rulka.evaluation.faster_lap import take_over
            from rulka.registry.kept import find_agent

            laps = [take_over(track, find_agent(agent), read_params(), RACES, out, say)]
        else:
            laps = [find_for_track(track, read_params(), how, out, say)]
    if as_json:
        say_json([lap.to_json() for lap in laps])
