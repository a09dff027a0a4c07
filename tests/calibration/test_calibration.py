"""Calibration against races whose physics are known, and on real recordings where they are there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.actions import action_table
from rulka.calibration import command
from rulka.calibration.command import calibrate, describe
from rulka.calibration.fit import FITTED, FitResult, fit, to_physics, to_vector
from rulka.calibration.gather import CalibrationError, gather
from rulka.calibration.report import errors, table
from rulka.calibration.windows import HORIZONS_MS, Windows, cut_windows
from rulka.datasets.races import Race
from rulka.params import PARAMS_FILE, read_params, read_sections
from rulka.presets import apply_preset
from rulka.race_settings import RaceSettings
from rulka.simulator.demonstrations import record_demonstrations
from rulka.simulator.params import PhysicsParams
from rulka.tracks.generate import generate_track
from rulka.tracks.track import DRIVEN_SOURCE, Track
from tasks.races import race_of_driver
from tests.recordings.race_writer import write_race


@pytest.fixture(scope="module")
def physics() -> PhysicsParams:
    return read_params().simulator.physics


def races_on(track: Track) -> list[Race]:
    """Races of six of the built-in drivers, as far as they were finished."""
    params = read_params()
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    driven = record_demonstrations(track, settings, params.races.driver, 6, 1)
    return [race_of_driver(race, track.uid, action_table(5)) for race in driven if race.is_finished]


@pytest.fixture(scope="module")
def windows() -> Windows:
    """Windows of simulated races, sampled every 100 ms as recordings are."""
    track = generate_track(2, 600.0, 16.0, 0.06, 150.0)
    return cut_windows(replace(track, source=DRIVEN_SOURCE), [_every_second_sample(race) for race in races_on(track)])


def _every_second_sample(race: Race) -> Race:
    return replace(race, state_time_ms=race.state_time_ms[::2], state=race.state[::2])


def test_true_physics_drive_the_recorded_path(windows: Windows, physics: PhysicsParams) -> None:
    """What a row does not tell (springs, the share of a gear change) costs decimetres, not metres."""
    position_m, speed_mps = errors(windows, physics)
    assert len(windows) > 200
    assert np.nanmedian(position_m, axis=0)[0] < 0.1
    assert np.nanmedian(position_m, axis=0)[1] < 0.4
    assert np.nanmedian(speed_mps, axis=0)[0] < 0.2


def test_wrong_physics_and_constant_velocity_are_worse(windows: Windows, physics: PhysicsParams) -> None:
    weak = physics.model_copy(update={"push_mps2": ((0.0, 5.0),)})
    true, wrong, constant = (np.nanmedian(errors(windows, model)[0], axis=0) for model in (physics, weak, None))
    assert (true < 0.5 * wrong).all()
    assert (wrong < constant).all()
    rows = table([windows], {"fitted": physics})
    assert rows[0]["windows"] == len(windows) == sum(row["windows"] for row in rows if row["kind"] == "surface")
    assert all(len(row["fitted"]["position_m"]) == len(HORIZONS_MS) for row in rows)


def test_a_disturbed_parameter_is_found_again(windows: Windows, physics: PhysicsParams) -> None:
    again = to_physics(physics, to_vector(physics))
    for name in FITTED:
        np.testing.assert_allclose(getattr(again, name), getattr(physics, name), rtol=1e-3)
    disturbed = physics.model_copy(update={"yaw_response_s": 1.5 * physics.yaw_response_s})
    result = fit([windows], disturbed, 6, lambda: None)
    assert result.cost[1] < 0.5 * result.cost[0]
    assert result.physics.yaw_response_s == pytest.approx(physics.yaw_response_s, rel=0.15)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four simulated races, written as the recordings that the game would write."""
    folder = tmp_path_factory.mktemp("recordings")
    for number, race in enumerate(races_on(generate_track(3, 250.0, 16.0, 0.06, 60.0))[:4]):
        write_race(folder / f"{number}.Replay.Gbx", race)
    (folder / "broken.Replay.Gbx").write_bytes(b"not a recording")
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the project's parameters; a fit there takes one step."""
    for name in ("params.yaml", "presets"):
        copy = shutil.copytree if Path(name).is_dir() else shutil.copy
        copy(name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "MAX_EVALUATIONS", 1)
    return tmp_path


