"""Downloads maps and recordings to a folder that the pipeline reads.

    <map id>/<map id>.Challenge.Gbx                            the map
    <map id>/<rank, 5 digits>_<time>ms_<replay id>.Replay.Gbx  a recording; sorting by name sorts by rank
    rejected/<name>.rejected                                   a file that failed validation; ignored by the pipeline

A file is parsed completely before it is written. File names consist of numbers: names of players and maps never become
a path. Files in the folder, including rejected ones, are never fetched again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rulka.exchange.site import MapEntry, MapQuery, NotThereError, Site
from rulka.recordings.container import read_container
from rulka.recordings.errors import RecordingError, UnsupportedGenerationError
from rulka.recordings.header import parse_header
from rulka.recordings.reader import parse_map, parse_recording
from rulka.stages.outputs import new_file

REJECTED = "rejected"
UNRANKED = 99999


@dataclass
class FetchReport:
    """Counts of a fetch, and one line in `problems` for each file that was not taken."""

    num_maps: int = 0
    num_new: int = 0
    num_known: int = 0
    num_rejected: int = 0
    problems: list[str] = field(default_factory=list)


def fetch(
    site: Site,
    query: MapQuery,
    folder: Path,
    *,
    num_replays: int,
    environment: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> FetchReport:
    """Fetches the selected maps and recordings that are missing; an interrupted fetch resumes where it stopped.

    Args:
        site: the exchange.
        query: selects the maps.
        folder: target folder, created if missing.
        num_replays: number of best-ranked recordings of each map.
        environment: only maps of this environment, according to their files; empty for any.
        say: called with a line about every file.

    Raises:
        UserError: if the exchange gives no answer or an invalid one, or a file cannot be written. Fetched files are
            kept.
    """
    report = FetchReport()
    for entry in site.maps(query):
        report.num_maps += 1
        files = [("map", f"/trackgbx/{entry.map_id}", f"{entry.map_id}.Challenge.Gbx")]
        for replay in site.best_replays(entry.map_id, num_replays) if num_replays > 0 else ():
            rank = UNRANKED if replay.rank is None else replay.rank
            name = f"{rank:05d}_{replay.time_ms or 0}ms_{replay.replay_id}.Replay.Gbx"
            files.append(("recording", f"/recordgbx/{replay.replay_id}", name))
        for kind, address, name in files:
            if _is_known(folder, entry, name):
                report.num_known += 1
                continue
            problem = _take(site, folder / f"{entry.map_id}" / name, kind, address, entry.uid, environment)
            shown = f"{entry.map_id}/{name}"
            say(f"{shown} was not taken: {problem}" if problem else shown)
            report.num_new += not problem
            report.num_rejected += bool(problem)
            report.problems += [f"{shown}: {problem}"] if problem else []
    return report


def _is_known(folder: Path, entry: MapEntry, name: str) -> bool:
    """True if a file exists or was rejected before; recordings are matched by id, since ranks change."""
    pattern = "*_" + name.rpartition("_")[2] if "_" in name else name
    found = [*(folder / f"{entry.map_id}").glob(pattern), *(folder / REJECTED).glob(f"{pattern}.rejected")]
    return bool(found)


def _take(site: Site, target: Path, kind: str, address: str, uid: str, environment: str) -> str:
    """Fetches one file; returns why it was not taken, empty if it was."""
    try:
        data = site.file(address)
    except NotThereError as error:
        return str(error)
    problem = problem_of(data, kind, uid, environment)
    if problem:
        target = target.parent.with_name(REJECTED) / f"{target.name}.rejected"
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target, may_replace=False) as beside:
        beside.write_bytes(data)
    return problem


def problem_of(data: bytes, kind: str, uid: str, environment: str) -> str:
    """Validates a fetched file; returns the problem, empty if there is none.

    Args:
        data: the file.
        kind: expected kind, `map` or `recording`.
        uid: expected UID of the map; empty for any.
        environment: expected environment; empty for any.
    """
    try:
        header = parse_header(read_container(data, header_only=True))
        if header.kind != kind:
            return f"a {kind} was expected, this is of the kind {header.kind}"
        in_body = _uid_of_body(data, kind)
    except RecordingError as error:
        return f"{type(error).__name__}: {error}"
    map_uid = header.map_uid or in_body
    if uid and map_uid != uid:
        return f"it is of map {map_uid!r}, {uid!r} was asked for"
    if environment and header.environment.casefold() != environment.casefold():
        return f"it is of the environment {header.environment!r}, {environment!r} was asked for"
    return ""


def _uid_of_body(data: bytes, kind: str) -> str:
    """Reads the whole file, which raises an error if it is damaged, and returns the map's UID.

    A file of an unsupported game is not damaged: the UID then comes from the error, which may have none.
    """
    try:
        return parse_map(data).header.map_uid if kind == "map" else parse_recording(data).map_uid
    except UnsupportedGenerationError as error:
        return error.map_uid
