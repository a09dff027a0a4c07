"""What is in a file, as plain values for a command or a table; never raises for a bad file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rulka.recordings.alignment import device_of, measure_lag
from rulka.recordings.errors import RecordingError
from rulka.recordings.model import Ghost, MapInfo, Recording, RecordingHeader
from rulka.recordings.reader import read_header, read_map, read_recording
from rulka.recordings.times import check_times

KEYS = (
    "file",
    "kind",
    "error",
    "hint",
    "map_uid",
    "environment",
    "player_login",
    "race_time_ms",
    "checkpoint_times_ms",
    "respawns",
    "stunts",
    "num_inputs",
    "num_samples",
    "sample_period_ms",
    "device",
    "input_lag_ticks",
)
"""Keys of a summary, and of each entry of its `ghosts`."""
MEDALS = ("bronze", "silver", "gold", "author")


def inspect_file(path: Path | str) -> dict[str, Any]:
    """Reads a file and says what is in it.

    Args:
        path: any file.

    Returns:
        The keys of `KEYS` for the first ghost, and `ghosts` with the same keys for each. `kind` is recording, map,
        ghost or unknown. A map has besides `map_name`, `map_author`, `medals_ms`, `num_blocks`, `checkpoints_m` and
        `blocks`. `error` is None, or the class of the error and its message, and `hint` what to
        do about it; what the header says is given
        all the same. Text is empty and everything else None where the file does not say.
    """
    summary = _empty(Path(path).name)
    try:
        header = read_header(path)
        _take_header(summary, header)
        if header.kind == "map":
            _take_map(summary, read_map(path))
        else:
            _take_recording(summary, read_recording(path))
    except RecordingError as error:
        summary["error"], summary["hint"] = f"{type(error).__name__}: {error}", error.hint or None
        summary["map_uid"] = summary["map_uid"] or getattr(error, "map_uid", "")
    return summary


def _empty(file: str) -> dict[str, Any]:
    summary: dict[str, Any] = dict.fromkeys(KEYS)
    texts = {"file": file, "kind": "unknown", "map_uid": "", "environment": "", "player_login": ""}
    return summary | texts | {"checkpoint_times_ms": [], "num_inputs": 0, "num_samples": 0, "ghosts": []}


def _take_header(summary: dict[str, Any], header: RecordingHeader) -> None:
    summary |= {
        "kind": header.kind,
        "map_uid": header.map_uid,
        "environment": header.environment,
        "player_login": header.login,
        "race_time_ms": header.race_time_ms,
        "respawns": header.respawns,
        "stunts": header.stunts,
    }


def _take_map(summary: dict[str, Any], found: MapInfo) -> None:
    summary |= {
        "map_uid": found.uid,
        "environment": found.environment,
        "map_name": found.name,
        "map_author": found.author,
        "medals_ms": dict(zip(MEDALS, found.medals_ms, strict=True)),
        "num_blocks": len(found.blocks),
        "checkpoints_m": [list(block.position_m) for block in found.blocks if "Checkpoint" in block.name],
        "blocks": [block._asdict() for block in found.blocks],
    }


def _take_recording(summary: dict[str, Any], recording: Recording) -> None:
    common = {"file": summary["file"], "kind": recording.kind}
    common |= {"map_uid": recording.map_uid, "environment": recording.environment}
    summary["ghosts"] = [common | _ghost_values(ghost) for ghost in recording.ghosts]
    summary |= summary["ghosts"][0] if summary["ghosts"] else common | {"error": None, "hint": None}


def _ghost_values(ghost: Ghost) -> dict[str, Any]:
    samples = ghost.samples
    return _checked(ghost) | {
        "player_login": ghost.login,
        "race_time_ms": ghost.race_time_ms,
        "checkpoint_times_ms": list(ghost.checkpoint_times_ms),
        "respawns": ghost.respawns,
        "stunts": ghost.stunts,
        "num_inputs": ghost.num_inputs,
        "num_samples": 0 if samples is None else len(samples),
        "sample_period_ms": None if samples is None else samples.period_ms,
        "device": device_of(ghost) if ghost.events else None,
    }


def _checked(ghost: Ghost) -> dict[str, Any]:
    """Returns the lag of a ghost's inputs, or what contradicts itself: the stage `races` refuses the same."""
    try:
        check_times(ghost)
        lag = measure_lag(ghost).ticks if ghost.events else None
    except RecordingError as error:
        return {"error": f"{type(error).__name__}: {error}", "hint": error.hint or None, "input_lag_ticks": None}
    return {"error": None, "hint": None, "input_lag_ticks": lag}
