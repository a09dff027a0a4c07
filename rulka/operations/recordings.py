"""What a folder of recordings holds, map by map, what is not used and why, and about what learning from it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rulka.contracts.actions import TICK_MS
from rulka.datasets import from_recordings as reading
from rulka.datasets.drives import ENVIRONMENT, DriveFileError, device_of_controls, read_drive
from rulka.datasets.drives import SUFFIX as DRIVE_SUFFIX
from rulka.datasets.formats.races import QuarantinedFile, Race
from rulka.datasets.recovery import DECISIONS_PER_S
from rulka.params import PARAMS_FILE, Params, read_params, reference_params
from rulka.recordings.model import Ghost
from rulka.recordings.summary import facts_of, inspect_file
from rulka.stages.folders import utf8_path

PRETRAINED_PER_S, CLONED_PER_S, LABELLED_PER_S = 2_500, 2_000, 800
"""Frames per second of Levels 0 and 1, in float32, and of the planner as adviser, on one core; rough."""


def inspect_recording(path: Path) -> dict[str, Any]:
    """Summarises a recording of the game, or a drive file, which is of kind `drive`; see `inspect_file`.

    The summary of a drive is that of its only ghost; states count as samples, ticks as inputs.
    """
    if not path.name.lower().endswith(DRIVE_SUFFIX):
        return inspect_file(path)
    ghost, of_map, more = Ghost(), ("", ""), dict[str, Any]()
    try:
        race, track = read_drive(path)
        ghost = Ghost(race.player, race.player, race.car, race_time_ms=race.race_time_ms, num_inputs=race.num_ticks)
        ghost.checkpoint_times_ms, of_map = race.checkpoint_times_ms, (race.map_uid, ENVIRONMENT)
        more = {"map_name": track.name, "num_samples": len(race.state), "device": device_of_controls(race.controls)}
    except DriveFileError as error:
        more = {"error": f"{type(error).__name__}: {error}", "hint": error.hint}
    facts = facts_of(ghost, utf8_path(path.name), "drive", *of_map) | more
    return facts | {"ghosts": [] if facts["error"] else [facts]}


def describe_folder(folder: Path, summaries: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of the maps, the files that are not used by reason, and the cost of the chain.

    Args:
        folder: folder of recordings, read with the parameters of the project, or those of the package outside of one.
        summaries: of each file in it, from `inspect_recording`.
    """
    from pandas import DataFrame

    params = read_params() if PARAMS_FILE.exists() else reference_params()
    files, settings = reading.find_recordings(folder, with_drives=True), params.races
    races, main = (), None
    try:
        dataset = reading.read_race_dataset(folder, files, settings.map_uid, settings.select, lambda: None)
        races, main, unused = dataset.races, dataset.main_track.uid, dataset.quarantine
    except reading.NoUsableRecordingError as error:
        unused = error.quarantine
    rows = []
    for uid, same_map in groupby(sorted(summaries, key=itemgetter("map_uid")), itemgetter("map_uid")):
        names, cars = zip(*((reading.plain_text(each["map_name"]), each["car"]) for each in same_map), strict=True)
        times_s = [race.duration_ms / 1000 for race in races if race.map_uid == uid]
        fastest, is_main = f"{min(times_s):.2f} s" if times_s else "", "main track" if uid == main else ""
        name, car = max(names) or uid or "(no map named)", ", ".join(sorted({*cars} - {""}))
        rows.append((name, car, len(names), len(times_s), fastest, is_main))
    rows.sort(key=lambda row: -row[3])
    table = DataFrame(rows, columns=["map", "car", "files", "usable", "fastest", ""]).to_string(index=False)
    told = [table, by_reason(unused), *(f"not read: {line}" for line in reading.unread_files(folder))]
    return "\n".join([*told, *([_cost(races, main, params)] if races else [])])


def _cost(races: Sequence[Race], main: str | None, params: Params) -> str:
    """Returns the number of frames, and about the minutes of the stages that depend on it; training does not."""
    capture, clone, pretrain = params.capture, params.clone, params.pretrain
    frames = [(race.map_uid == main, race.duration_ms // (params.actions.ticks_per_action * TICK_MS)) for race in races]
    taught, every = sum(count for is_main, count in frames if is_main), sum(count for _, count in frames)
    every, again = taught if capture.maps == "main" else every, taught * capture.recoveries
    seconds = again / DECISIONS_PER_S / capture.num_workers + pretrain.epochs * (every + again) / PRETRAINED_PER_S
    epoch_frames = clone.dagger and clone.dagger.epoch_frames
    seconds += clone.epochs * (epoch_frames or again + (taught if clone.maps == "main" else every)) / CLONED_PER_S
    if clone.dagger:
        visited = clone.dagger.rounds * clone.dagger.num_races * taught / sum(is_main for is_main, _ in frames)
        seconds += visited / LABELLED_PER_S
    shares = f", {again:,} of them of recovery drives" if again else ""
    return f"about {every + again:,} frames{shares}; capture, pretrain and clone take about {1 + seconds // 60:.0f} min"


def by_reason(found: Sequence[QuarantinedFile]) -> str:
    """Formats one line per rejected file, grouped by reason."""

    def reason_of(item: QuarantinedFile) -> str:
        return item.error.split(":")[0]

    lines: list[str] = []
    for reason, items in groupby(sorted(found, key=reason_of), reason_of):
        told = [(item.file, item.error.removeprefix(f"{reason}: "), item.hint) for item in items]
        lines.append(f"{reason}: {len(told)}")
        lines += [f"  {file}: {error}{f'. {hint}' if hint else ''}" for file, error, hint in told]
    return "\n".join([*lines, f"{len(found)} not used" if found else "every recording is used"])
