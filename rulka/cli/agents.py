"""Agents by name: list, compare, promote, and export or import in the Hugging Face layout."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rulka.cli.options import AsJson, DeviceName, TrackNames, report
from rulka.stages.folders import AGENT, KEPT_AGENTS
from rulka.stages.outputs import check_file, check_folder, filled_folder

if TYPE_CHECKING:
    from rulka.contracts.artifacts import Artifact
    from rulka.operations.pairs import Comparison

PLOT_FILE, VIDEO_FILE = "leads.png", "side_by_side.mp4"


@dataclass(frozen=True)
class PairSettings:
    """Settings of races between two agents.

    Attributes:
        tracks: slugs, uids or files, "main" for the main track of data/races, "campaign" for all its tracks, "held-out"
            for four that are never trained on; if omitted, main and evaluate.tracks.
        races: pairs on each track; if omitted, evaluate.num_races.
        seed: of the first start on each track; if omitted, evaluate.seed.
        device: where networks run; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
    """

    tracks: TrackNames = ()
    races: int | None = None
    seed: int | None = None
    device: DeviceName = None


def list_(as_json: AsJson = False) -> None:
    """List all agents, what each was trained on and from, and which one is promoted.

    Example: `rulka agents list --json`

    Args:
        as_json: print a JSON list.
    """
    from rulka.operations.kept import format_agents, known_agents

    found = known_agents()
    report([asdict(entry) for entry in found], lambda: format_agents(found), as_json)


def compare(first: str, second: str, /, how: PairSettings, out: Path | None = None, as_json: AsJson = False) -> None:
    """Race two agents in pairs from the same starts, and report which one wins.

    Example: `rulka agents compare promoted latest --tracks main campaign --out pair`

    Args:
        first: name of an agent (`rulka agents list`), "latest", "promoted", a folder, or a function MODULE:FUNCTION.
        second: the other agent, named likewise.
        how: pairs of races.
        out: folder to write leads.png and side_by_side.mp4 into.
        as_json: print one JSON object.
    """
    from rulka.operations.pairs import format_comparison
    from rulka.operations.pictures import leads_png, write_side_by_side
    from rulka.params import read_params

    if out is not None:
        check_folder(out)
    comparison = _compared(first, second, how)
    found = comparison.to_json()
    beside = ""
    if out is not None:
        with filled_folder(out) as folder:
            (folder / PLOT_FILE).write_bytes(leads_png(comparison))
            shown = write_side_by_side(folder / VIDEO_FILE, comparison, read_params(), sys.stderr)
        beside = f"\nplot   {(out / PLOT_FILE).as_posix()}\nvideo  {(out / VIDEO_FILE).as_posix()}: {shown}"
    report(found, lambda: format_comparison(found) + beside, as_json)


def promote(name: str, /, how: PairSettings, as_json: AsJson = False) -> None:
    """Promote an agent if it beats the promoted one, and keep it in data/agents; the first needs no race.

    Example: `rulka agents promote latest --races 50`

    Args:
        name: of the agent (`rulka agents list`), "latest", or a folder.
        how: pairs of races against the promoted agent.
        as_json: print one JSON object.
    """
    from rulka.operations import promotion
    from rulka.operations.kept import find_agent
    from rulka.operations.versions import keep_by_dvc

    folder = find_agent(name)
    promoted = promotion.promote(folder, lambda before: _compared(folder.as_posix(), before, how))
    report(asdict(promoted), lambda: promotion.describe(promoted), as_json)
    keep_by_dvc([KEPT_AGENTS], f"{promoted.name} is promoted")


def export(out: Path, /, agent: str = "latest", as_json: AsJson = False) -> None:
    """Export an agent or a cloned policy for inference: in the Hugging Face layout, or as an ONNX file.

    Example: `rulka agents export promoted.onnx --agent promoted`

    Args:
        out: an empty or new folder for config.json and model.safetensors; or a file ending in .onnx.
        agent: name of an agent (`rulka agents list`), "latest", "promoted", or a folder of an agent or a cloned policy.
        as_json: print one JSON object.
    """
    from rulka.operations.kept import find_agent

    if out.suffix.lower() == ".onnx":
        from rulka.agents.onnx_file import export_onnx

        check_file(out)
        written = export_onnx(find_agent(agent), out)
    else:
        from rulka.agents.hugging_face import export_agent

        check_folder(out)
        written = export_agent(find_agent(agent), out)
    _report(out, written, as_json)


def import_(folder: Path, /, agent: Path = AGENT, as_json: AsJson = False) -> None:
    """Import an agent or a cloned policy from a folder in the Hugging Face layout.

    Example: `rulka agents import hub --agent mine`

    Args:
        folder: holds config.json and model.safetensors.
        agent: folder to write, which must not exist yet.
        as_json: print one JSON object.
    """
    from rulka.agents.hugging_face import import_agent

    check_folder(agent)
    _report(agent, import_agent(folder, agent), as_json)


def _report(written: Path, artifact: Artifact, as_json: bool) -> None:
    """Reports the written artifact."""
    from rulka.agents.load import CLONING, label_of

    algorithm, num_tensors = artifact.config.get("algorithm", CLONING), len(artifact.tensors)
    facts = {"folder": written.as_posix(), "kind": artifact.kind, "algorithm": algorithm, "num_tensors": num_tensors}
    text = f"{written.as_posix()}: {artifact.kind} ({label_of(algorithm)}), {num_tensors} tensors"
    report(facts, lambda: text, as_json)


def _compared(first: str, second: str, how: PairSettings) -> Comparison:
    """Races two agents with the settings of a command's arguments."""
    from rulka.machine.device import use_device
    from rulka.operations.pairs import race_pairs, racer_of
    from rulka.operations.tracks import tracks_to_race_on
    from rulka.params import read_params

    params, networks = read_params(), use_device(how.device)
    racers = [racer_of(name, params, networks) for name in (first, second)]
    where = tracks_to_race_on(how.tracks, params)
    return race_pairs(racers[0], racers[1], params, where, num_races=how.races, seed=how.seed, stream=sys.stderr)
