import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from pathlib import Path

import pytest

from rulka import cli
from rulka.cli import COMMANDS, NOUNS
from rulka.datasets.formats.races import QuarantinedFile, RaceDataset, write_races
from rulka.recordings.errors import RecordingError
from rulka.recordings.reader import read_recording
from tests.cli.conftest import call
from tests.conftest import straight_track
from tests.recordings import forge

ROOT = Path(__file__).parents[2]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    alone = {name for name in COMMANDS if " " not in name}
    assert call("--help") == 0
    assert words_of_list(capsys.readouterr().out) == alone | set(NOUNS)
    assert len(alone | set(NOUNS)) == 21
    for noun in NOUNS:
        assert call(f"{noun} --help") == 0
        verbs = {name.removeprefix(f"{noun} ") for name in COMMANDS if name.startswith(f"{noun} ")}
        assert words_of_list(capsys.readouterr().out) == verbs


def test_help_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("preset --help") == 0
    said = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert ", ".join(sorted(path.stem for path in (ROOT / "presets").glob("*.yaml"))) in said


def words_of_list(shown: str) -> set[str]:
    """Returns the commands that help lists."""
    return set(re.findall("• ([a-z-]+) ", shown))


def test_examples_in_help_are_understood(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Stubs of the same signature replace the commands, so that nothing runs."""
    called: list[Callable[..., None]] = []
    for name, function in COMMANDS.items():
        monkeypatch.setitem(COMMANDS, name, wraps(function)(lambda *_, real=function, **__: called.append(real)))
    monkeypatch.setenv("COLUMNS", "200")
    for name, replaced in COMMANDS.items():
        assert call(f"{name} --help") == 0
        [example] = re.findall(r"^Example: `rulka ([^`&]+?)(?: &&.*)?`$", capsys.readouterr().out, re.MULTILINE)
        assert call(example) == 0, example
        assert called.pop() is unwrap(replaced)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, rulka.cli; print([name for name in ('torch', 'prefect', 'numba') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_an_unknown_command_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, said in (("nosuch", "'nosuch'\n"), ("evalute", "'evalute'; did you mean 'evaluate'?\n")):
        assert call(f"{typed} --json") == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: there is no command {said}  The commands are new, up, dashboard")
    for typed in ("track", "track --json", "track shwo x"):
        assert call(typed) == 2
        said = capsys.readouterr().err
        assert "; did you mean 'track " in said
        assert "\n  The commands are track list, track show, track reference; " in said
    assert call("compare --json") == 2
    assert "'compare'; did you mean 'agents compare'?\n" in capsys.readouterr().err
    assert call("") == 2
    assert "subcommand" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_traceback() -> None:
    """As in `rulka track list | head -1`."""
    command = [sys.executable, "-m", "rulka.cli", "track", "list"]
    reader, writer = os.pipe()
    os.close(reader)  # before the command can write anything
    answer = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (1, b"")


def test_inspect_tells_of_files_folders_and_what_is_wrong_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("recordings inspect") == 1
    assert capsys.readouterr().err.startswith("error: name a recording, or a folder of them")
    assert call(f"recordings inspect {tmp_path}") == 1
    assert capsys.readouterr().err == f"error: no recording is in {tmp_path}\n"
    broken = tmp_path / "a.Replay.Gbx"
    broken.write_bytes(b"not a recording")
    assert call(f"recordings inspect {broken} --json") == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["error"]
    assert call(f"recordings inspect {tmp_path} --json") == 1
    assert json.loads(capsys.readouterr().out) == [summary]
    with pytest.raises(RecordingError) as expected:
        read_recording(broken)
    for shown in (broken, tmp_path):
        assert call(f"recordings inspect {shown}") == 1
        assert expected.value.hint in capsys.readouterr().out
    assert call(f"recordings inspect {tmp_path / 'nosuch.Gbx'}") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["file", "error", "hint"], "of a file that is not there no more"
    assert "nosuch.Gbx cannot be read" in lines[1]
    (tmp_path / "b.gbx.gbx").write_bytes(forge.recording_file())
    assert call(f"recordings inspect {tmp_path}") == 0, "one file is good"
    said = capsys.readouterr().out
    assert re.search(r"^ *map +car +files +usable +fastest", said)
    assert re.search(r"^ *Hand-made +StadiumCar +1 +0 *$", said, re.MULTILINE)
    assert f"a.Replay.Gbx: {summary['error'].removeprefix('NotGbxError: ')}. {summary['hint']}" in said
    assert "min" not in said, "nothing can be learned from it"
    assert "not read" not in said
    for name in ("replays.ZIP", "b.Gbx.txt", os.fsdecode(b"\xff.txt")):
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "pipe.Gbx")
    assert call(f"recordings inspect {tmp_path}") == 0
    said = capsys.readouterr().out
    for name, to_do in {
        "replays.ZIP": "unpack",
        r"\xff.txt": "rename",
        "b.Gbx.txt": "rename",
        "pipe.Gbx": "remove",
    }.items():
        assert f"not read: {tmp_path}/{name}: {to_do} it" in said
    (tmp_path / "b.gbx.gbx").unlink()
    broken.unlink()
    assert call(f"recordings inspect {tmp_path}") == 1
    assert "replays.ZIP: unpack it" in capsys.readouterr().err

    def refused(folder: str) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", refused)
    assert call(f"recordings inspect {tmp_path}") == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} cannot be read: Permission denied\n  Allow reading")


def test_numbers_that_no_port_has_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    for command, ports in {
        "game serve": ("-1", "65536", "99999999999"),
        "game check": ("-1", "0", "65536"),
        "watch run": ("-1", "65536"),
    }.items():
        for port in ports:
            assert call(f"{command} --port {port}") == 1
            assert f"error: there is no port {port}\n  Name one from 1 to 65535" in capsys.readouterr().err


def test_outside_the_project_commands_say_where_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("preset list", "up"):
        assert call(command) == 1
        assert "Run this from the root of the project." in capsys.readouterr().err


def test_ctrl_c_ends_the_command_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "up", interrupted)
    assert call("up") == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_quarantine_tells_files_by_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = (
        QuarantinedFile("b.Gbx", "NoInputsError: it holds no inputs", "Get it from the player."),
        QuarantinedFile("a.Gbx", "TruncatedError: it ends early", ""),
        QuarantinedFile("c.Gbx", "NoInputsError: it holds none either", ""),
    )
    (tmp_path / "races").mkdir()
    write_races(tmp_path / "races", RaceDataset((), straight_track(), files))
    assert call(f"recordings quarantine --races {tmp_path / 'races'}") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NoInputsError: 2",
        "  b.Gbx: it holds no inputs. Get it from the player.",
        "  c.Gbx: it holds none either",
        "TruncatedError: 1",
        "  a.Gbx: it ends early",
        "3 not used",
    ]
    assert call(f"recordings quarantine --races {tmp_path / 'none'}") == 1
    assert "dvc repro races" in capsys.readouterr().err


def test_impossible_values_are_listed_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("iqn: {num_quantiles: 7, mini_race_ms: 7000}\n")
    assert call("params list iqn --changed") == 1
    said = capsys.readouterr()
    assert re.findall(r"^iqn\S* = .*", said.out, re.MULTILINE) == ["iqn.num_quantiles = 7 (default 8)"]
    assert said.err.startswith(
        "error: params.yaml is wrong:\n  iqn: num_quantiles and num_quantiles_acting must be even"
    )
    Path("params.yaml").write_text("{}\n")
    assert call("params list exploration --json") == 0
    assert {each["key"] for each in json.loads(capsys.readouterr().out)} >= {"train.seed"}
