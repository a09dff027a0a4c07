"""Domain randomisation: the same starts as without it, physics that differ, the same again from the same seed."""

import json
from pathlib import Path

import numpy as np
import pytest

from rulka.envs.randomising import NUM_VARIANTS, PHYSICS_SPREAD, physics_variants
from rulka.params import read_params
from rulka.simulator import car as columns
from rulka.simulator.race_params import RandomisationParams
from rulka.simulator.race_settings import ALIKE

GAS_LEFT = 1
VARIED = RandomisationParams(physics=1.0)


def race(env, seed: int) -> np.ndarray:
    """Floats of twenty decisions to the left."""
    seen = [env.reset(seed=seed, options={"speed_mps": 18.0})[0]]
    seen += [env.step(np.full(env.action_space.shape, GAS_LEFT))[0] for _ in range(20)]
    return np.array([one["floats"] for one in seen])


def test_starts_do_not_depend_on_it(make_env) -> None:
    """The first race of a seed begins at the same place, whether physics is randomised or not."""
    for seed in range(5):
        places = []
        for chosen in (ALIKE, VARIED):
            env = make_env(randomisation=chosen, start_anywhere=0.5)
            env.reset(seed=seed)
            cars = env.batch.simulator.save()
            places.append(np.delete(cars, columns.VARIANT, axis=1).tobytes())
        assert places[0] == places[1]


def test_physics_change_the_path_and_repeat(make_env) -> None:
    plain, varied, again = (race(make_env(randomisation=chosen), 3) for chosen in (ALIKE, VARIED, VARIED))
    assert not np.array_equal(plain[-1], varied[-1])
    assert np.array_equal(varied, again)


def test_the_spread_of_the_physics_is_that_of_the_report() -> None:
    report = json.loads(Path("docs/calibration/calibration.json").read_text(encoding="utf-8"))
    assert report["spread"] == PHYSICS_SPREAD


def test_physics_differ_from_race_to_race(make_vector) -> None:
    vector = make_vector(8, randomisation=VARIED)
    vector.reset(seed=3)
    simulator = vector.batch.simulator
    variants = simulator.save()[:, columns.VARIANT]
    assert len(set(variants)) > 4
    assert variants.min() >= 1.0
    own = read_params().simulator.physics
    for scale in (0.5, 1.0):
        made = physics_variants(own, scale)
        assert len(made) == NUM_VARIANTS
        for name, spread in PHYSICS_SPREAD.items():
            values = [np.array(getattr(one, name), np.float64) for one in made]
            apart = np.log(np.array([value if value.ndim == 0 else value[-1, 1] for value in values]))
            assert apart.std() == pytest.approx(scale * spread, rel=0.6)
    assert physics_variants(own, 0.0) == []
