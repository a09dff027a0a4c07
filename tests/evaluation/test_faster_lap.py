"""An agent's lap becomes the reference where it is faster, and is refused by name where it cannot be."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rulka.actions import FORWARD, action_table
from rulka.cli import main
from rulka.evaluation import faster_lap
from rulka.evaluation.contest import Driver
from rulka.evaluation.faster_lap import NoFasterLapError, take_over
from rulka.folders import RACES
from rulka.params import read_params
from rulka.reference.lap import LAPS_DIR, load_reference, read_reference, reference_path, store_reference
from rulka.reference.search import find_reference
from rulka.tracks.campaign import campaign_track
from tests.tasks.test_evaluate import save_driver

ROOT = Path(__file__).parents[2]
PARAMS = read_params(ROOT / "params.yaml")
TABLE = action_table(PARAMS.actions.ticks_per_action)
TRACK = campaign_track("copper-oval")


class Replay:
    """Drives given laps, one after the other."""

    def __init__(self, *laps: Sequence[int]) -> None:
        self._actions = iter([action for lap in laps for action in lap])

    def __call__(self, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
        return np.array([next(self._actions)])


@pytest.fixture
def fast() -> list[int]:
    """The lap that is shipped; it takes some milliseconds more or less where the last bits of sums differ."""
    return read_reference(LAPS_DIR / "copper-oval.txt", TABLE).actions.tolist()


@pytest.fixture
def slow(tmp_path: Path) -> list[int]:
    """A lap of a short search, which is the reference of the dataset in `tmp_path`."""
    lap = find_reference(TRACK, PARAMS.simulator, TABLE, 1, 1)
    assert lap is not None
    store_reference(lap, TABLE, reference_path(tmp_path, TRACK.uid))
    return lap.actions.tolist()


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run(policy: Replay) -> list[str]:
        monkeypatch.setattr(faster_lap, "agent_driver", lambda *_: Driver("agent", "Agent (PPO)", policy))
        said: list[str] = []
        take_over("copper-oval", tmp_path / "agent", PARAMS, tmp_path, tmp_path / "out.txt", said.append)
        return said

    return run


def test_a_faster_lap_is_taken_over(drive, fast, slow, tmp_path: Path):
    said = drive(Replay(fast, fast))
    lap = load_reference(tmp_path / "out.txt", TRACK, PARAMS.simulator, TABLE)
    np.testing.assert_array_equal(lap.actions, fast)
    assert lap.driver == "Agent (PPO)"
    assert f"author {lap.time_ms / 1000:.3f} s" in said[0]
    assert "driven by Agent (PPO)" in said[0]


def test_the_command_takes_it_over(fast, slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Run in a project whose dataset holds the slow lap."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    there = reference_path(tmp_path / RACES, TRACK.uid)
    there.parent.mkdir(parents=True)
    reference_path(tmp_path, TRACK.uid).rename(there)
    save_driver(tmp_path / "data" / "agent", "agent", "ppo", FORWARD)
    policy = Replay(fast, fast)
    monkeypatch.setattr(faster_lap, "agent_driver", lambda *_: Driver("agent", "Agent (PPO)", policy))
    monkeypatch.setattr(
        "sys.argv", ["rulka", "track", "reference", "copper-oval", "--agent", "latest", "--out", "out.txt"]
    )
    monkeypatch.chdir(tmp_path)
    main()
    assert "written to out.txt" in capsys.readouterr().out
    assert load_reference(tmp_path / "out.txt", TRACK, PARAMS.simulator, TABLE).driver == "Agent (PPO)"


@pytest.mark.parametrize("option", ["--seed", "--searches", "--budget"])
def test_what_is_for_a_search_does_not_go_with_an_agent(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["rulka", "track", "reference", "copper-oval", "--agent", "data/agent", option, "1"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "an agent drives the lap and nothing is searched" in capsys.readouterr().err


def test_a_lap_that_is_no_faster_changes_nothing(drive, slow, tmp_path: Path):
    with pytest.raises(NoFasterLapError, match=r"drove \d+ ms on .*, and the reference lap \d+ ms"):
        drive(Replay(slow, slow))
    assert not (tmp_path / "out.txt").exists()


def test_a_lap_that_is_not_driven_again_is_refused(drive, fast, slow, tmp_path: Path):
    with pytest.raises(NoFasterLapError, match="not the same lap again"):
        drive(Replay(fast, slow))
    assert not (tmp_path / "out.txt").exists()


def test_a_race_that_does_not_finish_is_refused(drive, slow):
    with pytest.raises(NoFasterLapError, match="cannot be a reference: it stood still"):
        drive(Replay([3] * 2000))  # neither gas nor brake
