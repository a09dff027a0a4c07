"""What is killed, cut off or damaged between Prefect, DVC and a stage: `docs/operations.md` has the table.

Trainings, their collectors and learners: `tests/runtime/test_fault_matrix.py`.
Real stages: `tests/test_stage_in_dvc.py`.
"""

from pathlib import Path

import pytest

from flows.dvc import Outcome, reproduce_stage
from flows.process import CommandError
from tests.flows.conftest import change_command

KILL = "{ test -e killed || { touch killed; kill -9 %s; sleep 1; }; }"
"""Kills once, by the shell's word for a process: itself or its parent, which is DVC."""
STEPS = ["mkdir -p data/races data/frames", "echo hal > data/frames/x", "cp data/races/x data/frames/x"]


def reproduced(stage: str) -> Outcome:
    return reproduce_stage(stage, force=False, say=lambda _: None, timeout_s=100.0)


@pytest.mark.parametrize("moment", ["before it writes", "half-written", "before DVC records it"])
@pytest.mark.parametrize("killed", ["stage", "DVC"])
def test_a_stage_or_dvc_killed_at_any_moment_is_run_again(toy_project: Path, killed: str, moment: str) -> None:
    assert reproduced("races") is Outcome.RAN
    at = ["before it writes", "half-written", "before DVC records it"].index(moment) + 1
    kill = KILL % ("$$" if killed == "stage" else "$PPID")
    change_command("capture", " && ".join([*STEPS[:at], kill, *STEPS[at:]]))
    with pytest.raises(CommandError):
        reproduced("capture")
    assert Path("killed").exists(), "or nothing was tested"
    assert Path("data/races/x").read_text() == "1\n"
    assert reproduced("capture") is Outcome.RAN
    assert Path("data/frames/x").read_text() == "1\n"
    assert reproduced("capture") is Outcome.UNCHANGED


def test_a_damaged_entry_of_dvcs_cache_is_not_taken(toy_project: Path) -> None:
    """The output is lost, and what the cache has of it was overwritten: it is made again."""
    reproduced("races")
    reproduced("capture")
    Path("data/frames/x").unlink()
    entries = [file for file in Path(".dvc/cache/files").rglob("*") if file.is_file()]
    damaged = [file for file in entries if file.read_bytes() == b"1\n"]
    assert damaged
    for file in damaged:
        file.chmod(0o644)
        file.write_bytes(b"damaged\n")
    assert reproduced("capture") is Outcome.RAN
    assert Path("data/frames/x").read_text() == "1\n"


def test_a_cut_off_output_is_brought_back(toy_project: Path) -> None:
    reproduced("races")
    reproduced("capture")
    Path("data/frames/x").write_text("")
    assert reproduced("capture") is Outcome.RESTORED
    assert Path("data/frames/x").read_text() == "1\n"
