"""Several frames at once, and frames that nobody is shown, in environments."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from rulka.agents.shared.networks import input_shape
from rulka.contracts.observation import FLOATS, float_slices, reference_normalisation
from rulka.contracts.observation_params import ObservationParams, Part, PartNormalisationParams
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


@pytest.mark.parametrize("places", [1, 5])
def test_far_waypoints_and_old_actions_are_withheld(places: int) -> None:
    """Of decisions of several actions, whole ones are."""
    parts, normalisation = float_slices(places), reference_normalisation().for_chunks(places)
    assert input_shape(looks(), normalisation).withheld_floats is None
    withheld = input_shape(looks(waypoints=2, previous_actions=3, withheld=["margin"]), normalisation).withheld_floats
    assert withheld is not None
    before, ahead, margin = parts["previous_actions"], parts["waypoints"], parts["margin"]
    oldest = range(before.start, before.start + 2 * 4 * places)
    assert np.flatnonzero(withheld).tolist() == [*oldest, *range(ahead.start + 2 * 3, ahead.stop), margin.start]


def test_parts_may_have_another_normalisation() -> None:
    given = [
        PartNormalisationParams(part="velocity", mean=(0.0, 1.0, 40.0), std=(8.0,)),
        PartNormalisationParams(part="clock", mean=(35.0,), std=(35.0,)),
    ]
    found, expected = reference_normalisation(given), reference_normalisation()
    expected.mean[FLOATS["velocity"]], expected.std[FLOATS["velocity"]] = (0.0, 1.0, 40.0), 8.0
    expected.mean[0] = expected.std[0] = 35.0
    assert np.array_equal(found.mean, expected.mean)
    assert np.array_equal(found.std, expected.std)


def test_what_cannot_be_withheld_is_named() -> None:
    cases = [
        (["waypoints", "waypoints"], "waypoints twice"),
        (["waypoint"], "waypoints"),
        (get_args(Part), "withheld needs to leave a part to see"),
    ]
    for withheld, message in cases:
        with pytest.raises(ValueError, match=message):
            looks(withheld=withheld)
