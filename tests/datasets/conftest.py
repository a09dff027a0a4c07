"""Random races, and the settings to capture them."""

from __future__ import annotations

import numpy as np

from rulka.contracts.actions import action_table
from rulka.contracts.observation import NUM_CAR_FIELDS
from rulka.datasets.capture import CaptureSettings
from rulka.datasets.formats.races import Race
from rulka.params import read_params
from rulka.simulator.render import camera_array
from rulka.tracks.generate import generate_track

PARAMS = read_params()
TABLE = action_table(5)
TRACK = generate_track(seed=3, length_m=250.0, width_m=16.0, max_slope=0.12, gate_spacing_m=100.0)
SETTINGS = CaptureSettings(64, 64, TABLE, 0.0153, camera_array(PARAMS.simulator.camera))


def random_race(race_id: str, num_ticks: int, *, seed: int | None = 3, map_uid: str = "map/1") -> Race:
    """A finished race of the built-in driver, or without a seed an unfinished recording."""
    rng, num_states = np.random.default_rng(num_ticks), num_ticks // 5 + 1
    is_driven = seed is not None
    return Race(
        race_id=race_id,
        source="driver" if is_driven else "recording",
        file="" if is_driven else "x.Replay.Gbx",
        player="" if is_driven else "Zoë $f00x",
        map_uid=map_uid,
        race_time_ms=num_ticks * 10 if is_driven else None,
        is_finished=is_driven,
        checkpoint_times_ms=(100, num_ticks * 10),
        seed=seed,
        controls=rng.uniform(-1, 1, (num_ticks, 3)).astype(np.float32),
        state_time_ms=50 * np.arange(num_states, dtype=np.int64),
        state=rng.normal(size=(num_states, NUM_CAR_FIELDS)).astype(np.float32),
    )
