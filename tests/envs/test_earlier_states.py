"""Races that begin where an earlier one of their car was."""

import numpy as np

from rulka.envs.starts import EVERY_MS, NUM_HELD_BACK
from rulka.simulator.car import TIME_MS, VX

NUM_CARS = 3
OPTIONS = {"start_from_earlier": 1.0, "start_lateral_m": 2.0, "no_progress_s": 1.5}
HELD_BACK_S = NUM_HELD_BACK * EVERY_MS / 1000


def drive(env, num_steps: int, seed: int) -> np.ndarray:
    """Drives ahead, now and then to a side; returns the states of all cars after each step."""
    rng, states = np.random.default_rng(seed), []
    for _ in range(num_steps):
        env.step(np.where(rng.random(env.num_envs) < 0.8, 0, rng.integers(0, 12, env.num_envs)))
        states.append(env.batch.simulator.save())
    return np.array(states)


def test_a_race_begins_where_one_was_two_seconds_and_more_before_its_end(make_vector) -> None:
    env = make_vector(NUM_CARS, **OPTIONS)
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


def test_a_new_seed_begins_with_nothing_kept(make_vector) -> None:
    env = make_vector(NUM_CARS, **OPTIONS)
    env.reset(seed=4)
    first = drive(env, 300, seed=3)
    env.reset(seed=4)
    assert np.array_equal(drive(env, 300, seed=3), first)


def test_a_told_place_is_kept_to(make_vector) -> None:
    env = make_vector(NUM_CARS, **OPTIONS)
    env.reset(seed=4)
    drive(env, 300, seed=3)
    env.reset(options={"along_m": 30.0})
    assert env.batch.simulator.along_m.tolist() == [30.0] * NUM_CARS
