import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rulka import cli, doctor
from rulka.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["rulka", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_help_is_quick_and_names_every_command() -> None:
    started_s = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-m", "rulka.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert time.monotonic() - started_s < 3
    assert all(f"• {name} " in answer.stdout for name in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, rulka.cli; print([name for name in ('torch', 'prefect', 'numba') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_an_unknown_stage_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert call(monkeypatch, "run", "rases") == 1
    assert "error: no stage is called rases; the stages are races, capture" in capsys.readouterr().err


def test_a_folder_without_recordings_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "inspect", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"error: no Gbx file is in {tmp_path}\n"


def test_a_broken_recording_is_shown_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.Replay.Gbx").write_bytes(b"not a recording")
    assert call(monkeypatch, "inspect", str(tmp_path / "a.Replay.Gbx"), "--json") == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["error"]
    assert call(monkeypatch, "inspect", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == [summary]


def test_benchmarks_are_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "speed.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "bench", "speed", "--json") == 0
    assert capfd.readouterr().out == "['--json']\n"
    assert call(monkeypatch, "bench", "sped") == 1
    assert "error: no benchmark is called sped; benchmarks/ holds ['speed']" in capfd.readouterr().err


def test_doctor_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    good = {finding.name: finding for finding in doctor.examine("http://127.0.0.1:1/api")}
    assert good["python"].is_fine
    assert good["prefect"].is_fine
    assert good["params.yaml"].is_fine
    monkeypatch.chdir(tmp_path)
    (tmp_path / "constraints.txt").write_text("prefect==0.1\n")
    bad = {finding.name: finding for finding in doctor.examine("http://127.0.0.1:1/api")}
    assert "instead of 0.1; run `make setup`" in bad["prefect"].text
    assert not bad["params.yaml"].is_fine
    assert not bad["versioning"].is_fine


def test_ctrl_c_ends_the_command_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "up", interrupted)
    assert call(monkeypatch, "up") == 130
    assert capsys.readouterr().err == "interrupted\n"
