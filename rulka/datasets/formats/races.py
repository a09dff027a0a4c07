"""The race dataset, `data/races`: driver, map, inputs and car states of every race.

    races.parquet       one row per race: race_id, source ("recording", "drive" or "driver"), file, player, map_uid,
                        race_time_ms, is_finished, num_ticks, checkpoint_times_ms, seed (of the driver), car
    ticks.parquet       one row per 10 ms tick: race_id, time_ms, steer, gas, brake. The row acts on the car from
                        `time_ms` on, for every source: inputs of recordings are aligned with the car's states.
    states.parquet      one row per sample of the car: race_id, time_ms and the 39 numbers of a `CAR` row, one column
                        each. Recordings have a sample every 100 ms, driven races one every decision.
    quarantine.parquet  one row per rejected file or ghost: file, error, hint
    tracks/<uid>.npz    track of every map with races, see `rulka.tracks.track`
    meta.json           schema_version, main_track (UID of the track that agents are trained and evaluated on), tracks
                        (UIDs of all), counts, the SHA-256 of every file above and its own

`meta.json` is written last. Files are hashed when they are read, see `checksums.py`. Ticks and samples are
sorted by race and time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from rulka.contracts.actions import TICK_MS
from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.datasets.formats.checksums import checksums_of, read_sealed, refuse_damage, write_sealed
from rulka.machine.errors import UserError
from rulka.stages.graph import remake
from rulka.tracks.track import Track, load_track

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA_VERSION = 3
META_FILE = "meta.json"
TABLES = ("races.parquet", "ticks.parquet", "states.parquet", "quarantine.parquet")

Source = Literal["recording", "drive", "driver", "recovery", "takeover"]


CAR_COLUMNS = [
    f"{name}_{index}" if part.stop - part.start > 1 else name
    for name, part in CAR.items()
    for index in range(part.stop - part.start)
]
"""Column names of a `CAR` row: `rpm`, `position_0`, `position_1`, ..."""
CONTROL_COLUMNS = ("steer", "gas", "brake")

_PLACE = tuple(f"position_{axis}" for axis in range(3))
_VELOCITY = tuple(f"velocity_{axis}" for axis in range(3))
_TEXT, _NUMBER = pa.string(), pa.int64()
_RACES_SCHEMA = pa.schema(
    {
        "race_id": _TEXT,
        "source": _TEXT,
        "file": _TEXT,
        "player": _TEXT,
        "map_uid": _TEXT,
        "race_time_ms": _NUMBER,
        "is_finished": pa.bool_(),
        "num_ticks": _NUMBER,
        "checkpoint_times_ms": pa.list_(_NUMBER),
        "seed": _NUMBER,
        "car": _TEXT,
    }
)
_QUARANTINE_SCHEMA = pa.schema(dict.fromkeys(("file", "error", "hint"), _TEXT))


@dataclass(frozen=True)
class Race:
    """One race.

    Attributes:
        race_id: unique and stable: the same recording or seed always has the same id.
        source: who drove: "recording" a person in the game, "drive" a person in the simulator, "driver" the built-in
            driver, "recovery" a disturbed simulated race, "takeover" an agent, of whom a person took over.
        file: name of the recording inside `data/recordings`, which can hold several races; empty for the driver.
        player: nickname; empty for the driver.
        map_uid: UID of the track.
        race_time_ms: time of the finish, or None.
        is_finished: True if the finish was reached.
        checkpoint_times_ms: time of every gate passed, including the finish.
        seed: seed of the driver, or None.
        controls: [T, 3] float32 steer in [-1, 1] (positive right), gas and brake in [0, 1]: row t acts on the car from
            10 t ms on, and its state 10 ms later is the first to show it.
        state_time_ms: [S] int64 ascending times of the samples.
        state: [S, 39] float32 `CAR` rows.
        car: name of the car in the recording; empty for the driver.
        by_person: [T] bool, ticks of a takeover that the person drove; None for all others. No race table holds it.
    """

    race_id: str
    source: Source
    file: str
    player: str
    map_uid: str
    race_time_ms: int | None
    is_finished: bool
    checkpoint_times_ms: tuple[int, ...]
    seed: int | None
    controls: NDArray[np.float32]
    state_time_ms: NDArray[np.int64]
    state: NDArray[np.float32]
    car: str = ""
    by_person: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        shapes = (self.controls.shape[1:], self.state.shape[1:], self.state_time_ms.shape)
        if shapes != ((3,), (NUM_CAR_FIELDS,), (len(self.state),)):
            raise UserError(f"race {self.race_id}: controls, states and their times do not fit: shapes {shapes}")

    def __repr__(self) -> str:
        return f"Race({self.race_id!r}, {self.duration_ms / 1000} s)"

    @property
    def num_ticks(self) -> int:
        """Number of 10 ms ticks with known inputs."""
        return len(self.controls)

    @property
    def duration_ms(self) -> int:
        """Time of the finish, or of the last tick where there was none."""
        return self.race_time_ms if self.race_time_ms is not None else self.num_ticks * TICK_MS


@dataclass(frozen=True)
class QuarantinedFile:
    """A rejected file, or a rejected ghost of a file.

    Attributes:
        file: name inside `data/recordings`.
        error: error class and message; names the ghost if the file has several.
        hint: the remedy.
    """

    file: str
    error: str
    hint: str


@dataclass(frozen=True)
class RaceDataset:
    """All races of one `data/races` folder.

    Attributes:
        races: all races, on all maps.
        main_track: the track that agents are trained and evaluated on.
        quarantine: rejected files and ghosts.
        other_tracks: tracks of the other maps with races.
    """

    races: tuple[Race, ...]
    main_track: Track
    quarantine: tuple[QuarantinedFile, ...]
    other_tracks: tuple[Track, ...] = ()

    def __repr__(self) -> str:
        return f"RaceDataset({len(self.races)} races on {', '.join(self.tracks)})"

    @property
    def tracks(self) -> dict[str, Track]:
        """All tracks by UID, the main one first."""
        return {track.uid: track for track in (self.main_track, *self.other_tracks)}

    @property
    def table(self) -> DataFrame:
        """One row per race, without its controls and states."""
        return _race_table(self.races).to_pandas()

    def on_main_track(self) -> list[Race]:
        """Returns the races driven on the main track."""
        return [race for race in self.races if race.map_uid == self.main_track.uid]


def write_races(folder: Path, dataset: RaceDataset) -> None:
    """Writes a race dataset into an existing folder, metadata last.

    Raises:
        UserError: if two races have the same id, a race holds a non-finite number or has no track, or two tracks
            would share a file.
    """
    races = sorted(dataset.races, key=lambda race: race.race_id)
    if len({race.race_id for race in races}) != len(races):
        raise UserError("two races have the same race_id")
    paths = {uid: track_path(folder, uid) for uid in dataset.tracks}
    if len(set(paths.values())) != 1 + len(dataset.other_tracks):
        message = f"tracks of two maps have the same UID, but for characters that no file name may have: {list(paths)}"
        raise UserError(message)
    for race in races:
        _check_finite(race)
        if race.map_uid not in paths:
            raise UserError(f"race {race.race_id} was driven on {race.map_uid!r}, of which there is no track")
    pq.write_table(_race_table(races), folder / "races.parquet")
    tick_ms = [np.arange(race.num_ticks, dtype=np.int64) * TICK_MS for race in races]
    ticks = _long_table(races, tick_ms, [race.controls for race in races], CONTROL_COLUMNS)
    state_ms, states = [race.state_time_ms for race in races], [race.state for race in races]
    pq.write_table(ticks, folder / "ticks.parquet")
    pq.write_table(_long_table(races, state_ms, states, CAR_COLUMNS), folder / "states.parquet")
    pq.write_table(
        pa.Table.from_pylist([asdict(item) for item in dataset.quarantine], schema=_QUARANTINE_SCHEMA),
        folder / "quarantine.parquet",
    )
    for uid, track in dataset.tracks.items():
        track.save(paths[uid])
    meta = {
        "main_track": dataset.main_track.uid,
        "tracks": list(paths),
        "num_races": len(races),
        "num_ticks": sum(race.num_ticks for race in races),
        "num_quarantined": len(dataset.quarantine),
        "checksums": checksums_of(folder, (*TABLES, *(path.relative_to(folder).as_posix() for path in paths.values()))),
    }
    write_sealed(folder / META_FILE, SCHEMA_VERSION, meta)


class _Meta(BaseModel, extra="allow"):
    """Keys of `meta.json` that are read; the others are informational."""

    main_track: str
    tracks: list[str] = Field(min_length=1)
    checksums: dict[str, str]


def content_id(source: Source, controls: NDArray[np.float32], state: NDArray[np.float32]) -> str:
    """Returns the id of a race from its inputs and states: the same race in another file has the same id."""
    digest = hashlib.sha256(np.ascontiguousarray(controls).tobytes() + np.ascontiguousarray(state).tobytes())
    return f"{source}-{digest.hexdigest()[:16]}"


def track_path(folder: Path, uid: str) -> Path:
    """Returns the track file of a map; characters outside `[A-Za-z0-9._-]` become underscores."""
    return folder / "tracks" / (re.sub(r"[^A-Za-z0-9._-]", "_", uid) + ".npz")


def reference_path(races_dir: Path, uid: str) -> Path:
    """Returns the path of a track's reference lap in a race dataset."""
    return track_path(races_dir, uid).with_suffix(".reference.txt")


