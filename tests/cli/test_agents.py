"""Promoted agents and nights are put under DVC."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import call


def test_nights_go_to_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand and in the flow alike, which calls this command."""

    def race_night(*_: Any, **__: Any) -> Any:
        for path in ("data/nights/history.csv", "data/agents/promotions.jsonl"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("{}\n")
        return SimpleNamespace(to_json=dict, describe=str)

    monkeypatch.setattr("rulka.registry.nights.race_night", race_night)
    monkeypatch.setattr("rulka.params.read_params", lambda: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))

    assert call("night") == 0
    assert "there is no .dvc here, so that data/nights and data/agents has no versions" in capsys.readouterr().err
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    assert call("night --json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {}, "what the flow reads"
    assert "`git add data/agents.dvc data/nights.dvc && git commit` keeps this version" in said.err
    assert Path("data/agents.dvc").is_file()
    assert Path("data/nights.dvc").is_file()
    Path("dvc.yaml").write_text("stages: {}}")
    assert call("night --date 2026-11-23") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the night of 2026-11-23 is noted, but DVC has not taken in data/nights and ")
    assert "`dvc add data/nights data/agents`." in said
