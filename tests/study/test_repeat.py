"""Doing a stage again, and saying what came out otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rulka.machine.errors import UserError
from rulka.study.repeat import repeat_stage
from rulka.training.agent_run import describe_divergence
from tests.cli.conftest import call
from tests.study.conftest import write_project

SAME = """
import json
from pathlib import Path
Path("data/encoder").mkdir()
Path("data/encoder/metrics.json").write_text("{}")
meta = {"provenance": {"commit": str(Path.cwd()), "is_dirty": None, "training": {"marks": [[0, 5], [64, 7]]}}}
Path("data/encoder/meta.json").write_text(json.dumps(meta))
"""
FAILING = """
from pathlib import Path
if "runs/repeated" in str(Path.cwd()):
    raise SystemExit("error: it fails")
Path("data/agent_init").mkdir()
Path("data/agent_init/file").touch()
"""


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose stages were done, in the project itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rulka.study.work.POLL_INTERVAL_S", 0.02)
    write_project(
        {
            "pretrain": (SAME, [], "data/encoder", ["pretrain"]),
            "transfer": (FAILING, ["data/encoder"], "data/agent_init", ["transfer"]),
        }
    )
    for stage in ("pretrain", "transfer"):
        subprocess.run([sys.executable, "-m", f"tasks.{stage}"], check=True)
    return Path("data/encoder")


def test_a_stage_that_repeats_is_the_same_in_another_folder(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commit and its state say where it was made, and count for nothing; a second try begins anew."""
    for _ in range(2):
        assert call("doctor --repeat pretrain") == 0
        assert f"{encoder} repeats: 2 files are the same" in capsys.readouterr().out


def test_what_differs_is_named_with_when_the_weights_parted(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = json.loads((encoder / "meta.json").read_text())
    meta["provenance"]["training"]["marks"][1] = [64, 8]
    (encoder / "meta.json").write_text(json.dumps(meta))
    (encoder / "metrics.json").write_text("{ }")
    (encoder / "more").touch()
    assert call("doctor --repeat pretrain --json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "repeats": False,
        "num_files": 3,
        "differences": [
            "meta.json: other content; the weights differ at 64 environment steps; at 0 they were the same",
            "metrics.json: other content",
            "more: runs/repeated/pretrain/data/encoder/more is not there",
        ],
    }


@pytest.mark.usefixtures("encoder")
def test_what_cannot_be_repeated_is_said() -> None:
    with pytest.raises(UserError, match=r"no stage 'pretrian'; did you mean pretrain\?"):
        repeat_stage("pretrian", print)
    with pytest.raises(UserError, match="transfer did not come to an end"):
        repeat_stage("transfer", print)


def test_weights_part_where_a_mark_differs_or_is_missing() -> None:
    marks = [[0, 5], [64, 7], [128, 9]]
    assert describe_divergence(marks, marks) == ""
    assert (
        describe_divergence(marks, marks[:2]) == "the weights differ at 128 environment steps; at 64 they were the same"
    )
    assert describe_divergence([[0, 6]], marks) == "the weights differ at 0 environment steps; at 0 they were the same"
