"""Summary of a file as plain values, for a command or a table; never raises for a bad file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rulka.recordings.alignment import device_of, measure_lag, measure_pedal_sign
from rulka.recordings.errors import RecordingError
from rulka.recordings.model import Ghost, MapInfo
from rulka.recordings.reader import embedded_map, read_header, read_map, read_recording
from rulka.recordings.times import check_times
from rulka.stages.folders import utf8_path

MEDALS = ("bronze", "silver", "gold", "author")


def inspect_file(path: Path | str) -> dict[str, Any]:
    """Summarises the contents of a file.

    Args:
        path: any file.

    Returns:
        The fields of the first ghost, and `ghosts` with those of each. `kind` is recording, map, ghost or unknown. Maps
        add `map_author`, `medals_ms`, `num_blocks`, `checkpoints_m` and `blocks`. `error` is None, or the class and
        message of the error, and `hint` its remedy; the header's fields are returned in any case. Missing text is
        empty, any other missing value None.
    """
    file = utf8_path(Path(path).name)
    summary = facts_of(Ghost(), file, "unknown") | {"ghosts": []}
    try:
        header = read_header(path)
        told = Ghost(header.login, race_time_ms=header.race_time_ms, respawns=header.respawns, stunts=header.stunts)
        summary |= facts_of(told, file, header.kind, header.map_uid, header.environment)
        if header.kind == "map":
            summary |= _map_facts(read_map(path))
        else:
            found = read_recording(path)
            inside = embedded_map(found)
            about = file, found.kind, found.map_uid, found.environment, inside.header.map_name if inside else ""
            summary["ghosts"] = [facts_of(ghost, *about) for ghost in found.ghosts]
            summary |= summary["ghosts"][0] if found.ghosts else facts_of(told, *about)
    except RecordingError as error:
        summary |= _problem(error)
        summary["map_uid"] = summary["map_uid"] or getattr(error, "map_uid", "")
    return summary


def facts_of(
    ghost: Ghost, file: str, kind: str, map_uid: str = "", environment: str = "", map_name: str = ""
) -> dict[str, Any]:
    """Returns the fields of a ghost, with any contradiction in it, for which stage `races` rejects it too."""
    samples, lag, problem = ghost.samples, None, None
    try:
        check_times(ghost)
        if ghost.events:
            lag = measure_lag(ghost).ticks
            measure_pedal_sign(ghost, lag)
    except RecordingError as error:
        problem = error
    return {
        "file": file,
        "kind": kind,
        **_problem(problem),
        "map_uid": map_uid,
        "map_name": map_name,
        "environment": environment,
        "car": ghost.car,
        "player_login": ghost.login,
        "race_time_ms": ghost.race_time_ms,
        "checkpoint_times_ms": list(ghost.checkpoint_times_ms),
        "respawns": ghost.respawns,
        "stunts": ghost.stunts,
        "num_inputs": ghost.num_inputs,
        "num_samples": 0 if samples is None else len(samples),
        "sample_period_ms": None if samples is None else samples.period_ms,
        "device": device_of(ghost) if ghost.events else None,
        "input_lag_ticks": lag,
    }


def _problem(error: RecordingError | None) -> dict[str, str | None]:
    if error is None:
        return {"error": None, "hint": None}
    return {"error": f"{type(error).__name__}: {error}", "hint": error.hint or None}


def _map_facts(found: MapInfo) -> dict[str, Any]:
    return {
        "map_name": found.header.map_name,
        "map_author": found.header.map_author,
        "medals_ms": dict(zip(MEDALS, found.header.medals_ms, strict=True)),
        "num_blocks": len(found.blocks),
        "checkpoints_m": [list(block.position_m) for block in found.blocks if "Checkpoint" in block.name],
        "blocks": [block._asdict() for block in found.blocks],
    }