def read_meta(folder: Path) -> dict[str, Any]:
    """Reads `meta.json`.

    Raises:
        UserError: if it is missing, unreadable, damaged or of another schema version.
    """
    return read_sealed(folder / META_FILE, "race", SCHEMA_VERSION, _Meta, hint=remake("races")).model_dump()


def load_main_track(folder: Path) -> Track:
    """Reads only the track that agents are trained and evaluated on.

    Raises:
        UserError: if there is no complete race dataset, or the track file is missing or damaged.
    """
    meta = read_meta(folder)
    return _track(folder, meta, meta["main_track"])


def _track(folder: Path, meta: Mapping[str, Any], uid: str) -> Track:
    path = track_path(folder, uid)
    refuse_damage(folder, meta["checksums"], [path.relative_to(folder).as_posix()], hint=remake("races"))
    return load_track(path)


def _check_finite(race: Race) -> None:
    for name, values in (("controls", race.controls), ("states", race.state)):
        is_finite = np.isfinite(values).all(axis=1)
        if not is_finite.all():
            source = f" ({race.file})" if race.file else ""
            raise UserError(f"race {race.race_id}{source}: row {int(np.argmin(is_finite))} of its {name} is not finite")


def load_races(folder: Path) -> RaceDataset:
    """Reads a whole race dataset.

    Raises:
        UserError: if it is missing, incomplete, damaged, or of another schema version.
    """
    meta = read_meta(folder)
    main, *others = (_track(folder, meta, uid) for uid in meta["tracks"])
    rows = _table(folder, meta, "races.parquet").to_pylist()
    ticks = _split_by_race(_table(folder, meta, "ticks.parquet"), CONTROL_COLUMNS)
    states = _split_by_race(_table(folder, meta, "states.parquet"), CAR_COLUMNS)
    quarantine = _quarantine(folder, meta)
    races = tuple(_race(row, ticks, states) for row in rows)
    return RaceDataset(races, main, quarantine, tuple(others))


