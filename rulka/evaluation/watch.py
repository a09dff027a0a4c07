"""What `rulka watch` does: puts recordings, agents and stored races into one picture, as a video or in a window.

The first race of the first source is followed; all others are ghosts, started at the same moment.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rulka.actions import action_table
from rulka.artifacts import META_FILE
from rulka.datasets.from_recordings import find_recordings
from rulka.datasets.races import META_FILE as RACES_META_FILE
from rulka.datasets.races import load_races
from rulka.device import CPU, use_device
from rulka.errors import UserError
from rulka.evaluation.command import RACES_DIR, race_track
from rulka.evaluation.contest import agent_driver
from rulka.evaluation.demonstrations import demonstration_results
from rulka.evaluation.hud import HudTexts
from rulka.evaluation.race import RaceRules, race
from rulka.evaluation.recorded import OtherMapError, recorded_races
from rulka.evaluation.reference import reference_race
from rulka.evaluation.result import RaceResult
from rulka.evaluation.video import VideoRace, race_frames, write_video
from rulka.evaluation.window import check_screen, show_frames
from rulka.outputs import new_file
from rulka.params import Params
from rulka.progress import Progress
from rulka.reference.lap import LAPS_DIR, load_reference, read_reference
from rulka.tracks.campaign import UID_PREFIX
from rulka.tracks.track import Track

MAX_GHOSTS = 32
SOURCES = (
    "Name a .Gbx recording, a folder of them, an agent such as data/agent, data/races, a reference lap, or the folder"
    " of a training that has begun, such as runs/train."
)
LAP_SUFFIX = ".txt"
LEFT_TO_RIGHT = "\N{LEFT-TO-RIGHT MARK}"
"""Around a name, so that one in another direction of writing does not turn the line around."""


class UnknownSourceError(UserError):
    """Something to watch that is neither a recording, nor an agent, nor a race dataset."""


@dataclass(frozen=True)
class _Sources:
    """What was named, by kind, and what was named first."""

    first: Path
    recordings: list[Path]
    agents: list[Path]
    datasets: list[Path]
    laps: list[Path]


def watch(
    sources: Sequence[Path],
    params: Params,
    *,
    track: str | None,
    num_races: int,
    out: Path | None,
    device: str | None = None,
) -> str:
    """Shows races together, in a window or as a video.

    Args:
        sources: Gbx files or folders of them, folders of agents or cloned policies, race datasets, files of reference
            laps or slugs of the campaign for the laps that come with it.
        params: how agents race, and size and rate of the pictures.
        track: uid or file of the track on which agents race; without it that of the recordings or datasets
            named beside them, or the main track of `data/races`.
        num_races: greedy races of each agent, from different starts, and races of each dataset, fastest first.
        out: MP4 file to write; None opens a window.
        device: name of where networks of agents run; see `rulka.device.choose_device`.

    Returns:
        One line that says what was shown.

    Raises:
        UserError: if nothing is named, a source is nothing to watch, sources are of different tracks, or there is no
            screen.
    """
    found = _sort(sources)
    if out is None:
        check_screen()
    shown = _gathered(found, params, track, num_races, device)
    said = f"{shown.texts.title.replace(LEFT_TO_RIGHT, '')} on {shown.track.name}, {len(shown.ghosts)} ghosts"
    size = (shown, params.simulator.camera, params.observation, params.evaluate)
    if out is None:
        show_frames(race_frames(*size), params.evaluate.video_fps, said)
        return said
    with Progress("video", None, "frames", stream=sys.stderr) as bar:

        def on_frame(_number: int, total: int) -> None:
            bar.total = total
            bar.advance()

        with new_file(out) as beside:
            write_video(beside, *size, on_frame)
    return f"{said}: {out.as_posix()}"


def gather(sources: Sequence[Path], params: Params, track: str | None, num_races: int) -> VideoRace:
    """Reads or drives everything that is to be shown; see `watch`."""
    return _gathered(_sort(sources), params, track, num_races)


def _gathered(
    found: _Sources, params: Params, track: str | None, num_races: int, device: str | None = None
) -> VideoRace:
    if num_races < 1:
        message = f"{num_races} races are too few: at least 1 is needed"
        raise UserError(message)
    where = race_track(track, RACES_DIR) if track is not None else None
    races: list[tuple[str, RaceResult]] = []
    if found.recordings:
        driven_on, recorded = recorded_races(found.recordings)
        where, races = _same(where, driven_on), races + recorded
    for folder in found.datasets:
        dataset = load_races(folder)
        where = _same(where, dataset.main_track)
        results = sorted(
            demonstration_results(dataset.on_main_track(), where), key=lambda r: (not r.time_ms, r.time_ms)
        )
        races += [("Demonstration", result) for result in results[:num_races]]
    table = action_table(params.actions.ticks_per_action)
    for path in found.laps:
        lap = read_reference(path, table)
        where = _same(where, race_track(lap.track_uid.removeprefix(UID_PREFIX), RACES_DIR))
        rules = RaceRules(where, table, params.simulator, params.observation, params.evaluate, params.race_end)
        races.append(("Reference lap", reference_race(load_reference(path, where, params.simulator, table), rules)))
    where = where or race_track(None, RACES_DIR)
    networks = use_device(device) if found.agents else CPU
    agents = [pair for folder in found.agents for pair in _agent_races(folder, where, params, num_races, networks)]
    races = agents + races if found.first in found.agents else races + agents
    return _shown(races, where)


def _sort(sources: Sequence[Path]) -> _Sources:
    if not sources:
        message = "nothing is named to watch"
        raise UnknownSourceError(message, hint=SOURCES)
    found = _Sources(sources[0], [], [], [], [])
    for source in sources:
        inside = find_recordings(source) if source.is_dir() else []
        if (source / RACES_META_FILE).is_file() and (source / "races.parquet").is_file():
            found.datasets.append(source)
        elif (source / META_FILE).is_file():
            found.agents.append(source)
        elif source.suffix == LAP_SUFFIX and source.is_file():
            found.laps.append(source)
        elif (LAPS_DIR / f"{source}{LAP_SUFFIX}").is_file():
            found.laps.append(LAPS_DIR / f"{source}{LAP_SUFFIX}")
        elif inside or source.is_file():
            found.recordings.extend(inside or [source])
        else:
            message = f"{source} is nothing to watch"
            raise UnknownSourceError(message, hint=SOURCES)
    return found


def _same(where: Track | None, other: Track) -> Track:
    if where is not None and where.uid != other.uid:
        message = f"cannot show {where.name!r} ({where.uid}) and {other.name!r} ({other.uid}) in one picture"
        raise OtherMapError(message, hint="Watch races of one track at a time.")
    return where or other


def _agent_races(
    folder: Path, where: Track, params: Params, num_races: int, device: torch.device
) -> list[tuple[str, RaceResult]]:
    table = action_table(params.actions.ticks_per_action)
    evaluate = params.evaluate.model_copy(update={"num_races": num_races})
    rules = RaceRules(where, table, params.simulator, params.observation, evaluate, params.race_end)
    driver = agent_driver(folder, rules, device)
    return [(f"{driver.label}, start {result.seed}", result) for result in race(driver.policy, rules)]


def _shown(races: list[tuple[str, RaceResult]], where: Track) -> VideoRace:
    (title, followed), *others = races[: MAX_GHOSTS + 1]
    ending = f"{followed.time_s:.2f} s" if followed.time_s is not None else followed.end
    rival = f"ghost: {others[0][0]}" if others else ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    texts = HudTexts(
        f"{LEFT_TO_RIGHT}{title[:26]}{LEFT_TO_RIGHT}  {ending}", where.name[:40], (rival[:34] + more) if rival else ""
    )
    return VideoRace(followed, tuple(result for _, result in others), where, texts)
