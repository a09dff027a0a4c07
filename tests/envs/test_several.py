"""Cars on several tracks beside their naive twin: an environment for each track, stepped on its own."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.envs.settings import read_settings
from rulka.envs.vector import CarsOnTracks, RaceVectorEnv
from rulka.observation import num_floats
from rulka.params import reference_params
from rulka.schedule import Moment
from rulka.tracks.generate import generate_track
from rulka.tracks.params import TrackParams
from rulka.tracks.track import Track


def short(seed: int) -> Track:
    shape = reference_params().track.model_copy(update={"seed": seed, "length_m": 150.0})
    return generate_track(**dict(TrackParams.model_validate(shape.model_dump())))


@pytest.fixture(scope="module")
def tracks() -> list[Track]:
    return [short(seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def settings():
    return read_settings(None, {"start_anywhere": 0.5, "no_progress_s": 0.5}, ())


def arrays(num_cars: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    floats = np.zeros((num_cars, num_floats(1)), np.float32)
    return np.zeros((num_cars, 1, 64, 64), np.uint8), floats, np.zeros(num_cars, np.float32)


def test_every_car_races_as_it_would_alone_on_its_track(tracks, settings) -> None:
    """7 cars on 3 tracks: 2, 3 and 2 of them; races end and begin anew on the way."""
    together, seen = CarsOnTracks(7, tracks, settings), arrays(7)
    assert [track.uid for track in together.tracks] == [track.uid for track in tracks]
    together.reset_into(*seen, 11)
    together.set_moment(Moment(0, 0.0))
    parts = [slice(0, 2), slice(2, 5), slice(5, 7)]
    twins = [RaceVectorEnv(part.stop - part.start, track, settings=settings) for part, track in zip(parts, tracks)]  # noqa: B905
    alone = [arrays(env.num_envs) for env in twins]
    for env, part, own in zip(twins, parts, alone, strict=True):
        env.reset_into(*own, 11 + part.start)
    rng, num_resets = np.random.default_rng(0), 0
    for _ in range(40):
        actions = rng.integers(0, 12, 7)
        result = together.step_into(actions, *seen)
        num_resets += int(result.is_reset.sum())
        for env, part, own in zip(twins, parts, alone, strict=True):
            expected = env.step_into(actions[part], *own)
            for name in type(result).__dataclass_fields__:
                np.testing.assert_array_equal(getattr(result, name)[part], getattr(expected, name))
            for all_cars, these in zip(seen, own, strict=True):
                np.testing.assert_array_equal(all_cars[part], these)
    assert num_resets > 3


def test_races_go_on_from_what_was_saved(tracks, settings) -> None:
    first, again, seen, other = (
        *(CarsOnTracks(4, tracks[:2], settings) for _ in range(2)),
        arrays(4),
        arrays(4),
    )
    first.reset_into(*seen, 3)
    actions = np.array([3, 0, 5, 1])
    for _ in range(5):
        first.step_into(actions, *seen)
    again.reset_into(*other, 9)
    again.load_state_dict(first.state_dict())
    for _ in range(30):
        one, two = first.step_into(actions, *seen), again.step_into(actions, *other)
        np.testing.assert_array_equal(one.progress_m, two.progress_m)
    for here, there in zip(seen, other, strict=True):
        np.testing.assert_array_equal(here, there)


def test_of_more_tracks_than_cars_some_are_raced_on(tracks, settings) -> None:
    assert [track.uid for track in CarsOnTracks(2, tracks, settings).tracks] == [tracks[0].uid, tracks[2].uid]
    assert [track.uid for track in CarsOnTracks(1, tracks, settings).tracks] == [tracks[0].uid]
