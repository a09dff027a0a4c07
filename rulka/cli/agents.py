"""Commands about agents by name: which there are, how two compare, which is promoted."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rulka.cli.options import AsJson, DeviceName, OneName, TrackNames, report, say
from rulka.errors import UserError
from rulka.folders import KEPT_AGENTS, NIGHTS
from rulka.outputs import check_folder, filled_folder

if TYPE_CHECKING:
    from rulka.registry.pairs import Comparison


class NotVersionedError(UserError):
    """An agent was promoted or a night noted, but DVC could not take it in."""


DVC_FOLDER = Path(".dvc")
PLOT_FILE, VIDEO_FILE = "leads.png", "side_by_side.mp4"


def agents(as_json: AsJson = False) -> None:
    """List the agents there are, with what they were trained on and from, and which one is promoted.

    Args:
        as_json: print a JSON list.
    """
    from rulka.registry.kept import format_agents, known_agents

    found = known_agents()
    report([asdict(entry) for entry in found], lambda: format_agents(found), as_json)


def compare(
    first: OneName,
    second: OneName,
    /,
    tracks: TrackNames = (),
    races: int | None = None,
    seed: int | None = None,
    out: Path | None = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Let two agents race in pairs from the same starts, and say which one wins.

    Args:
        first: name of an agent (`rulka agents`), "latest", "promoted", or a folder.
        second: the same.
        tracks: slugs, uids or files, "main" for that of data/races, "campaign" for all of it, "held-out" for four that
            nothing is trained on; main and evaluate.tracks when left out.
        races: pairs on each track; evaluate.num_races when left out.
        seed: of the first start on each track; evaluate.seed when left out.
        out: folder to write leads.png and side_by_side.mp4 into.
        device: where their networks run; RULKA_DEVICE when left out, and without it a GPU that works, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.params import read_params
    from rulka.registry.pairs import format_comparison
    from rulka.registry.pictures import leads_png, write_side_by_side

    if out is not None:
        check_folder(out)
    comparison = _compared(first, second, tracks, races, seed, device)
    found = comparison.to_json()
    shown = ""
    if out is not None:
        with filled_folder(out) as folder:
            (folder / PLOT_FILE).write_bytes(leads_png(comparison))
            shown = write_side_by_side(folder / VIDEO_FILE, comparison, read_params(), sys.stderr)
    report(found, lambda: format_comparison(found), as_json)
    if out is not None and not as_json:
        say(f"plot   {(out / PLOT_FILE).as_posix()}\nvideo  {(out / VIDEO_FILE).as_posix()}: {shown}")


def promote(
    name: OneName,
    /,
    tracks: TrackNames = (),
    races: int | None = None,
    seed: int | None = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Promote an agent that wins against the promoted one, and keep it in data/agents; the first one without a race.

    Args:
        name: of the agent (`rulka agents`), "latest", or a folder.
        tracks: slugs, uids or files, "main" for that of data/races, "campaign" for all of it, "held-out" for four that
            nothing is trained on; main and evaluate.tracks when left out.
        races: pairs on each track; evaluate.num_races when left out.
        seed: of the first start on each track; evaluate.seed when left out.
        device: where networks run; RULKA_DEVICE when left out, and without it a GPU that works, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.registry.kept import find_agent
    from rulka.registry.promotion import describe
    from rulka.registry.promotion import promote as promote_winner

    folder = find_agent(name)
    promotion = promote_winner(folder, lambda before: _compared(folder.as_posix(), before, tracks, races, seed, device))
    report(asdict(promotion), lambda: describe(promotion), as_json)
    _keep_by_dvc([KEPT_AGENTS], f"{promotion.name} is promoted")


def _keep_by_dvc(folders: Sequence[Path], done: str) -> None:
    """Puts folders that are no outputs under DVC; `done` is what has been done in any case."""
    names = [folder.as_posix() for folder in folders]
    named = " and ".join(names)
    if not DVC_FOLDER.is_dir():
        sys.stderr.write(f"note: there is no {DVC_FOLDER} here, so that {named} has no versions\n")
        return
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "add", "--quiet", *names]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        message = f"{done}, but DVC has not taken in {named}: {answer.stderr.strip()}"
        raise NotVersionedError(message, hint=f"When that is mended: `dvc add {' '.join(names)}`.")
    files = " ".join(sorted(f"{name}.dvc" for name in names))
    sys.stderr.write(f"note: under DVC: {named}; `git add {files} && git commit` keeps this version\n")


def night(
    date: datetime.date | None = None,
    tracks: TrackNames = ("main", "campaign", "held-out"),
    races: int | None = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Let the promoted agent and the latest race from the starts of a night, and note it in data/nights.

    The latest agent is promoted where it wins, or where none is promoted yet. Nights and promoted agents are put under
    DVC.

    Args:
        date: of the night, such as 2026-11-23; today in UTC when left out.
        tracks: slugs, uids or files, "main" for that of data/races, "campaign" for all of it, "held-out" for four that
            nothing is trained on.
        races: of each agent on each track; evaluate.num_races when left out.
        device: where networks run; RULKA_DEVICE when left out, and without it a GPU that works, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.device import use_device
    from rulka.params import read_params
    from rulka.registry.nights import race_night

    which = date or datetime.datetime.now(datetime.UTC).date()
    found = race_night(which, read_params(), tracks, num_races=races, device=use_device(device), stream=sys.stderr)
    report(found.to_json(), found.describe, as_json)
    _keep_by_dvc([NIGHTS, KEPT_AGENTS], f"the night of {which} is noted")


def _compared(
    first: str,
    second: str,
    tracks: tuple[str, ...],
    races: int | None,
    seed: int | None,
    device: str | None,
) -> Comparison:
    """Lets two agents race on the tracks that the arguments of a command ask for."""
    from rulka.device import use_device
    from rulka.params import read_params
    from rulka.registry.kept import find_agent, name_of
    from rulka.registry.pairs import load_racer, race_pairs
    from rulka.registry.tracks import tracks_to_race_on

    params = read_params()
    folders = [find_agent(name) for name in (first, second)]
    where = tracks_to_race_on(tracks, params)
    networks = use_device(device)
    racers = [load_racer(name_of(folder), folder, params, networks) for folder in folders]
    return race_pairs(racers[0], racers[1], params, where, num_races=races, seed=seed, stream=sys.stderr)
