"""Several frames at once, and frames that nobody is shown, in environments."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from rulka.contracts.observation import FLOATS
from rulka.contracts.observation_params import ObservationParams, Part
from rulka.envs.batch import RaceBatch, car_generators
from rulka.simulator.race_settings import read_settings
from rulka.tracks.track import Track
from tests.conftest import sees

NUM_CARS, STEPS = 4, 60


def looks(**changes: object) -> ObservationParams:
    return ObservationParams.model_validate(sees(34, 40).model_dump() | changes)


def images(track: Track, observation: ObservationParams) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns what was seen after the first reset and after each decision, and whether that began a race."""
    options = {"observation": observation, "max_race_s": 0.7, "start_anywhere": 0.5, "start_speed_mps": 20.0}
    batch = RaceBatch(track, read_settings(None, options), NUM_CARS)
    batch.reset(car_generators(3, NUM_CARS))
    seen, begins = [batch.look()[0]["image"]], [np.ones(NUM_CARS, bool)]
    for actions in np.random.default_rng(0).integers(0, 12, (STEPS, NUM_CARS)):
        begins.append(batch.step(actions).is_reset)
        seen.append(batch.look()[0]["image"])
    return seen, begins


def test_frames_are_those_of_the_decisions_before(straight: Track) -> None:
    one, begins = images(straight, looks())
    three, _ = images(straight, looks(frames=3))
    assert sum(int(first.sum()) for first in begins) > 2 * NUM_CARS
    since = np.zeros(NUM_CARS, int)
    for step, seen in enumerate(three):
        since = np.where(begins[step], 0, since + 1)
        for car in range(NUM_CARS):
            expected = [one[step - min(back, since[car])][car, 0] for back in (2, 1, 0)]
            assert np.array_equal(seen[car], np.stack(expected)), (step, car)


def test_a_withheld_image_is_black(straight: Track) -> None:
    shown, _ = images(straight, looks())
    black, _ = images(straight, looks(withheld=["image"], frames=2))
    assert shown[-1].any()
    assert not any(image.any() for image in black)


def test_parts_are_those_of_the_floats() -> None:
    assert get_args(Part) == ("image", *FLOATS)


def test_what_cannot_be_withheld_is_named() -> None:
    cases = [
        (["waypoints", "waypoints"], "waypoints twice"),
        (["waypoint"], "waypoints"),
        (get_args(Part), "withheld needs to leave a part to see"),
    ]
    for withheld, message in cases:
        with pytest.raises(ValueError, match=message):
            looks(withheld=withheld)
