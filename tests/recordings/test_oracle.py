"""Real recordings against a table made by an independent reader. Skipped where the files are not present."""

import csv
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from rulka.contracts.observation import CAR, CENTRE_OF_MASS_M
from rulka.recordings.alignment import device_of, inputs_to_controls, measure_lag
from rulka.recordings.car_rows import car_rows
from rulka.recordings.errors import UnlimiterMapError
from rulka.recordings.reader import parse_map, read_header, read_map, read_recording

NO_TIME = "4294967295"
TOLERANCE_STEER = 0.005
"""Steering is stored in 255 steps; the mean rounding error of a recording stays below this."""

read = cache(read_recording)


def table(corpus: Path) -> list[dict[str, str]]:
    with (corpus / "expected.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> int | None:
    return int(text) if text else None


def is_known(row: dict[str, str]) -> bool:
    """The table knows nothing of the games of 2003, which are refused."""
    return bool(row["map_uid"])


NUM_BESIDE = {"TMNESWC_I_8_00_22_24.Replay.Gbx": 82, "TMSX_GBX_NET_2_CGameCtnReplayRecord_TMSX_001.Replay.Gbx": 37}
"""Inputs that stand beside the ghost; the reader that made the table looks into ghosts alone."""
TURBO, TURBO_MS = "TMTurbo_001_BigBang1112_00_32_43.Replay.Gbx", 32433
"""Its time stands in the text header and among its inputs, and in its name; the table's reader has none."""


def test_every_row(corpus: Path) -> None:
    num_checked = 0
    for row in filter(is_known, table(corpus)):
        recording = read(corpus / row["file"])
        ghost = recording.ghosts[int(row["ghost"])]
        samples = ghost.samples
        assert samples is not None
        is_turbo = row["file"] == TURBO
        times = [None if time == NO_TIME else int(time) for time in row["cp_times"].split()]
        names = (row["map_uid"], row["environment"], row["map_author"], number(row["header_time"]))
        assert (recording.map_uid, recording.environment, recording.map_author) == names[:3], row["file"]
        assert recording.header.race_time_ms == names[3]
        driver = (row["login"], row["nickname"], row["vehicle"], number(row["respawns"]), number(row["stunts"]))
        assert (ghost.login, ghost.nickname, ghost.vehicle, ghost.respawns, ghost.stunts) == driver
        assert ghost.race_time_ms == (TURBO_MS if is_turbo else number(row["race_time"]))
        assert list(ghost.checkpoint_times_ms) == ([TURBO_MS] if is_turbo else times)
        assert ghost.num_inputs == NUM_BESIDE.get(row["file"], int(row["n_inputs"]))
        if "tick_" not in row["inputs"] and row["file"] not in NUM_BESIDE:
            listed = dict(item.split(":") for item in row["inputs"].split())
            assert Counter(event.name for event in ghost.events) == {name: int(num) for name, num in listed.items()}
        assert samples.period_ms == number(row["sample_period"])
        assert samples.version == number(row["sample_version"].removeprefix("ent"))
        assert (samples.size_bytes, len(samples)) == (number(row["sample_size"]), int(row["n_samples"]))
        assert len(recording.map_data) == int(row["embedded_map_bytes"])
        assert ghost.game_version.startswith(row["exe"])
        if row["first_position"]:
            assert row["first_position"] == " ".join(f"{x:.3f}" for x in samples.position[0])
        num_checked += 1
    assert num_checked >= 30


def test_every_map_is_read_or_named(corpus: Path) -> None:
    """Those in files of their own, and those that recordings embed, whose drivers start within 20 m of the start line.

    That holds in every environment and generation; the table itself says nothing of blocks.
    """
    files = sorted([*corpus.glob("*.Challenge.Gbx"), *corpus.glob("*.Map.Gbx")])
    assert files
    for file in files:
        try:
            found = read_map(file)
        except UnlimiterMapError:
            continue
        header = read_header(file)
        assert (found.header.map_uid, found.header.map_name) == (header.map_uid, header.map_name)
        assert found.header.environment
        assert found.blocks
    embedded = [read(corpus / row["file"]) for row in filter(is_known, table(corpus))]
    embedded = [recording for recording in embedded if recording.map_data]
    num_started = 0
    for recording in embedded:
        found = parse_map(recording.map_data)
        assert found.header.map_uid == recording.map_uid
        assert found.header.map_name
        lines = [block for block in found.blocks if block.name.endswith("StartLine")]
        samples = recording.ghosts[0].samples
        if len(lines) == 1 and samples is not None:
            assert np.linalg.norm(np.array(lines[0].position_m) - samples.position[0]) < 20
            num_started += 1
    assert num_started >= 10


def forever_ghosts(corpus: Path):
    for row in filter(is_known, table(corpus)):
        if row["sample_version"] == "9":
            yield row["file"], read(corpus / row["file"]).ghosts[int(row["ghost"])]


def test_rows_have_the_velocity_of_the_centre_of_mass(corpus: Path) -> None:
    """Across the car, whose stored vector is off by half a metre a second, to a fifth of that."""
    across: dict[str, list[np.ndarray]] = {"vector": [], "rows": []}
    for _, ghost in forever_ghosts(corpus):
        if ghost.vehicle != "StadiumCar" or ghost.samples is None or ghost.samples.vehicle is None:
            continue
        time_ms, rows = car_rows(ghost)
        rotation = rows[:, CAR["rotation"]].reshape(-1, 3, 3)
        centre = rows[:, CAR["position"]] + rotation @ np.array(CENTRE_OF_MASS_M)
        left = rotation[1:-1, :, 0]
        moved = ((centre[2:] - centre[:-2]) / (time_ms[2:] - time_ms[:-2])[:, None] * 1000 * left).sum(axis=1)
        for name, velocity in (("vector", ghost.samples.velocity), ("rows", rows[:, CAR["velocity"]])):
            smooth = (velocity[:-2] + 4 * velocity[1:-1] + velocity[2:]) / 6  # Simpson's mean over both steps
            across[name].append(np.abs((smooth * left).sum(axis=1) - moved))
    vector, rows = (np.median(np.concatenate(parts)) for parts in across.values())
    assert vector > 0.2
    assert rows < 0.3 * vector


def ghosts_with_inputs(corpus: Path):
    for row in filter(is_known, table(corpus)):
        ghost = read(corpus / row["file"]).ghosts[int(row["ghost"])]
        if ghost.events:
            yield row["file"], ghost


def test_inputs_agree_with_samples(corpus: Path) -> None:
    """In every generation each sample of the race shows the steering of the tick before it, and of no other as well.

    Pedals of Forever agree as well.
    """
    num_checked = 0
    for name, ghost in ghosts_with_inputs(corpus):
        samples = ghost.samples
        assert samples is not None
        assert samples.vehicle is not None
        race = (samples.time_ms > 0) & (samples.time_ms < (ghost.race_time_ms or 0))
        row = samples.time_ms[race] // 10 - 1
        controls = inputs_to_controls(ghost, int(row.max()) + 2)
        error = {
            ticks: np.abs(controls[np.maximum(row + ticks, 0), 0] - samples.vehicle.steer[race]).mean()
            for ticks in (-1, 0, 1)
        }
        assert error[0] < TOLERANCE_STEER, name
        assert error[0] <= min(error[-1], error[1]), name
        if samples.version == 9:
            assert np.abs(controls[row, 1] - samples.vehicle.gas[race]).max() < 0.01, name
            assert np.abs(controls[row, 2] - samples.vehicle.brake[race]).max() < 0.01, name
        num_checked += 1
    assert num_checked >= 25


def test_lags_by_generation(corpus: Path) -> None:
    """Inputs of Turbo and of one build of 2020 show at once, those of all others a tick later."""
    lags = {name: measure_lag(ghost) for name, ghost in ghosts_with_inputs(corpus)}
    at_once = {name for name, lag in lags.items() if lag.is_measured and lag.ticks == 0}
    assert at_once == {TURBO, "TM2020_GBX_NET_2_CGameCtnReplayRecord_TM2020_001.Replay.Gbx"}
    assert {lag.ticks for name, lag in lags.items() if lag.is_measured and name not in at_once} == {1}
    assert sum(lag.is_measured for lag in lags.values()) >= 18


def test_inputs_engine_speed_and_gears_of_2020(corpus: Path) -> None:
    """A driver who reads 0xF as a mode of its own finds two respawns after the finish of the first.

    Engine speeds are those of the other games: gears shift at the same speeds, and all five are found.
    """
    ghost = read(corpus / "TM2020_GBX_NET_2_CGameCtnReplayRecord_TM2020_001.Replay.Gbx").ghosts[0]
    assert not [event for event in ghost.events if event.name == "Respawn"]
    assert device_of(ghost) == "keyboard"
    _, rows = car_rows(read(corpus / "TM2020_Simple_TECH_1.Ghost.Gbx").ghosts[0])
    gear, rpm = rows[:, CAR["gear"]][:, 0], rows[:, CAR["rpm"]][:, 0]
    speed_mps = np.linalg.norm(rows[:, CAR["velocity"]], axis=1)
    assert set(gear.tolist()) == {1, 2, 3, 4, 5}
    assert 10_000 < rpm.max() < 11_000
    assert (gear[speed_mps < 25] == 1).all()
    assert (gear[speed_mps > 100] >= 4).all()


def test_full_right_turns_right(corpus: Path) -> None:
    """Steering to the right turns the car about -y, and the car's +x axis points to its left."""
    for name, ghost in forever_ghosts(corpus):
        samples = ghost.samples
        assert samples is not None
        assert samples.vehicle is not None
        matrix = Rotation.from_quat(samples.quaternion, scalar_first=True).as_matrix()
        rate = (matrix[:, :, 1] * samples.angular_velocity).sum(axis=1)
        right = (samples.vehicle.steer > 0.9) & samples.vehicle.has_contact.all(axis=1)
        if right.sum() > 20:
            assert np.median(rate[right]) < 0, name
