"""The reader under a coverage-guided fuzzer: `python tests/recordings/fuzz_atheris.py [CORPUS_FOLDER] [-runs=N]`.

Needs `atheris` (`pip install atheris`), which is no dependency of this project; the fuzz test in the normal run mutates
by a seed instead. Everything after the script's name goes to libFuzzer. Anything but the reader's own errors, 2 seconds
for one file, or more than 640 MB ends the run with the file that did it.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

LIMITS = ["-timeout=2", "-rss_limit_mb=1200", "-malloc_limit_mb=640"]


def main() -> int:
    """Fuzzes until stopped; says so and does nothing where atheris is not installed."""
    try:
        import atheris  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.stderr.write("atheris is not installed; skipped. `pip install atheris` to run this.\n")
        return 0
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    with atheris.instrument_imports(include=["rulka.recordings"]):
        from rulka.recordings.container import read_container
        from rulka.recordings.errors import RecordingError
        from rulka.recordings.header import parse_header
        from rulka.recordings.reader import parse_map, parse_recording

    def one(data: bytes) -> None:
        with contextlib.suppress(RecordingError):
            parse_header(read_container(data, header_only=True))
        with contextlib.suppress(RecordingError):
            parse_recording(data)
        with contextlib.suppress(RecordingError):
            parse_map(data)

    atheris.Setup([sys.argv[0], *LIMITS, *sys.argv[1:]], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
