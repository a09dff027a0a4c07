"""The race dataset: what is written is read back bit for bit."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.datasets.formats.checksums import checksums_of, sealed
from rulka.datasets.formats.races import (
    CAR_COLUMNS,
    META_FILE,
    TABLES,
    QuarantinedFile,
    Race,
    RaceDataset,
    load_main_track,
    load_races,
    write_races,
)
from rulka.machine.errors import UserError
from rulka.tracks.track import Track
from tests.conftest import along_z, plain_road
from tests.datasets.conftest import random_race


def road(uid: str) -> Track:
    return plain_road(along_z(20.0), 10.0, (10.0,), uid=uid)


TRACK = road("map/1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    races = (random_race("b", 37), random_race("a", 20, seed=None), random_race("c", 5))
    quarantine = (QuarantinedFile("bad.Gbx", "TruncatedError: it ends", "Get it again."),)
    write_races(tmp_path, RaceDataset(races, TRACK, quarantine))
    return tmp_path


def test_round_trip(folder: Path) -> None:
    loaded = load_races(folder)
    assert [race.race_id for race in loaded.races] == ["a", "b", "c"]
    for race, expected in zip(
        loaded.races, [random_race("a", 20, seed=None), random_race("b", 37), random_race("c", 5)], strict=True
    ):
        for part in fields(Race):
            found, wanted = getattr(race, part.name), getattr(expected, part.name)
            if isinstance(wanted, np.ndarray):
                np.testing.assert_array_equal(found, wanted)
                assert found.dtype == wanted.dtype
            else:
                assert found == wanted, part.name
    assert loaded.quarantine == (QuarantinedFile("bad.Gbx", "TruncatedError: it ends", "Get it again."),)
    np.testing.assert_array_equal(loaded.main_track.centre_m, TRACK.centre_m)
    assert len(loaded.on_main_track()) == 3


def test_columns_follow_the_car_row(folder: Path) -> None:
    assert len(CAR_COLUMNS) == NUM_CAR_FIELDS
    assert CAR_COLUMNS[CAR["rotation"].start + 2] == "rotation_2"
    assert CAR_COLUMNS[CAR["rpm"].start] == "rpm"
    table = pq.read_table(folder / "states.parquet")
    assert table.column_names == ["race_id", "time_ms", *CAR_COLUMNS]
    ticks = pq.read_table(folder / "ticks.parquet").to_pandas()
    race = random_race("b", 37)
    np.testing.assert_array_equal(ticks[ticks.race_id == "b"].brake.to_numpy(), race.controls[:, 2])
    np.testing.assert_array_equal(ticks[ticks.race_id == "b"].time_ms, 10 * np.arange(37))


def test_same_races_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    write_races(again, load_races(folder))
    for name in (*TABLES, META_FILE):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_races_of_several_maps_have_a_track_each(tmp_path: Path) -> None:
    races = (random_race("a", 5), random_race("b", 6, map_uid="map-2"))
    write_races(tmp_path, RaceDataset(races, TRACK, (), (road("map-2"),)))
    loaded = load_races(tmp_path)
    assert list(loaded.tracks) == ["map/1", "map-2"]
    assert [race.race_id for race in loaded.on_main_track()] == ["a"]
    (tmp_path / "tracks" / "map-2.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"map-2.npz is damaged or was changed"):
        load_races(tmp_path)
    assert load_main_track(tmp_path).uid == "map/1"


def test_what_contradicts_itself_is_not_written(tmp_path: Path) -> None:
    race = random_race("a", 20, seed=None)
    broken = {
        "same race_id": RaceDataset((race, random_race("a", 6)), TRACK, ()),
        "race b was driven on 'map-2', of which there is no track": RaceDataset(
            (random_race("b", 6, map_uid="map-2"),), TRACK, ()
        ),
        "tracks of two maps have the same UID": RaceDataset((race,), TRACK, (), (road("map?1"),)),
    }
    for message, dataset in broken.items():
        with pytest.raises(UserError, match=message):
            write_races(tmp_path, dataset)
    for name in ("state", "controls"):
        race = random_race("a", 20, seed=None)
        getattr(race, name)[2, 1] = np.nan
        with pytest.raises(UserError, match=r"race a \(x.Replay.Gbx\): row 2 of its .* is not finite"):
            write_races(tmp_path, RaceDataset((race,), TRACK, ()))
    assert not (tmp_path / META_FILE).exists()
    with pytest.raises(UserError, match="do not fit"):
        replace(race, state_time_ms=np.zeros(1, np.int64))


def test_a_missing_file_is_named(folder: Path) -> None:
    """The track alone needs no tables."""
    for name in ("ticks.parquet", "quarantine.parquet", META_FILE):
        whole = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(UserError, match=name) as caught:
            load_races(folder)
        assert "dvc " in caught.value.hint
        if name != META_FILE:
            assert load_main_track(folder).uid == "map/1"
        (folder / name).write_bytes(whole)


def test_lost_ticks_are_noticed(folder: Path) -> None:
    table = pq.read_table(folder / "ticks.parquet")
    pq.write_table(table.slice(0, len(table) - 1), folder / "ticks.parquet")
    meta = json.loads((folder / META_FILE).read_text())
    meta["checksums"] = checksums_of(folder, meta["checksums"])
    (folder / META_FILE).write_text(json.dumps(sealed(meta)))
    with pytest.raises(UserError, match="race c has no states, or not the 5 ticks"):
        load_races(folder)


def test_a_flipped_byte_is_named(folder: Path) -> None:
    for name, share in product((*TABLES, "tracks/map_1.npz"), (0.0, 0.5, 0.999)):
        whole = (folder / name).read_bytes()
        content = bytearray(whole)
        content[int(share * len(content))] ^= 0x01
        (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} is damaged or was changed") as caught:
            load_races(folder)
        assert "dvc repro races" in caught.value.hint
        (folder / name).write_bytes(whole)


def test_metadata_that_are_none_are_named(folder: Path) -> None:
    """What a changed index leads to is held by `test_frames`: both are read by `read_sealed`."""
    whole = json.loads((folder / META_FILE).read_text())
    for content, said in (
        *((other, "holds no race dataset: meta.json is of something else") for other in ("[]", "null", "{}")),
        ("{", "meta.json cannot be read"),
        (json.dumps(whole | {"schema_version": 0}), "race schema 0, older than"),
    ):
        (folder / META_FILE).write_text(content)
        with pytest.raises(UserError, match=said):
            load_races(folder)
