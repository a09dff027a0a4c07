"""Recordings: inspect, fetch and list unused ones; export races as input scripts."""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rulka.cli.options import AsJson, report, say, say_json, stdout_to_stderr
from rulka.machine.errors import UserError, counted
from rulka.stages.folders import RACES, REASONS_FILE, RECORDINGS
from rulka.stages.outputs import check_file, check_folder
from rulka.stages.stage import EXIT_USER_ERROR


def inspect(paths: tuple[Path, ...], /, as_json: AsJson = False) -> None:
    """Show the content of recordings; of a folder, its maps, what is not used and the cost; exit 1 if none can be read.

    Example: `rulka recordings inspect data/recordings --json`

    Args:
        paths: Gbx files, drive files, and folders of them.
        as_json: print a list of JSON objects, or for one file alone its object.
    """
    from rulka.datasets.from_recordings import find_recordings, unread_files
    from rulka.operations.recordings import describe_folder, inspect_recording

    files = {path: find_recordings(path, with_drives=True) if path.is_dir() else [path] for path in paths}
    if not any(files.values()):
        message = (
            f"no recording is in {', '.join(map(str, paths))}" if paths else "name a recording, or a folder of them"
        )
        raise UserError(message, hint="\n  ".join(line for path in paths for line in unread_files(path)))
    found = {path: [inspect_recording(file) for file in inside] for path, inside in files.items()}
    summaries = [summary for inside in found.values() for summary in inside]
    texts = (describe_folder(path, each) if path.is_dir() else _lines(each[0]) for path, each in found.items())
    report(summaries[0] if files == {paths[0]: [paths[0]]} else summaries, lambda: "\n\n".join(texts), as_json)
    if all(summary["error"] for summary in summaries):
        sys.exit(EXIT_USER_ERROR)


def quarantine(races: Path = RACES, as_json: AsJson = False) -> None:
    """Show the recordings that the stage `races` rejected, by reason, with remedies.

    If its last run could use no recording, and so left the dataset unchanged, that run counts.

    Example: `rulka recordings quarantine --json`

    Args:
        races: folder of the race dataset.
        as_json: print a list of objects with file, error and hint.
    """
    from rulka.datasets.formats.races import QuarantinedFile, load_quarantine
    from rulka.operations.recordings import by_reason

    if races == RACES and REASONS_FILE.is_file():
        with REASONS_FILE.open(encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file)
        found = tuple(QuarantinedFile(*row) for row in rows)
    else:
        found = load_quarantine(races)
    report([asdict(item) for item in found], lambda: by_reason(found), as_json)


def fetch(  # noqa: PLR0913
    *,
    out: Path = RECORDINGS,
    map_id: tuple[int, ...] = (),
    map_uid: tuple[str, ...] = (),
    name: str = "",
    author: str = "",
    environment: str = "",
    max_length_s: float | None = None,
    maps: int | None = None,
    replays: int = 20,
    only_list: bool = False,
    requests_per_s: float = 1.0,
    url: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Fetch maps and their best recordings from an exchange site; run it again to resume after an interruption.

    Example: `rulka recordings fetch --author Nadeo --max-length-s 60 --maps 10 --environment Stadium`

    Args:
        out: folder to fetch into.
        map_id: ids of maps on the exchange.
        map_uid: UIDs of maps.
        name: part of a map's name.
        author: uploader of the map.
        environment: only maps of this environment, for example Stadium, according to their files.
        max_length_s: maximum author time.
        maps: maximum number of maps; required unless maps are given by id or UID.
        replays: number of best-ranked recordings of each map; 0 fetches maps only.
        only_list: list the matching maps and fetch nothing.
        requests_per_s: request rate; the site is a hobby project.
        url: URL of the exchange; if omitted, RULKA_EXCHANGE_URL or https://tmnf.exchange.
        as_json: print one JSON object of counts, or with --only-list a list of the maps; all other lines go to standard
            error.
    """
    from rulka.exchange.fetch import REJECTED, fetch
    from rulka.exchange.site import MapQuery, Site

    most_ms = None if max_length_s is None else round(1000 * max_length_s)
    check_folder(out)
    query = MapQuery(map_id, map_uid, name, author, most_ms, maps)
    site = Site(url or os.environ.get("RULKA_EXCHANGE_URL") or "https://tmnf.exchange", requests_per_s)
    with stdout_to_stderr(as_json):
        if only_list:
            found = []
            for entry in site.maps(query):
                length = "?" if entry.length_ms is None else f"{entry.length_ms / 1000:.2f} s"
                say(f"{entry.map_id:9}  {length:>10}  {entry.uid:28}  {entry.name}  by {entry.author}")
                found.append(entry.model_dump())
        else:
            say(f"fetching from {site.url} into {out}; Ctrl-C stops, run again goes on")
            fetched = fetch(site, query, out, num_replays=replays, environment=environment, say=say)
            counts = f"{counted(fetched.num_maps, 'map')}: {counted(fetched.num_new, 'file')} fetched, "
            counts += f"{fetched.num_known} known before, {fetched.num_rejected} not taken"
            say(f"{counts} (see {out / REJECTED})")
            found = asdict(fetched)
    if as_json:
        say_json(found)


def export(race: str, out: Path, /, races: Path = RACES, as_json: AsJson = False) -> None:
    """Write the inputs of a race of data/races as a TMInterface script; an existing file is not overwritten.

    Example: `rulka recordings export driver-1-0003 out.txt`

    Args:
        race: race_id of the race, or its beginning.
        out: file to write, ending in `.txt`.
        races: folder of the race dataset.
        as_json: print one JSON object.
    """
    from rulka.datasets.export import export_race

    check_file(out, ".txt")
    written = export_race(races, race, out)
    facts = {"file": out.as_posix(), "race_id": written.race_id, "map_uid": written.map_uid}
    text = f"{out}: {written.race_id}, {written.duration_ms / 1000:.2f} s on {written.map_uid}"
    report(facts | {"duration_ms": written.duration_ms}, lambda: text, as_json)


def _lines(summary: dict[str, Any]) -> str:
    """Formats a single file field by field; for a damaged file, only the fields that could be read."""
    shown = {**summary, "ghosts": len(summary["ghosts"])}
    if shown["error"]:
        shown = {name: value for name, value in shown.items() if value and (name, value) != ("kind", "unknown")}
    if shown.get("hint") is None:
        shown.pop("hint", None)
    shown.pop("blocks", None)  # thousands of them; the JSON output has them all
    return "\n".join(f"{name:21}{'' if value is None else value}" for name, value in shown.items())
