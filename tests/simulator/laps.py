"""Laps whose every bit is hashed, computed by this module in a process of its own under other instruction sets.

    python -m tests.simulator.laps 4 50 1 sidewinder      # 4 cars, 50 decisions, 1 seed of generated tracks

The cars drive the reference laps, or random actions on a road with a loop, from random starts; now and then a car holds
another action than the lap, so that it leaves the line, slides, and hits what is beside the road.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import action_table
from rulka.envs.batch import RaceBatch, car_generators
from rulka.envs.randomising import physics_variants
from rulka.params import reference_params
from rulka.reference.lap import LAPS_DIR, drive, read_reference
from rulka.simulator.race_settings import read_settings
from rulka.tracks.campaign import campaign_track
from rulka.tracks.difficulty import DIFFICULTIES, VARIED
from rulka.tracks.generate import generate_track
from rulka.tracks.geometry import line_frames
from rulka.tracks.track import DRIVEN_SOURCE, WALL, Track, TrackError
from tests.conftest import plain_road
from tests.golden.runs import PORTABLE

ROOT = Path(__file__).parents[2]
PROCESSORS = {
    "SSE2": PORTABLE | {"NUMBA_CPU_NAME": "generic"},
    "AVX2": {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F",
    },
    "AVX-512": {"NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": "", "OPENBLAS_CORETYPE": "SkylakeX"},
}
"""Environment variables with which numba, libm, NumPy and OpenBLAS compute as on another processor."""
TICKS = 5
OTHER_SHARE = 0.1


def hashes_on(processor: str, num_cars: int, num_decisions: int, num_seeds: int, *slugs: str) -> dict[str, str]:
    """Returns what `hashes` does on a processor of `PROCESSORS`."""
    arguments = (*map(str, (num_cars, num_decisions, num_seeds)), *slugs)
    command = [sys.executable, "-m", "tests.simulator.laps", *arguments]
    environment = os.environ | PROCESSORS[processor]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def hashes(num_cars: int, num_decisions: int, num_seeds: int, *slugs: str) -> dict[str, str]:
    """Returns hashes of tracks, physics, and of everything that `num_cars` cars on each road do and see, by name."""
    params, table = reference_params(), action_table(TICKS)
    roads = [campaign_track(slug) for slug in slugs]
    found = {f"track {track.uid}": digest(*fields_of(track)) for track in [*roads, *generated(num_seeds)]}
    found["physics"] = digest(np.array([str(each) for each in physics_variants(params.simulator.physics, 1.0)]))
    for slug, track in zip(slugs, roads, strict=True):
        lap = read_reference(LAPS_DIR / f"{slug}.txt", table).actions
        found[f"lap {track.uid}"] = repr(drive(track, params.simulator, table, lap))
        found |= {f"{what} {track.uid}": value for what, value in driven(track, lap, num_cars, num_decisions).items()}
    anything = np.random.default_rng(0).choice(12, 400, p=[0.7, *11 * [0.3 / 11]])
    found |= {f"{what} loop": value for what, value in driven(loop(), anything, num_cars, num_decisions).items()}
    return found


def driven(track: Track, lap: NDArray[np.int64], num_cars: int, num_decisions: int) -> dict[str, str]:
    """Returns hashes of states after each tick, and of observations and rewards after each decision."""
    starts = {"start_anywhere": 0.5, "start_speed_mps": 30.0, "start_heading_deg": 10.0}
    races = RaceBatch(track, read_settings(None, starts | {"ticks_per_action": 1}), num_cars)
    races.reset(car_generators(0, num_cars))
    rng, other = np.random.default_rng(1), np.full(num_cars, -1)
    state, image, floats, reward = (hashlib.sha256() for _ in range(4))
    for k in range(num_decisions):
        # A car holds another action for some decisions, then drives on as in the lap.
        is_new, is_other = rng.random(num_cars) < 0.3, rng.random(num_cars) < OTHER_SHARE
        other = np.where(is_new, np.where(is_other, rng.integers(0, 12, num_cars), -1), other)
        for _ in range(TICKS):
            races.advance(np.where(other < 0, lap[k % len(lap)], other))
            state.update(races.simulator.save().tobytes())
            reward.update(races.scores.measures.tobytes())
        seen, info = races.look()
        image.update(seen["image"].tobytes())
        floats.update(seen["floats"].tobytes())
        reward.update(info["potential"].tobytes())
    found = {"state": state, "image": image, "floats": floats, "reward": reward}
    return {what: each.hexdigest() for what, each in found.items()}


def generated(num_seeds: int) -> list[Track]:
    """Returns tracks of every difficulty."""
    tracks = []
    for kind in (*DIFFICULTIES, VARIED):
        for seed in range(num_seeds):
            try:
                tracks.append(generate_track(seed, 600.0, 14.0, 0.12, 150.0, kind))
            except TrackError:  # every layout of this seed overlaps itself
                continue
    return tracks


def loop() -> Track:
    """Returns a road between walls with a vertical circle of 40 m radius."""
    zones = 1200
    angle = np.clip((np.arange(zones) * 0.5 - 150.0) / 40.0, 0.0, 2.0 * np.pi)
    steps = np.stack([np.full(zones, 0.1), np.sin(angle), np.cos(angle)], axis=1)
    steps *= 0.5 / np.linalg.norm(steps, axis=1, keepdims=True)
    # Rounded, as a file would hold it: libm's last bits are no matter of this road.
    centre = np.round(np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)]), 6)
    tangent, level, upright = line_frames(centre)
    left = np.array([1.0, 0.0, 0.0]) - tangent[:, :1] * tangent
    bank = np.round(np.arctan2((left * upright).sum(axis=1), (left * level).sum(axis=1)), 6)
    wall = np.full(len(centre), WALL, np.uint8)
    return plain_road(centre, 40.0, bank_rad=bank, edge=wall, source=DRIVEN_SOURCE)


def fields_of(track: Track) -> list[NDArray]:
    """Returns all that a car feels of a track."""
    return [track.centre_m, track.width_m, track.bank_rad, track.material, track.edge, track.gate_m]


def digest(*arrays: NDArray) -> str:
    """Returns a hash of the bits of arrays."""
    return hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(hashes(*map(int, sys.argv[1:4]), *sys.argv[4:])))
