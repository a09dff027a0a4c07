"""Stage `races`: demonstrations where there are no recordings, and real recordings where they are at hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rulka.cli.recordings import quarantine
from rulka.contracts.actions import action_table
from rulka.contracts.observation import CAR
from rulka.datasets.formats.races import load_races, reference_path
from rulka.datasets.from_recordings import MissingRecordingsError, refuse_missing
from rulka.datasets.params import RaceParams, SelectParams
from rulka.machine.errors import UserError
from rulka.params import read_params
from rulka.reference.lap import load_reference
from rulka.tracks.params import TrackParams
from tasks.races import main, races
from tests.tasks.conftest import content

PARAMS = read_params()
TRACK = TrackParams(seed=3, length_m=200.0, width_m=16.0, max_slope=0.1, gate_spacing_m=100.0, difficulty="medium")


def params(**changes: object) -> RaceParams:
    return RaceParams(**{"num_demonstrations": 4, "reference_decisions": 0, "seed": 2} | changes)


def run(recordings_dir: Path, out_dir: Path, races_params: RaceParams, max_race_s: float = 40.0) -> None:
    end = PARAMS.race_end.model_copy(update={"max_race_s": max_race_s})
    params = PARAMS.model_copy(update={"track": TRACK, "races": races_params, "race_end": end})
    races(params, recordings_dir=recordings_dir, out_dir=out_dir)


def test_without_recordings_drivers_race_on_a_made_track(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "none", tmp_path / "races", params())
    assert f"races: no recordings in {tmp_path / 'none'}: the built-in driver races" in capsys.readouterr().out
    dataset = load_races(tmp_path / "races")
    assert dataset.main_track.length_m == 200.0
    assert 1 <= len(dataset.races) <= 4
    for race in dataset.races:
        assert (race.source, race.seed, race.is_finished) == ("driver", 2, True)
        assert race.map_uid == dataset.main_track.uid
        assert race.race_time_ms is not None
        assert race.num_ticks in {-(-race.race_time_ms // 10), race.race_time_ms // 10 + 1}  # times are rounded
        assert len(race.checkpoint_times_ms) == len(dataset.main_track.gate_m)
        assert race.checkpoint_times_ms[-1] == race.race_time_ms
        end = race.state[-1, CAR["position"]]
        assert np.linalg.norm(end - dataset.main_track.centre_m[-1]) < 20.0
    assert dataset.quarantine == ()


def test_same_seed_same_files_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in [("a", 2), ("b", 2), ("c", 3)]:
        run(tmp_path / "none", tmp_path / name, params(seed=seed, num_demonstrations=2))
    first, again, other = (content(tmp_path / name) for name in "abc")
    assert first == again
    assert first["ticks.parquet"] != other["ticks.parquet"]


def test_drivers_that_never_finish_are_an_error_with_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of 4 built-in drivers finished") as caught:
        run(tmp_path / "none", tmp_path / "races", params(), max_race_s=1.0)
    assert "race_end.max_race_s" in caught.value.hint
    assert not (tmp_path / "races").exists()


def lock(size: int) -> str:
    """What DVC wrote after a run of the stage that read a folder of so many bytes."""
    return f"schema: '2.0'\nstages:\n  races:\n    cmd: x\n    deps:\n    - path: data/recordings\n      size: {size}\n"


def test_recordings_that_were_used_before_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone, or a temporary copy of the project, has an empty folder and the lock of the run that had recordings."""
    monkeypatch.chdir(tmp_path)
    Path("data/recordings").mkdir(parents=True)
    Path("data/recordings/.gitkeep").touch()
    Path("dvc.lock").write_text(lock(24875))
    with pytest.raises(MissingRecordingsError, match="the last run of the stage races used some") as caught:
        run(Path("data/recordings"), tmp_path / "races", params())
    assert "races.source in params.yaml to driver" in caught.value.hint
    assert not (tmp_path / "races").exists()
    run(Path("data/recordings"), tmp_path / "races", params(source="driver", num_demonstrations=1))
    assert {race.source for race in load_races(tmp_path / "races").races} == {"driver"}

    (tmp_path / "recordings.dvc").write_text("outs:\n- path: recordings\n")
    with pytest.raises(MissingRecordingsError, match=r"recordings\.dvc says that there are") as caught:
        run(tmp_path / "recordings", tmp_path / "races", params())
    assert "dvc checkout" in caught.value.hint


