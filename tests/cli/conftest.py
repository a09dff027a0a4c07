"""A small project with the inputs of every command."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from rulka.calibration import command as calibration
from rulka.cli import main
from rulka.contracts.actions import FORWARD, action_table
from rulka.datasets.formats.races import RaceDataset, write_races
from rulka.params import read_params
from rulka.planner.demonstrations import record_demonstrations
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.generate import generate_track
from tasks.races import race_of_driver
from tests.conftest import write_synthetic_frames
from tests.exchange.conftest import MAP_UID, site
from tests.recordings.race_writer import write_race
from tests.tasks.test_evaluate import demonstration, save_driver, short_track

TESTS = Path(__file__).parents[1]
SMALL_VIDEO = {"num_races": 2, "video_width": 160, "video_height": 90, "video_fps": 2}


def call(arguments: str) -> int:
    """Runs a command in this process; returns its exit code."""
    before, sys.argv = sys.argv, ["rulka", *arguments.split()]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


__all__ = ["site"]
"""Re-exports the fixture of the fake exchange from the tests of `fetch`."""


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of simulated races, written as game recordings."""
    return write_recordings(tmp_path_factory.mktemp("recordings"), seed=3)


def write_recordings(folder: Path, seed: int) -> Path:
    """Writes finished races of up to four drivers on a short generated track; returns the folder."""
    folder.mkdir(exist_ok=True)
    params, table = read_params(TESTS.parent / "params.yaml"), action_table(5)
    track = generate_track(seed, 200.0, 16.0, 0.06, 60.0)
    driven = record_demonstrations(
        track,
        RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end),
        params.races.driver,
        4,
        1,
    )
    for number, race in enumerate(race_of_driver(race, track.uid, table) for race in driven if race.is_finished):
        write_race(folder / f"{number}.Replay.Gbx", race)
    return folder


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, recordings: Path) -> Path:
    """Template project; each test works on a copy."""
    made = tmp_path_factory.mktemp("made")
    (made / "data" / "races").mkdir(parents=True)
    for folder in ("out", "runs/train/a"):
        (made / folder).mkdir(parents=True)
    params = yaml.safe_load((TESTS.parent / "params.yaml").read_text(encoding="utf-8"))
    params["evaluate"] |= SMALL_VIDEO
    (made / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    shutil.copytree(TESTS.parent / "presets", made / "presets")
    shutil.copytree(recordings, made / "recordings")
    shutil.copytree(recordings, made / "two-maps" / "one")
    write_recordings(made / "two-maps" / "other", seed=4)
    races = tuple(demonstration(number, speed) for number, speed in enumerate((6.0, 8.0)))
    write_races(made / "data" / "races", RaceDataset(races, short_track(), ()))
    with chdir(TESTS.parent):
        save_driver(made / "data" / "agent", "agent", "ppo", FORWARD)
    write_synthetic_frames(made / "data" / "frames", num_races=3, num_frames=10)
    (made / "runs" / "train" / "a" / "metrics.jsonl").write_text(json.dumps({"env_steps": 1}) + "\n")
    return made


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path, site) -> Path:
    """The current folder: parameters, presets, recordings, races, frames, an agent, a training run."""
    project = shutil.copytree(made, tmp_path / "project")
    site.add_map(7, MAP_UID)
    site.add_replay(7, 1, 1)
    monkeypatch.chdir(project)
    monkeypatch.setenv("RULKA_EXCHANGE_URL", site.url)
    monkeypatch.setattr(calibration, "MAX_EVALUATIONS", 1)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    return project
