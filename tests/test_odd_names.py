"""Names that nobody expects: a fuzz, of few names in the fast tier and of many in the slow one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rulka.cli.recordings import quarantine
from rulka.datasets.from_recordings import find_recordings
from rulka.datasets.params import RaceParams
from rulka.disk import disk_error_of
from rulka.errors import UserError
from rulka.stage import output_folder
from tasks.races import _read
from tests.recordings import forge

LETTERS = [*" []*?{}'\"\\\\$&;|<>~#%!^=+,:()-_.aB9\t\n\r\x1b\x7fäß漢\u202e", "\N{GRINNING FACE}", "e\u0301"]
MOST_BYTES = 230
"""Of 255: what is written lies beside its place under a longer name."""
HOW_MANY = pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.slow)])


def odd_names(count: int) -> list[str]:
    rng, names = np.random.default_rng(count), set[str]()
    while len(names) < count:
        name = "".join(rng.choice(LETTERS, size=rng.integers(1, 300 if rng.random() < 0.2 else 12)))
        name = name.encode()[:MOST_BYTES].decode(errors="ignore")
        names |= {name} - {"", ".", ".."}
    return sorted(names)


@HOW_MANY
def test_recordings_of_any_name_are_told_of(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of these makes a track; the reasons go through a file, and come back."""
    monkeypatch.chdir(tmp_path)
    names = [f"{folder}/{name}.GBX" for folder, name in zip(odd_names(count), odd_names(count)[::-1], strict=True)]
    for name in names:
        path = Path("recordings") / name
        path.parent.mkdir(parents=True)
        path.write_bytes(forge.recording_file())
    Path("recordings/empty.gbx").touch()
    Path("runs").mkdir()
    files = find_recordings(Path("recordings"))
    assert sorted(path.relative_to("recordings").as_posix() for path in files) == sorted([*names, "empty.gbx"])
    with pytest.raises(UserError, match="none of the recordings can be used"):
        _read(Path("recordings"), files, RaceParams(), lambda: None)
    quarantine(as_json=True)
    told = json.loads(capsys.readouterr().out)
    one_line = [name.replace("\n", r"\n") for name in names]
    assert sorted(item["file"] for item in told) == sorted([*one_line, "empty.gbx"])


def test_a_name_that_is_too_long_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long") as refused, output_folder(tmp_path / ("x" * 300)):
        pass
    assert str(disk_error_of(refused.value)).endswith("xxx.new: File name too long")
