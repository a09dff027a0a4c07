"""Puts the fakes on the path, so that spawned collectors can import them by name; and a short track."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rulka.params import read_params
from rulka.tracks.generate import generate_track

ROOT = Path(__file__).parents[2]

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def track(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("track") / "track.npz"
    generate_track(**read_params(ROOT / "params.yaml").track.model_dump() | {"length_m": 150.0}).save(path)
    return path
