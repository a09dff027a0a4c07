"""Linear probes: what is to be told, by hand; and told, or not, from features that hold it, or do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.contracts.observation import FLOATS
from rulka.datasets.formats.frames import FrameDataset, FrameWriter, Split
from rulka.pretraining.probes import Probes, probe_encoder, quantities_of
from tests.conftest import sees, synthetic_race

SIZE = 34
NUM_FRAMES = 300
LATERAL_STEP_M = 0.05
"""Metres to the left for each grey level above the middle one, see `capture`."""


class FirstPixels(nn.Module):
    """Features [B, 100] are the first pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor) -> Tensor:
        return image.flatten(1)[:, :100] * self.scale


class Blind(FirstPixels):
    """Features [B, 4] are always the same."""

    def forward(self, image: Tensor) -> Tensor:
        return torch.zeros(len(image), 4) * self.scale


def some_floats(lateral_m: np.ndarray, heading_deg: np.ndarray, speed_mps: np.ndarray) -> np.ndarray:
    """[N, 184] of cars left of a straight line and turned left of it; in the car's frame the line is to the right."""
    floats = np.zeros((len(lateral_m), 184), np.float32)
    turn = np.radians(heading_deg)
    # The line runs along +z through x = 0. The car is at x = lateral; forward is (sin, cos), left (cos, -sin).
    for number, along in enumerate((0.0, 10.0)):
        offset_x, offset_z = -lateral_m, np.full(len(turn), along)
        start = FLOATS["waypoints"].start + 3 * number
        floats[:, start] = offset_x * np.cos(turn) - offset_z * np.sin(turn)
        floats[:, start + 2] = offset_x * np.sin(turn) + offset_z * np.cos(turn)
    floats[:, FLOATS["velocity"].start + 2] = speed_mps
    return floats


def capture(folder: Path) -> tuple[FrameDataset, FrameDataset]:
    """Frames whose first pixel tells the place across the road, the second the speed and the third the action.

    On another map they would tell something else.
    """
    rng = np.random.default_rng(3)
    contract, table = observation_contract(sees(SIZE, SIZE)), action_table(5)
    splits: dict[str, Split] = {"a": "train", "elsewhere": "train", "b": "validation"}
    writer = FrameWriter(folder, observation=contract, actions=table, main_track="x", splits=splits, shard_frames=1000)
    for race_id in splits:
        image = rng.integers(0, 256, (NUM_FRAMES, 1, SIZE, SIZE), dtype=np.uint8)
        action = rng.integers(0, 2, NUM_FRAMES)
        image[:, 0, 0, 2] = 200 * action
        lateral_m = LATERAL_STEP_M * (image[:, 0, 0, 3 * (race_id == "elsewhere")].astype(float) - 128.0)
        race = synthetic_race(race_id, NUM_FRAMES, 0, "elsewhere" if race_id == "elsewhere" else "x")
        seen = {
            "image": image,
            "floats": some_floats(lateral_m, np.zeros(NUM_FRAMES), image[:, 0, 0, 1] / 4.0),
            "action": action.astype(np.uint8),
            "action_share": np.eye(12, dtype=np.float32)[action],
            "along_m": rng.random(NUM_FRAMES).astype(np.float32) * 100,
        }
        writer.add(replace(race, **seen))
    writer.close()
    return FrameDataset(folder, "train"), FrameDataset(folder, "validation")


def test_the_quantities_of_a_car_left_of_the_line_and_turned_left() -> None:
    floats = some_floats(np.array([2.0, -3.0, 0.5]), np.array([30.0, -45.0, 0.0]), np.array([20.0, 0.0, 7.0]))
    found = quantities_of(floats, np.array([5.0, 6.0, 7.0], np.float32))
    np.testing.assert_allclose(found["lateral_m"], [2.0, -3.0, 0.5], atol=1e-5)
    np.testing.assert_allclose(found["heading_deg"], [30.0, -45.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(found["speed_mps"], [20.0, 0.0, 7.0], atol=1e-6)
    assert found["progress_m"].tolist() == [5.0, 6.0, 7.0]


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Probes:
    train, held_out = capture(tmp_path_factory.mktemp("frames"))
    with torch.no_grad():
        return probe_encoder(FirstPixels(), Blind(), train, held_out)


def test_what_features_hold_is_told(probes: Probes) -> None:
    for name in ("lateral_m", "speed_mps"):
        assert probes[name]["pretrained_error"] < 0.001 * probes[name]["constant_error"]
    assert probes["action"]["accuracy"] == 1.0
    # Levels 0 to 255 alike: a standard deviation of 73.9 levels, give or take what 300 frames differ by.
    assert probes["lateral_m"]["constant_error"] == pytest.approx(73.9 * LATERAL_STEP_M, rel=0.1)


def test_what_they_do_not_hold_is_told_as_by_a_constant(probes: Probes) -> None:
    """Progress was drawn by itself: a hundred features fit it by chance, which only frames beside those fitted show."""
    progress = probes["progress_m"]
    assert progress["pretrained_error"] == pytest.approx(progress["constant_error"], rel=0.05)
    action = probes["action"]
    for quantity in (each for name, each in probes.items() if name != "action"):
        assert quantity["random_error"] == pytest.approx(quantity["constant_error"])
    assert action["random_accuracy"] == action["constant_accuracy"] < 0.6
