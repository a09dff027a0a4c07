"""How fast recordings are read: `python -m benchmarks.recordings [FOLDER] [--json]`.

The measure of a reader is the work nobody can avoid: decompressing. So the same run times, in turn and on one thread,

* `decompression`: LZO of every body and zlib of every block of samples, and nothing else,
* `full`: the whole reading of every file, from its bytes to arrays (maps included),
* `header`: the header-only reading of the same files, from their bytes.

CPU time, best of some interleaved tries. Targets: full at most 3 times decompression, header at least 20 times as fast
as full. The folder is `RULKA_RECORDINGS`, or `../shared/recordings`, when not given.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from rulka.recordings.container import MAP, read_container
from rulka.recordings.errors import RecordingError
from rulka.recordings.header import parse_header
from rulka.recordings.reader import parse_map, parse_recording

TRIES = 15
MAX_FULL_TO_DECOMPRESSION, MIN_FULL_TO_HEADER = 3.0, 20.0


def read_whole(data: bytes, *, is_map: bool) -> None:
    """Reads one file of any kind; a file that is refused by name has been read up to there."""
    try:
        if is_map:
            parse_map(data)
        else:
            parse_recording(data)
    except RecordingError:
        return


def zlib_blocks(files: list[tuple[bytes, bool]]) -> list[bytes]:
    """Returns every zlib stream that reading the files decompresses."""
    blocks: list[bytes] = []
    make = zlib.decompressobj

    class Spy:
        def __init__(self) -> None:
            self.decoder = make()

        @property
        def eof(self) -> bool:
            return self.decoder.eof

        def decompress(self, data: bytes, limit: int) -> bytes:
            blocks.append(bytes(data))
            return self.decoder.decompress(data, limit)

    with mock.patch.object(zlib, "decompressobj", Spy):
        for data, is_map in files:
            read_whole(data, is_map=is_map)
    return blocks


def variants(files: list[tuple[bytes, bool]]) -> dict[str, Callable[[], None]]:
    """Returns the three ways of reading all files, by name."""
    blocks = zlib_blocks(files)

    def decompression() -> None:
        for data, _ in files:
            read_container(data)
        for block in blocks:
            zlib.decompress(block)

    def full() -> None:
        for data, is_map in files:
            read_whole(data, is_map=is_map)

    def header() -> None:
        for data, _ in files:
            parse_header(read_container(data, header_only=True))

    return {"decompression": decompression, "full": full, "header": header}


def measure(runs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Returns the least CPU seconds of each variant; the first round only warms up."""
    best = dict.fromkeys(runs, float("inf"))
    for attempt in range(TRIES + 1):
        for name, run in runs.items():
            start_s = time.process_time()
            run()
            if attempt:
                best[name] = min(best[name], time.process_time() - start_s)
    return best


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder of Gbx files")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    folder = Path(arguments.folder or os.environ.get("RULKA_RECORDINGS", "../shared/recordings"))
    data = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix.lower() == ".gbx"]
    if not data:
        parser.error(f"no Gbx file is in {folder}; name another folder")
    files = [(one, read_container(one, header_only=True).class_id == MAP) for one in data]
    seconds = measure(variants(files))
    result = {
        "files": len(files),
        "bytes": sum(map(len, data)),
        "milliseconds": {name: round(1000 * value, 3) for name, value in seconds.items()},
        "full_to_decompression": round(seconds["full"] / seconds["decompression"], 2),
        "full_to_header": round(seconds["full"] / seconds["header"], 1),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{len(files)} files, {result['bytes'] / 1e6:.1f} MB, CPU milliseconds for all of them")
    for name, milliseconds in result["milliseconds"].items():
        print(f"  {name:14s} {milliseconds:9.2f}")
    print(f"  full to decompression {result['full_to_decompression']:.2f} (target at most {MAX_FULL_TO_DECOMPRESSION})")
    print(f"  full to header        {result['full_to_header']:.1f} (target at least {MIN_FULL_TO_HEADER})")


if __name__ == "__main__":
    main()
