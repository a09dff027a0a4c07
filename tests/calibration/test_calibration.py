"""Calibration against races whose physics are known, and on real recordings where they are there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.calibration import command
from rulka.calibration import fit as fitting
from rulka.calibration import gather as gathering
from rulka.calibration.command import calibrate, describe
from rulka.calibration.fit import FITTED, FitResult, fit, to_physics, to_vector
from rulka.calibration.follow import follow
from rulka.calibration.gather import gather
from rulka.calibration.report import HELD_OUT, LEFT_OUT, errors, table
from rulka.calibration.windows import HORIZONS_MS, REGIMES, Windows, cut_windows
from rulka.contracts.actions import action_table
from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.datasets.formats.races import Race
from rulka.machine.errors import UserError
from rulka.params import PARAMS_FILE, read_params, read_sections
from rulka.params.presets import apply_preset
from rulka.planner.demonstrations import record_demonstrations
from rulka.recordings.model import Ghost
from rulka.simulator.params import PhysicsParams
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.from_paths import DrivenPath, path_from_rows
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
    driver = params.races.driver.model_copy(update={"step_m": 0.3})  # no window then lies between two regimes
    driven = record_demonstrations(track, settings, driver, 6, 1)
    return [race_of_driver(race, track.uid, action_table(5)) for race in driven if race.is_finished]


@pytest.fixture(scope="module")
def driven() -> tuple[Track, list[Race]]:
    """Races sampled every 50 ms, as the 2020 game and some tools do."""
    track = replace(generate_track(2, 600.0, 16.0, 0.06, 150.0), source=DRIVEN_SOURCE)
    return track, races_on(track)


def windows_of(track: Track, races: list[Race]) -> Windows:
    return cut_windows(track, races, [path_from_rows(r.state_time_ms, r.state, r.checkpoint_times_ms) for r in races])


@pytest.fixture(scope="module")
def windows(driven: tuple[Track, list[Race]]) -> Windows:
    """Windows of simulated races, sampled every 100 ms as recordings are."""
    track, races = driven
    return windows_of(track, [_every_second_sample(race) for race in races])


def _every_second_sample(race: Race) -> Race:
    return replace(race, state_time_ms=race.state_time_ms[::2], state=race.state[::2])


def medians(windows: Windows, physics: PhysicsParams | None) -> np.ndarray:
    return np.nanmedian(errors([(windows, physics)]).position_m, axis=0)


def test_windows_are_the_same_whatever_the_sample_period(driven: tuple[Track, list[Race]], windows: Windows) -> None:
    often = windows_of(*driven)
    np.testing.assert_array_equal(often.regime, windows.regime)
    np.testing.assert_allclose(often.moved_m, windows.moved_m, atol=1e-3)
    np.testing.assert_allclose(often.along_m, windows.along_m, atol=1e-3)


def test_true_physics_drive_the_recorded_path(windows: Windows, physics: PhysicsParams) -> None:
    """What a row does not tell (springs, the share of a gear change) costs decimetres, not metres."""
    assert len(windows) > 200
    assert (medians(windows, physics)[:3] < [0.02, 0.1, 0.4]).all()
    assert np.nanmedian(errors([(windows, physics)]).yaw_rps[:, 0]) < 0.01


def test_wrong_physics_and_constant_velocity_are_worse(windows: Windows, physics: PhysicsParams) -> None:
    weak = physics.model_copy(update={"push_mps2": (5.0, 5.0, 5.0, 5.0)})
    true, wrong, constant = (medians(windows, model) for model in (physics, weak, None))
    assert (true < 0.5 * wrong).all()
    assert (wrong < constant).all()
    rows = table({LEFT_OUT: errors([(windows, physics)]), HELD_OUT: errors([(windows, None)])})
    assert rows[0][LEFT_OUT]["windows"] == len(windows)
    for kind in ("speed", "map"):
        assert sum(row[LEFT_OUT]["windows"] for row in rows if row["kind"] == kind) == len(windows)
    regimes = {row["name"]: row[LEFT_OUT] for row in rows if row["kind"] == "regime"}
    flat = regimes.pop("flat asphalt")["windows"]
    assert sum(row["windows"] for row in regimes.values()) == len(windows) >= flat > 0
    assert all(len(row[HELD_OUT]["position_m"]) == len(HORIZONS_MS) for row in rows)


def test_windows_know_what_kind_of_driving_they_are() -> None:
    """One race of each kind, of rows made by hand; all that is said of them is in the first second."""
    track = replace(generate_track(3, 250.0, 16.0, 0.06, 60.0), source=DRIVEN_SOURCE)

    def regime(**changes: object) -> str:
        time_ms = 100 * np.arange(40)
        state = np.zeros((40, NUM_CAR_FIELDS), np.float32)
        state[:, CAR["rotation"]] = np.eye(3).ravel()
        state[:, CAR["position"]][:, 2] = 10.0 + 3.0 * np.arange(40)
        state[:, CAR["velocity"]][:, 2] = 30.0
        state[:, CAR["has_contact"]], state[:, CAR["material"]] = 1.0, 16.0
        controls = np.tile(np.array([0.0, 1.0, 0.0], np.float32), (400, 1))
        for name, (first, last, value) in changes.items():
            if name in ("gas", "brake"):
                controls[10 * first : 10 * last, 1 if name == "gas" else 2] = value
            elif name == "speed":
                state[first:last, CAR["velocity"].stop - 1] = value
            elif name == "up":
                state[first:last, CAR["rotation"].start + 4] = value
            elif name != "turbo":
                state[first:last, CAR[name]] = value
        race = Race("r", "recording", "", "", "", 3900, True, (3900,), None, controls, time_ms, state)
        path = path_from_rows(time_ms, state, (3900,))
        if "turbo" in changes:
            path = replace(path, pads_ms=((300.0, 500.0),))
        return REGIMES[cut_windows(track, [race], [path]).regime[0]]

    assert regime() == "grip"
    assert regime(gas=(0, 8, 0.0)) == "gas off"
    assert regime(is_sliding=(3, 6, 1.0)) == "slide"
    assert regime(brake=(3, 6, 1.0), is_sliding=(3, 6, 1.0)) == "brake"
    assert regime(material=(2, 9, 6.0), brake=(3, 6, 1.0)) == "dirt"
    assert regime(material=(2, 9, 2.0)) == "grass"
    assert regime(turbo=(0, 0, 0.0), brake=(3, 6, 1.0)) == "turbo"
    assert regime(has_contact=(4, 7, 0.0)) == "landing"
    assert regime(has_contact=(4, 7, 0.0), up=(5, 9, 0.2)) == "loop"
    assert regime(has_contact=(0, 11, 0.0), up=(5, 9, 0.2)) == "air"
    assert regime(speed=(5, 9, 15.0)) == "walls"


def test_a_disturbed_parameter_is_found_again(
    windows: Windows, physics: PhysicsParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = to_physics(physics, to_vector(physics))
    for name in FITTED:
        np.testing.assert_allclose(getattr(again, name), getattr(physics, name), rtol=1e-3)
    disturbed = {name: getattr(physics, name) for name in FITTED} | {"yaw_per_s": 1.5 * physics.yaw_per_s}
    monkeypatch.setattr(fitting, "PRIORS", disturbed)
    result = fit([windows], physics, 6, lambda: None)
    assert result.cost[1] < 0.5 * result.cost[0]
    assert result.physics.yaw_per_s == pytest.approx(physics.yaw_per_s, rel=0.1)


def test_a_race_that_the_physics_can_drive_is_followed(physics: PhysicsParams) -> None:
    """Its own races: nearly on their path. A car that turns less is further from it."""
    track = replace(generate_track(2, 600.0, 16.0, 0.06, 150.0), source=DRIVEN_SOURCE)
    race = min(races_on(track), key=lambda race: race.race_time_ms)
    own = follow(track, race, physics)
    assert own.time_ms == pytest.approx(race.race_time_ms, rel=0.01)
    assert own.along_m >= own.length_m == track.length_m
    assert own.beside_m < 0.3
    assert own.beside_m < own.most_beside_m < 3.0
    curve = tuple((speed, 0.8 * rate) for speed, rate in physics.turn_rate_rps)
    other = follow(track, race, physics.model_copy(update={"turn_rate_rps": curve}))
    assert other.beside_m > own.beside_m
    stuck = follow(track, race, physics.model_copy(update={"push_mps2": (1.0, 1.0, 1.0, 1.0)}))
    assert stuck.time_ms is None
    assert stuck.along_m < 0.9 * stuck.length_m


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of simulated races on two maps, written as the recordings that the game would write."""
    folder = tmp_path_factory.mktemp("recordings")
    races = [race for seed in (3, 4) for race in races_on(generate_track(seed, 250.0, 16.0, 0.06, 60.0))[:3]]
    for number, race in enumerate(races):
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
    assert "| 1 | " in page.partition("## Not used")[2]
    assert f" of {len(numbers_of(project)['recordings'])} races finish within 1 %" in page
    numbers = numbers_of(project)
    assert set(numbers["refused"]) == {"broken.Replay.Gbx"}
    assert list(numbers["spread"]) == list(FITTED)
    assert len(numbers["folds"]) == 2
    assert all(set(fold) == set(FITTED) for fold in numbers["folds"].values())
    rows = page.partition("between maps |\n")[2].splitlines()
    assert [row.split("`")[1] for row in rows[1 : 1 + len(FITTED)]] == list(FITTED), "no gap tears the table apart"
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
    fitted = before.simulator.physics.model_copy(update={"axle_m": 1.25, "turn_rate_rps": ((0.0, 1.0), (40.0, 0.8))})
    monkeypatch.setattr(command, "fit", lambda *_: FitResult(fitted, (2.0, 1.0), 10, 1))
    found = calibrate(recordings, holdout=0.4, out=Path("report"), write=True)
    assert "written to params.yaml" in describe(found)
    assert found["physics"]["axle_m"] == 1.25
    assert read_params().simulator.physics == fitted
    simulator = before.simulator.model_copy(update={"physics": fitted})
    assert read_params() == before.model_copy(update={"simulator": simulator})
    assert _comments() == comments
    assert set(read_sections(PARAMS_FILE)["simulator"]["physics"]) == set(FITTED)
    assert "--write`" in (project / "report" / "report.md").read_text(encoding="utf-8")