def load_quarantine(folder: Path) -> tuple[QuarantinedFile, ...]:
    """Reads only the rejected files and ghosts of a race dataset.

    Raises:
        UserError: if the dataset is missing, incomplete, damaged, or of another schema version.
    """
    return _quarantine(folder, read_meta(folder))


def race_rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of `races.parquet`.

    Raises:
        UserError: as for `load_races`.
    """
    return _table(folder, read_meta(folder), "races.parquet").to_pylist()


class Path3D(NamedTuple):
    """Trajectory of a car.

    Attributes:
        time_ms: [S] ascending.
        position_m: [S, 3] world.
        speed_mps: [S].
    """

    time_ms: NDArray[np.int64]
    position_m: NDArray[np.float64]
    speed_mps: NDArray[np.float64]


def race_paths(folder: Path, race_ids: Collection[str]) -> dict[str, Path3D]:
    """Returns the trajectories of the given races by id; unknown ids are left out.

    Raises:
        UserError: as for `load_races`.
    """
    columns, chosen = ["race_id", "time_ms", *_PLACE, *_VELOCITY], [("race_id", "in", list(race_ids))]
    states = _table(folder, read_meta(folder), "states.parquet", columns=columns, filters=chosen)
    found = _split_by_race(states, (*_PLACE, *_VELOCITY))
    paths = {race_id: (time_ms, values.astype(np.float64)) for race_id, (time_ms, values) in found.items()}
    return {
        race_id: Path3D(time_ms, values[:, :3], np.linalg.norm(values[:, 3:], axis=1))
        for race_id, (time_ms, values) in paths.items()
    }


def _quarantine(folder: Path, meta: Mapping[str, Any]) -> tuple[QuarantinedFile, ...]:
    return tuple(QuarantinedFile(**row) for row in _table(folder, meta, "quarantine.parquet").to_pylist())


def _race(row: dict[str, Any], ticks: _ByRace, states: _ByRace) -> Race:
    race_id, num_ticks = row["race_id"], row.pop("num_ticks")
    if race_id not in states or len(ticks.get(race_id, ((), ()))[1]) != num_ticks:
        message = f"race {race_id} has no states, or not the {num_ticks} ticks it should have"
        raise UserError(message, hint=remake("races"))
    row["checkpoint_times_ms"] = tuple(row["checkpoint_times_ms"])
    state_time_ms, state = states[race_id]
    return Race(**row, controls=ticks[race_id][1], state_time_ms=state_time_ms, state=state)


def _race_table(races: Sequence[Race]) -> pa.Table:
    rows = [{name: getattr(race, name) for name in _RACES_SCHEMA.names} for race in races]
    return pa.Table.from_pylist(rows, schema=_RACES_SCHEMA)


def _long_table(
    races: Sequence[Race], times: Sequence[NDArray], values: Sequence[NDArray], columns: Sequence[str]
) -> pa.Table:
    """Concatenates the rows of all races, with the race id in every row."""
    index = np.repeat(np.arange(len(races), dtype=np.int32), [len(time) for time in times])
    names = pa.array([race.race_id for race in races], pa.string())
    joined = np.concatenate([np.zeros((0, len(columns)), np.float32), *values])
    arrays: dict[str, Any] = {
        "race_id": pa.DictionaryArray.from_arrays(pa.array(index), names),
        "time_ms": pa.array(np.concatenate([np.zeros(0, np.int64), *times])),
    }
    arrays |= {name: pa.array(np.ascontiguousarray(joined[:, at])) for at, name in enumerate(columns)}
    return pa.table(arrays)


_ByRace = dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]


def _split_by_race(table: pa.Table, columns: Sequence[str]) -> _ByRace:
    """Returns times [K] and values [K, columns] by race id."""
    frame = table.to_pandas()
    time_ms, values = frame["time_ms"].to_numpy(), frame[list(columns)].to_numpy()
    rows_of = frame.groupby("race_id", observed=True).indices
    return {str(race_id): (time_ms[rows], np.ascontiguousarray(values[rows])) for race_id, rows in rows_of.items()}


def _table(folder: Path, meta: Mapping[str, Any], name: str, **chosen: Any) -> pa.Table:
    """Verifies and reads a table, or the chosen part of it."""
    refuse_damage(folder, meta["checksums"], [name], hint=remake("races"))
    path = folder / name
    try:
        # `read_table` imports pandas, which would delay the first page that shows races.
        return pq.read_table(path, **chosen) if chosen else pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path.as_posix()} cannot be read: {error}", hint=remake("races")) from error