def test_the_whole_command_leaves_its_report(project: Path, recordings: Path) -> None:
    before = PARAMS_FILE.read_bytes()
    found = calibrate(recordings, holdout=0.4, out=Path("report"), write=False)
    assert "report  report/report.md\nnot written: add --write" in describe(found)
    page = (project / "report" / "report.md").read_text(encoding="utf-8")
    assert f"`rulka calibrate {recordings.name} --holdout 0.4 --out report`, 20" in page
    assert "Not used: 1 files" in page
    numbers = json.loads((project / "report" / "calibration.json").read_text(encoding="utf-8"))
    assert sum(entry["is_held_out"] for entry in numbers["recordings"]) >= 1
    assert {path.name for path in (project / "report").iterdir()} == {"report.md", "calibration.json"}
    assert PARAMS_FILE.read_bytes() == before
    assert json.loads(json.dumps(found)) == numbers | {"report": "report/report.md", "is_written": False}


@pytest.mark.parametrize("preset", [None, "chunks"])
def test_the_fitted_numbers_get_into_parameters_of_any_layout(
    project: Path, recordings: Path, monkeypatch: pytest.MonkeyPatch, preset: str | None
) -> None:
    """A preset writes every list in a layout of its own. All but the fitted numbers stays as it is."""
    if preset:
        apply_preset(preset)
    before, comments = read_params(), _comments()
    fitted = before.simulator.physics.model_copy(update={"grip_mps2": 12.5, "turn_radius_m": ((0.0, 9.0), (40.0, 8.0))})
    monkeypatch.setattr(command, "fit", lambda *_: FitResult(fitted, (2.0, 1.0), 10, 1))
    found = calibrate(recordings, holdout=0.4, out=Path("report"), write=True)
    assert "written to params.yaml" in describe(found)
    assert found["physics"]["grip_mps2"] == 12.5
    assert read_params().simulator.physics == fitted
    simulator = before.simulator.model_copy(update={"physics": fitted})
    assert read_params() == before.model_copy(update={"simulator": simulator})
    assert _comments() == comments
    assert set(read_sections(PARAMS_FILE)["simulator"]["physics"]) == set(FITTED)
    assert "--write`" in (project / "report" / "report.md").read_text(encoding="utf-8")


def _comments() -> list[str]:
    return [line.partition("#")[2] for line in PARAMS_FILE.read_text(encoding="utf-8").splitlines() if "#" in line]


def test_what_cannot_be_calibrated_with_is_named(tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "nosuch", r"there is no folder .*nosuch"), (tmp_path, "no Gbx file")):
        with pytest.raises(CalibrationError, match=message):
            calibrate(folder, holdout=0.3, out=tmp_path / "out", write=False)
    for holdout in (0.0, 1.0, -0.5):
        with pytest.raises(CalibrationError, match="between 0 and 1"):
            gather(tmp_path, holdout, lambda: None)


def test_real_recordings_agree_better_than_constant_velocity(corpus: Path, physics: PhysicsParams) -> None:
    """The shipped physics, on recordings that they were not fitted to: the claim of docs/calibration/report.md."""
    material = gather(corpus, 0.34, lambda: None)
    held = material.held_out
    assert sum(drive.is_held_out for drive in material.drives) == 2
    assert {drive.race.map_uid for drive in material.drives if "B13" in drive.race.file} != set()
    ours = np.concatenate([errors(part, physics)[0] for part in held])
    constant = np.concatenate([errors(part, None)[0] for part in held])
    assert (np.nanmedian(ours, axis=0) < 0.2 * np.nanmedian(constant, axis=0)).all()
    assert np.nanmedian(ours, axis=0)[0] < 0.75
