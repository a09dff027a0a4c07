"""A pipe or a device where a file is to be read: said so at once, wherever a user names a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulka.contracts.actions import action_table
from rulka.contracts.stored import plain_json
from rulka.datasets.formats.checksums import refuse_damage
from rulka.machine.errors import UserError
from rulka.params import read_sections
from rulka.recordings.reader import read_header, read_recording
from rulka.recordings.summary import inspect_file
from rulka.reference.lap import read_reference
from rulka.runtime.checkpoint import load_checkpoint
from rulka.tracks.track import load_track

READERS: dict[str, Callable[[Path], Any]] = {
    "recording": read_recording,
    "header": read_header,
    "parameters": read_sections,
    "metadata": lambda path: plain_json(path, "agent", hint="Look."),
    "frames": lambda path: refuse_damage(path.parent, {path.name: "0"}, [path.name], hint="Look."),
    "checkpoint": load_checkpoint,
    "track": load_track,
    "reference lap": lambda path: read_reference(path, action_table(5)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", READERS)
def test_nothing_waits_for_a_pipe(what: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, kind in ((pipe, "a pipe"), (Path(os.devnull), "a device")):
        with pytest.raises(UserError, match=f"it is {kind}, and a file is to be read"):
            READERS[what](path)


def test_inspect_tells_a_pipe_from_a_damaged_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.Replay.Gbx")
    found = inspect_file(tmp_path / "a.Replay.Gbx")
    assert found["error"].startswith("UnreadableFileError: ")
    assert found["error"].endswith("it is a pipe, and a file is to be read")
    read, write = os.pipe()
    assert "it is a pipe" in inspect_file(f"/dev/fd/{read}")["error"]
    os.close(read)
    os.close(write)
