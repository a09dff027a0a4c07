"""Fetching maps and recordings into a folder that the pipeline reads.

    <map id>/<map id>.Challenge.Gbx                            the map
    <map id>/<rank, 5 digits>_<time>ms_<replay id>.Replay.Gbx  a recording; sorted by name is sorted by rank
    rejected/<name>.rejected                                   what was not what was asked for; nothing reads these

A file is read whole before it is written. Names are made of numbers alone: what people call themselves and their maps
never becomes a path. What lies in the folder, refused files included, is never fetched again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rulka.exchange.site import MapEntry, MapQuery, NotThereError, Site
from rulka.outputs import new_file
from rulka.recordings.container import read_container
from rulka.recordings.errors import RecordingError, UnsupportedGenerationError
from rulka.recordings.header import parse_header
from rulka.recordings.reader import parse_map, parse_recording

REJECTED = "rejected"
UNRANKED = 99999


@dataclass
class FetchReport:
    """What became of everything: how many, and one line for each thing that was not taken."""

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
    """Fetches maps and recordings that are wanted and not yet there; an interrupted fetch goes on where it stopped.

    Args:
        site: the exchange.
        query: which maps.
        folder: where to; made if it is not there.
        num_replays: best-ranked recordings of each map.
        environment: only maps of this environment, as their files say; empty for any.
        say: called with a line about every file.

    Raises:
        ExchangeError: if the exchange does not answer, or not as its interface says. What was fetched stays.
        OutputError: if a file cannot be written.
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
    """Whether a file is there, or was refused before; a recording also if its rank has changed since."""
    pattern = "*_" + name.rpartition("_")[2] if "_" in name else name
    found = [*(folder / f"{entry.map_id}").glob(pattern), *(folder / REJECTED).glob(f"{pattern}.rejected")]
    return bool(found)


def _take(site: Site, target: Path, kind: str, address: str, uid: str, environment: str) -> str:
    """Fetches one file; returns why it was refused, empty where it was not."""
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
    """Returns what is wrong with a fetched file, empty when it is what was asked for.

    Args:
        data: the file.
        kind: `map` or `recording`.
        uid: map that it must be, or be of; empty for any.
        environment: that it must be of; empty for any.
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
    """Reads the whole file, which fails where it is damaged, and returns the map it names.

    A file of a game that the reader does not know is no damaged one: then only what its error names is returned.
    """
    try:
        return parse_map(data).header.map_uid if kind == "map" else parse_recording(data).map_uid
    except UnsupportedGenerationError as error:
        return error.map_uid