def numbers_of(project: Path) -> dict:
    return json.loads((project / "report" / "calibration.json").read_text(encoding="utf-8"))


def _comments() -> list[str]:
    return [line.partition("#")[2] for line in PARAMS_FILE.read_text(encoding="utf-8").splitlines() if "#" in line]


def test_what_cannot_be_calibrated_with_is_named(tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "nosuch", r"there is no folder .*nosuch"), (tmp_path, "no Gbx file")):
        with pytest.raises(UserError, match=message):
            calibrate(folder, holdout=0.3, out=tmp_path / "out", write=False)
    for holdout in (0.0, 1.0, -0.5):
        with pytest.raises(UserError, match="between 0 and 1"):
            gather(tmp_path, holdout, lambda: None)


def test_recordings_that_cannot_be_fitted_to_say_why(corpus: Path, tmp_path: Path) -> None:
    """Two maps and one file of each kind that is of no use: named with its reason, and not fitted to."""
    used = ["TMNF_user_B13_Obstacle", "TMNF_Drarker_B13_Obstacle_95", "TMU_StadiumA3_00_09_69"]
    reasons = {
        "TMNF_User_Literally_random_trash_trackmania_mecha.Replay.Gbx": "respawned",
        "TMUF_NICO1_SnowB5.Replay.Gbx": "holds no StadiumCar",
        "TMNF_2022_05_10_01_13_39_Oachkatzlschwoafs_on_ICE.Replay.Gbx": "with inputs",
        "TMNF_A01_Race.Challenge.Gbx": "this is a map",
    }
    for name in [f"{name}.Replay.Gbx" for name in used] + list(reasons):
        shutil.copy(corpus / name, tmp_path)
    data = gather(tmp_path, 0.34, lambda: None)
    assert {each.track.name for each in data.maps} == {"B13-Obstacle", "StadiumA3"}
    refused = dict(data.refused)
    assert refused.keys() == reasons.keys()
    assert all(reason in refused[name] for name, reason in reasons.items())
    left = data.fitted(without=data.maps[0])
    assert [part.track.uid for part in left] == [data.maps[1].track.uid]


def test_samples_without_turbo_are_not_fitted_to(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def path_of_an_older_ghost(_: Ghost, race: Race) -> DrivenPath:
        unknown = np.full(len(race.state), np.nan, np.float32)
        return path_from_rows(race.state_time_ms, race.state, race.checkpoint_times_ms, unknown)

    monkeypatch.setattr(gathering, "path_of_ghost", path_of_an_older_ghost)
    with pytest.raises(UserError, match="0 recordings of 0 maps"):
        gather(recordings, 0.34, lambda: None)


def test_real_recordings_agree(corpus: Path, physics: PhysicsParams) -> None:
    """The shipped physics, on recordings that they were not fitted to: the claim of docs/calibration/report.md."""
    data = gather(corpus, 0.34, lambda: None)
    assert sum(drive.is_held_out for drive in data.drives) == 3
    held = data.held_out
    ours = np.concatenate([errors([(part, physics)]).position_m for part in held])
    constant = np.concatenate([errors([(part, None)]).position_m for part in held])
    assert (np.nanmedian(ours, axis=0)[1:] < 0.1 * np.nanmedian(constant, axis=0)[1:]).all()
    assert (np.nanmedian(ours, axis=0) < [0.1, 0.4, 1.1, 4.5]).all()
