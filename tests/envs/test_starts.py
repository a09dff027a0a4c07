"""Races that begin alike, and races that begin where an earlier one of their car was."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.envs.cars_on_tracks import CarsOnTracks
from rulka.envs.starts import EVERY_MS, NUM_HELD_BACK, NUM_PLACES, EqualStarts
from rulka.machine.errors import UserError
from rulka.simulator.car import ALONG, TIME_MS, VX
from rulka.simulator.race_settings import read_settings
from rulka.simulator.simulator import SimulatorError
from rulka.tracks.track import Track

ANYWHERE = {"start_anywhere": 0.5, "start_lateral_m": 2.0, "start_heading_deg": 5.0, "max_race_s": 1.5}


def generators(*seeds: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in seeds]


def only(num_cars: int, *cars: int) -> np.ndarray:
    which = np.zeros(num_cars, np.bool_)
    which[list(cars)] = True
    return which


def test_a_start_is_dealt_to_whoever_begins_next() -> None:
    """Groups of two of four cars: car 0 begins three races while car 1 begins one, and the other group goes its way."""
    own = generators(5, 6, 7, 8)
    starts, expected = EqualStarts(4, 2, 3), [generator.random((4, 3)) for generator in generators(5, 7)]
    first = starts.draw(only(4, 0, 1, 2, 3), own)
    np.testing.assert_array_equal(first, [expected[0][0], expected[0][0], expected[1][0], expected[1][0]])
    np.testing.assert_array_equal(starts.draw(only(4, 0), own)[0], expected[0][1])
    np.testing.assert_array_equal(starts.draw(only(4, 0), own)[0], expected[0][1])
    later = starts.draw(only(4, 1, 3), own)
    np.testing.assert_array_equal(later, [np.zeros(3), expected[0][2], np.zeros(3), expected[1][1]])


def first_views(env, actions: np.ndarray) -> list[list[bytes]]:
    """What each group of four cars of a vector environment saw first in its races, in the order they began."""
    seen: list[list[bytes]] = [[] for _ in range(env.num_envs // 4)]
    view, begins = env.reset(seed=3)[0], np.ones(env.num_envs, np.bool_)
    for chosen in actions:
        for car in np.flatnonzero(begins):
            seen[car // 4].append(view["image"][car].tobytes() + view["floats"][car].tobytes())
        view, *_, info = env.step(chosen)
        begins = info["time_ms"] == 0
    return seen


@pytest.mark.parametrize("randomisation", [{}, {"physics": 1.0}])
def test_races_from_one_start_begin_in_the_same_state(make_vector, randomisation) -> None:
    """Image and floats, to the bit, in fours of the order in which a group's races began; the next start is another."""
    env = make_vector(8, **ANYWHERE, races_per_start=4, randomisation=randomisation)
    actions = np.random.default_rng(1).integers(0, 12, (250, 8))
    seen = first_views(env, actions)
    for group in seen:
        whole = [group[first : first + 4] for first in range(0, len(group) - 3, 4)]
        assert len(whole) > 4
        assert all(len(set(alike)) == 1 for alike in whole)
        assert len({alike[0] for alike in whole}) == len(whole)
    assert seen[0][0] != seen[1][0]


def test_a_reset_of_all_begins_a_new_start(make_vector) -> None:
    """Though the one before it was not driven as often as it is dealt."""
    batch = make_vector(4, **ANYWHERE, races_per_start=4).batch
    batch.reset(generators(5, 6, 7, 8))
    batch.reset(batch.generators, only(4, 0))
    batch.reset(batch.generators)
    assert len(set(batch.simulator.along_m.tolist())) == 1


def test_groups_stay_together_on_several_tracks(straight: Track) -> None:
    """Six groups of two cars on four tracks: no group is parted, and every track is raced on."""
    settings = read_settings(None, ANYWHERE | {"races_per_start": 2})
    cars = CarsOnTracks(12, [straight] * 4, settings)
    assert [part.stop - part.start for part, _ in cars.batches] == [4, 2, 2, 4]


def test_what_does_not_go_with_equal_starts_is_refused(make_vector) -> None:
    with pytest.raises(SimulatorError, match="6 cars are no multiple of races_per_start 4"):
        make_vector(6, races_per_start=4)
    with pytest.raises(UserError, match="races_per_start 4 needs equal starts: set start_from_earlier to 0"):
        read_settings(None, {"start_from_earlier": 0.5, "races_per_start": 4})
    assert read_settings(None, {"races_per_start": 4}).at_line().races_per_start == 1, "of greedy checks"


NUM_CARS = 3
EARLIER = {"start_from_earlier": 1.0, "start_lateral_m": 2.0, "no_progress_s": 1.5}
HELD_BACK_S = NUM_HELD_BACK * EVERY_MS / 1000


def drive(env, num_steps: int, seed: int) -> np.ndarray:
    """Drives ahead, now and then to a side; returns the states of all cars after each step."""
    rng, states = np.random.default_rng(seed), []
    for _ in range(num_steps):
        env.step(np.where(rng.random(env.num_envs) < 0.8, 0, rng.integers(0, 12, env.num_envs)))
        states.append(env.batch.simulator.save())
    return np.array(states)


def test_a_race_begins_where_one_was_two_seconds_and_more_before_its_end(make_vector) -> None:
    env = make_vector(NUM_CARS, **EARLIER)
    env.reset(seed=4)
    num_from_earlier = 0
    for states in drive(env, 800, seed=1).swapaxes(0, 1):
        begins = np.flatnonzero(states[:, TIME_MS] == 0.0)
        for begin in begins:
            if not states[begin, VX : VX + 3].any():
                continue  # stands at the line: nothing was kept yet
            (was_here,) = (states[:begin, :TIME_MS] == states[begin, :TIME_MS]).all(axis=1).nonzero()
            first = was_here[0]
            end = begins[begins > first][0] - 1
            assert (end - first) * 0.05 >= HELD_BACK_S
            assert states[first, TIME_MS] % EVERY_MS == 0.0
            num_from_earlier += 1
    assert num_from_earlier > 10 * NUM_CARS
    kept = env.batch.state_dict()["earlier"][:, :NUM_PLACES]
    car, place = np.nonzero(kept[..., -1])
    assert np.array_equal((kept[car, place, ALONG] / 80.0 * NUM_PLACES).astype(int), place)


def test_a_race_from_an_earlier_state_is_no_full_race(make_vector) -> None:
    """Its time is not that of the whole track."""
    env = make_vector(NUM_CARS, **EARLIER)
    env.reset(seed=4)
    straight_on, num_begun = np.zeros(NUM_CARS, np.int64), 0
    assert env.batch.step(straight_on).is_full_race.all()
    for _ in range(300):
        result = env.batch.step(straight_on)
        moves = env.batch.simulator.save()[:, VX : VX + 3].any(axis=1)
        assert np.array_equal(result.is_full_race[result.is_reset], ~moves[result.is_reset])
        num_begun += int((result.is_reset & moves).sum())
    assert num_begun > NUM_CARS


def test_a_new_seed_begins_with_nothing_kept(make_vector) -> None:
    env = make_vector(NUM_CARS, **EARLIER)
    env.reset(seed=4)
    first = drive(env, 300, seed=3)
    env.reset(seed=4)
    assert np.array_equal(drive(env, 300, seed=3), first)


def test_a_told_place_is_kept_to(make_vector) -> None:
    env = make_vector(NUM_CARS, **EARLIER)
    env.reset(seed=4)
    drive(env, 300, seed=3)
    env.reset(options={"along_m": 30.0})
    assert env.batch.simulator.along_m.tolist() == [30.0] * NUM_CARS
