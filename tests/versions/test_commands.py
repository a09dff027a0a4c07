"""What the commands print; what they do has tests of its own."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rulka.cli import main
from tests.versions.conftest import commit, recorded, write


def rulka(arguments: str) -> int:
    """Runs a command in this process; returns its exit code."""
    before, sys.argv = sys.argv, ["rulka", *arguments.split()]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.mark.usefixtures("project")
def test_the_remote_from_nothing_to_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert rulka("remote push") == 1
    assert capsys.readouterr().err.startswith("error: no remote is set in .dvc/config\n  `rulka remote init` makes")
    assert rulka("remote init") == 0
    said = capsys.readouterr().out
    assert said.startswith("the remote is ")
    assert "`git add .dvc/config && git commit`" in said
    assert rulka("remote init --json") == 0
    assert json.loads(capsys.readouterr().out)["is_new"] is False
    recorded("1")
    assert rulka("remote push") == 0
    assert capsys.readouterr().out.startswith("4 files sent to ")
    assert rulka("remote push --json") == 0
    assert json.loads(capsys.readouterr().out)["num_files"] == 0
    assert rulka("remote pull") == 0
    assert capsys.readouterr().out == "0 files fetched; everything was here\n"
    assert rulka("remote pull --json") == 0
    assert json.loads(capsys.readouterr().out) == {"num_files": 0, "changed": [], "unknown": []}
    assert rulka("remote pull ../x") == 1
    assert capsys.readouterr().err == "error: PLACE and --local are for `rulka remote init`\n"


@pytest.mark.usefixtures("project")
def test_recordings_say_what_to_commit(capsys: pytest.CaptureFixture[str]) -> None:
    write("../a.Gbx", "no Gbx")
    assert rulka("recordings add ../a.Gbx") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 recordings are under DVC, 1 of them new in data/recordings"
    assert said[1].startswith("note: cannot be used: ../a.Gbx: NotGbxError")
    assert said[2].startswith("now: `git add data/")
    assert rulka("recordings add --json") == 0
    assert json.loads(capsys.readouterr().out)["num_files"] == 1
    commit("recordings")
    assert Path("data/recordings.dvc").is_file()


@pytest.mark.usefixtures("project")
def test_a_night_puts_what_it_keeps_under_dvc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand and in the flow alike, which calls this command."""

    def race_night(*_: Any, **__: Any) -> Any:
        write("data/nights/history.csv", "night\n")
        write("data/agents/promotions.jsonl", "{}\n")
        return SimpleNamespace(to_json=dict, describe=str)

    monkeypatch.setattr("rulka.registry.nights.race_night", race_night)
    monkeypatch.setattr("rulka.params.read_params", lambda: None)
    assert rulka("night --json") == 0
    said = capsys.readouterr()
    assert said.out == "{}\n", "what the flow reads"
    assert "`git add data/agents.dvc data/nights.dvc && git commit` keeps this version" in said.err
    write("dvc.yaml", "stages: {}}")
    assert rulka("night --date 2026-11-23") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the night of 2026-11-23 is noted, but DVC has not taken in data/nights and ")
    assert "Then `dvc add data/nights data/agents`." in said
