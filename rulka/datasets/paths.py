"""The paths of single races of a race dataset, without reading all of it: for people who look at them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rulka.datasets.checksums import find_damage
from rulka.datasets.races import DAMAGE_HINT, HINT, RaceDataError, read_meta

_PLACES = ("position_0", "position_1", "position_2")
_VELOCITY = ("velocity_0", "velocity_1", "velocity_2")


class Path3D(NamedTuple):
    """Where a car was.

    Attributes:
        time_ms: [S] rising.
        position_m: [S, 3] world.
        speed_mps: [S].
    """

    time_ms: NDArray[np.int64]
    position_m: NDArray[np.float64]
    speed_mps: NDArray[np.float64]


def race_rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the row of every race, see `rulka.datasets.races`.

    Raises:
        RaceDataError: if the dataset is missing, damaged, or of another schema version.
    """
    # Not by `read_table`, which imports pandas: the first page that shows races would wait for that.
    return _read(folder, "races.parquet", lambda file: pq.ParquetFile(file).read()).to_pylist()


def race_paths(folder: Path, race_ids: Collection[str]) -> dict[str, Path3D]:
    """Returns the paths of some races by their id; races that there are not are left out.

    Raises:
        RaceDataError: if the dataset is missing, damaged, or of another schema version.
    """
    chosen = {
        "columns": ["race_id", "time_ms", *_PLACES, *_VELOCITY],
        "filters": [("race_id", "in", list(race_ids))],
    }
    table = _read(folder, "states.parquet", lambda file: pq.read_table(file, **chosen)).to_pandas()
    paths = {}
    for race_id, rows in table.groupby("race_id", observed=True):
        speed_mps = np.linalg.norm(rows[list(_VELOCITY)].to_numpy(np.float64), axis=1)
        paths[str(race_id)] = Path3D(rows["time_ms"].to_numpy(), rows[list(_PLACES)].to_numpy(np.float64), speed_mps)
    return paths


def _read(folder: Path, name: str, read: Callable[[Path], pa.Table]) -> pa.Table:
    damage = find_damage(folder, read_meta(folder)["checksums"], [name])
    if damage:
        raise RaceDataError(damage, hint=DAMAGE_HINT)
    try:
        return read(folder / name)
    except (OSError, pa.ArrowException) as error:
        message = f"{(folder / name).as_posix()} cannot be read: {error}"
        raise RaceDataError(message, hint=HINT) from error
