"""Fetching maps and recordings into a folder that the pipeline reads.

    <map id>/<map id>.Challenge.Gbx                            the map
    <map id>/<rank, 5 digits>_<time>ms_<replay id>.Replay.Gbx  a recording; sorted by name is sorted by rank
    rejected/<name>                                            what was not what was asked for; nothing reads these
    fetched.jsonl                                              what was fetched, see `manifest`

A file is written as `.part`, checked, and only then renamed. Names are made of numbers alone: what people call
themselves and their maps never becomes a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rulka.exchange.client import Client, NotThereError
from rulka.exchange.listing import MapEntry, MapQuery, ReplayEntry, best_replays, find_maps
from rulka.exchange.manifest import GOES_ON, Manifest
from rulka.outputs import not_written
from rulka.recordings import (
    RecordingError,
    UnlimiterMapError,
    UnsupportedGenerationError,
    read_header,
    read_map,
    read_recording,
)

REJECTED = "rejected"
SUFFIX = ".Gbx"
UNRANKED = 99999


@dataclass(frozen=True)
class Wanted:
    """What to fetch.

    Attributes:
        query: which maps.
        num_replays: best-ranked recordings of each map.
        with_maps: whether the map files as well.
        environment: only maps of this environment, as their files say; empty for any.
    """

    query: MapQuery
    num_replays: int
    with_maps: bool
    environment: str = ""


@dataclass
class FetchReport:
    """What became of everything: how many, and one line for each thing that was not taken."""

    num_maps: int = 0
    num_new: int = 0
    num_known: int = 0
    num_rejected: int = 0
    problems: list[str] = field(default_factory=list)


def fetch(
    client: Client,
    wanted: Wanted,
    folder: Path,
    *,
    is_fresh: bool = False,
    on_file: Callable[[str], None] = lambda _: None,
) -> FetchReport:
    """Fetches what is wanted and not yet there; an interrupted fetch goes on where it stopped.

    Args:
        client: connection to the exchange.
        wanted: what to fetch.
        folder: where to; made if it is not there.
        is_fresh: ask for lists of maps and recordings again, of which there may be new ones.
        on_file: called with a line about every file.

    Raises:
        ExchangeError: if the exchange does not answer, or not as its interface says. What was fetched stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = _Job(client, folder, Manifest(folder, is_fresh=is_fresh), wanted.environment, on_file, FetchReport())
    ask = job.manifest.remember(client.get_json)
    for entry in find_maps(ask, wanted.query):
        job.report.num_maps += 1
        if wanted.with_maps:
            job.take_map(entry)
        for replay in best_replays(ask, entry.map_id, wanted.num_replays) if wanted.num_replays else ():
            job.take_replay(entry, replay)
    return job.report


@dataclass
class _Job:
    client: Client
    folder: Path
    manifest: Manifest
    environment: str
    on_file: Callable[[str], None]
    report: FetchReport

    def take_map(self, entry: MapEntry) -> None:
        name = f"{entry.map_id}/{entry.map_id}.Challenge{SUFFIX}"
        self._take(f"map {entry.map_id}", f"/trackgbx/{entry.map_id}", name, entry, "map")

    def take_replay(self, entry: MapEntry, replay: ReplayEntry) -> None:
        rank = UNRANKED if replay.rank is None else replay.rank
        name = f"{entry.map_id}/{rank:05d}_{replay.time_ms or 0}ms_{replay.replay_id}.Replay{SUFFIX}"
        self._take(f"replay {replay.replay_id}", f"/recordgbx/{replay.replay_id}", name, entry, "recording")

    def _take(self, item: str, address: str, name: str, entry: MapEntry, kind: str) -> None:
        """Fetches one file unless it is there or was refused before."""
        target, known = self.folder / name, self.manifest.items.get(item)
        if known is not None and (known["kind"] == "rejected" or (self.folder / str(known.get("file"))).exists()):
            self.report.num_known += 1
            return
        if target.exists():
            self.report.num_known += 1
            self.on_file(f"{name} is there already and stays as it is")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        try:
            self.client.download(address, part)
            problem = problem_of(part, kind, entry.uid, self.environment)
        except NotThereError as error:
            self._refuse(item, name, None, str(error))
            return
        except OSError as error:
            part.unlink(missing_ok=True)
            raise not_written(target, error, GOES_ON) from error
        if problem:
            self._refuse(item, name, part, problem)
            return
        facts = {"sha256": _sha256(part), "bytes": part.stat().st_size, "map_uid": entry.uid, "url": address}
        part.rename(target)
        self.manifest.add("file", item, file=name, **facts)
        self.report.num_new += 1
        self.on_file(name)

    def _refuse(self, item: str, name: str, part: Path | None, problem: str) -> None:
        facts = {}
        if part is not None:
            facts = {"sha256": _sha256(part), "bytes": part.stat().st_size}
            aside = self.folder / REJECTED / (Path(name).name + ".rejected")
            aside.parent.mkdir(exist_ok=True)
            part.replace(aside)
        self.manifest.add("rejected", item, file=name, reason=problem, **facts)
        self.report.num_rejected += 1
        self.report.problems.append(f"{name}: {problem}")
        self.on_file(f"{name} was not taken: {problem}")


def problem_of(path: Path, kind: str, uid: str, environment: str) -> str:
    """Returns what is wrong with a fetched file, empty when it is what was asked for.

    Args:
        path: the file.
        kind: `map` or `recording`.
        uid: map that it must be, or be of; empty for any.
        environment: that it must be of; empty for any.
    """
    try:
        header = read_header(path)
        if header.kind != kind:
            return f"a {kind} was expected, this is of the kind {header.kind}"
        in_body = _uid_of_body(path, kind)
        map_uid = header.map_uid or in_body
    except RecordingError as error:
        return f"{type(error).__name__}: {error}"
    if uid and map_uid != uid:
        return f"it is of map {map_uid!r}, {uid!r} was asked for"
    if environment and header.environment.casefold() != environment.casefold():
        return f"it is of the environment {header.environment!r}, {environment!r} was asked for"
    return ""


def _uid_of_body(path: Path, kind: str) -> str:
    """Reads the whole file, which fails where it is damaged, and returns the map it names.

    A file of a game that the reader does not know is no damaged one: then only what its error names is returned.
    """
    try:
        return read_map(path).uid if kind == "map" else read_recording(path).map_uid
    except UnsupportedGenerationError as error:
        return error.map_uid
    except UnlimiterMapError:
        return ""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