def test_a_project_that_never_had_recordings_misses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("", "schema: '2.0'\nstages: {}\n", lock(0)):
        Path("dvc.lock").write_text(text)
        refuse_missing(Path("data/recordings"))


def test_recordings_of_which_none_can_be_used_leave_the_old_output_and_their_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"track": TRACK, "races": params(num_demonstrations=2)}
    monkeypatch.setattr("tasks.races.params_of_stage", lambda _: PARAMS.model_copy(update=values))
    Path("data/recordings").mkdir(parents=True)
    Path("data/recordings/replays.zip").touch()
    main()
    assert "races: not read: data/recordings/replays.zip: unpack it" in capsys.readouterr().out
    Path("data/recordings/replays.zip").unlink()
    before = content(Path("data/races"))
    Path("data/recordings/noise.Gbx").write_bytes(b"not a recording")
    with pytest.raises(UserError, match=r"noise\.Gbx: NotGbxError") as refused:
        main()
    assert "`rulka recordings quarantine`" in refused.value.hint
    assert content(Path("data/races")) == before
    assert sorted(path.name for path in Path("data").iterdir()) == ["races", "recordings"]
    quarantine()
    assert "NotGbxError: 1\n  noise.Gbx: " in capsys.readouterr().out
    Path("data/recordings/noise.Gbx").unlink()
    main()
    quarantine()
    assert "every recording is used" in capsys.readouterr().out


def test_real_recordings_of_all_maps(corpus: Path, tmp_path: Path) -> None:
    """The main track is the one with most races; three of these are further ghosts of one file."""
    run(corpus, tmp_path / "simulated", params())
    dataset = load_races(tmp_path / "simulated")
    assert (len(dataset.races), len(dataset.tracks), {race.car for race in dataset.races}) == (18, 8, {"StadiumCar"})
    run(corpus, tmp_path / "races", params(select=SelectParams(car=None)))
    dataset = load_races(tmp_path / "races")
    times = sorted(race.race_time_ms or 0 for race in dataset.on_main_track())
    assert times == [24930, *6 * [24940], 24950, 24950]
    assert (len(dataset.races), len(dataset.tracks)) == (28, 18)
    assert Counter(race.file for race in dataset.races)["TMNF_Bruno_B13_Obstacle.Replay.Gbx"] == 4
    assert 2350 < dataset.main_track.length_m < 2480  # 2415 m by the peer's way of measuring, which stops short
    assert len(dataset.main_track.gate_m) == 4
    assert {race.file for race in dataset.races} | {item.file for item in dataset.quarantine} == {
        path.name for path in corpus.glob("*.Gbx")
    }
    errors = {item.file: item.error.split(":")[0] for item in dataset.quarantine}
    assert errors["TMNF_User_Literally_random_trash_trackmania_mecha.Replay.Gbx"] == "RespawnError"
    assert errors["TM2020_TestBlocks.Replay.Gbx"] == "UnusablePathError"
    assert errors["TMNF_password.Challenge.Gbx"] == "WrongKindError"


def test_reference_lap_is_stored_and_drives_again(tmp_path: Path) -> None:
    run(tmp_path / "none", tmp_path / "races", params(num_demonstrations=2, reference_decisions=20_000))
    track = load_races(tmp_path / "races").main_track
    path = reference_path(tmp_path / "races", track.uid)
    lap = load_reference(path, track, PARAMS.simulator, action_table(PARAMS.actions.ticks_per_action))
    assert lap.track_uid == track.uid
