"""Cars on several tracks beside their naive twin: a batch for each track, stepped on its own."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.contracts.observation import num_floats
from rulka.contracts.schedule import Moment
from rulka.envs.batch import RaceBatch
from rulka.envs.cars_on_tracks import CarsOnTracks
from rulka.params import reference_params
from rulka.simulator.race_settings import read_settings
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track


@pytest.fixture(scope="module")
def tracks() -> list[Track]:
    shape = reference_params().track.model_dump() | {"length_m": 150.0}
    return [generate_track(**shape | {"seed": seed}) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def settings():
    return read_settings(None, {"start_anywhere": 0.5, "no_progress_s": 0.5})


def arrays(num_cars: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    floats = np.zeros((num_cars, num_floats(1)), np.float32)
    return np.zeros((num_cars, 1, 64, 64), np.uint8), floats, np.zeros(num_cars, np.float32)


def test_every_car_races_as_it_would_alone_on_its_track_and_goes_on_from_what_was_saved(tracks, settings) -> None:
    """7 cars on 3 tracks: 2, 3 and 2 of them; races end and begin anew on the way."""
    together, again, seen = CarsOnTracks(7, tracks, settings), CarsOnTracks(7, tracks, settings), arrays(7)
    together.reset_into(*seen, 11)
    together.set_moment(Moment(0, 0.0))
    parts = [part for part, _ in together.batches]
    assert parts == [slice(0, 2), slice(2, 5), slice(5, 7)]
    twins = [RaceBatch(track, settings, batch.num_cars) for track, (_, batch) in zip(tracks, together.batches)]  # noqa: B905
    alone = [arrays(twin.num_cars) for twin in twins]
    for twin, part, own in zip(twins, parts, alone, strict=True):
        twin.reset_into(*own, 11 + part.start)
    rng, num_resets = np.random.default_rng(0), 0
    for step in range(40):
        if step == 20:
            again.reset_into(*seen, 9)
            again.load_state_dict(together.state_dict())
            together = again
        actions = rng.integers(0, 12, 7)
        result = together.step_into(actions, *seen)
        num_resets += int(result.is_reset.sum())
        for twin, part, own in zip(twins, parts, alone, strict=True):
            expected = twin.step_into(actions[part], *own)
            for name in type(result).__dataclass_fields__:
                np.testing.assert_array_equal(getattr(result, name)[part], getattr(expected, name))
            for all_cars, these in zip(seen, own, strict=True):
                np.testing.assert_array_equal(all_cars[part], these)
    assert num_resets > 3


def test_of_more_tracks_than_cars_some_are_raced_on(tracks, settings) -> None:
    for num_cars, raced in ((2, [tracks[0], tracks[2]]), (1, tracks[:1])):
        assert [batch.track for _, batch in CarsOnTracks(num_cars, tracks, settings).batches] == raced
