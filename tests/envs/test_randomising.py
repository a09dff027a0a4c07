"""Domain randomisation: nothing when off, something for each of its parts, the same again from the same seed."""

import numpy as np
import pytest
from pydantic import ValidationError

from rulka.envs.race import RaceEnv
from rulka.params import reference_params
from rulka.race_params import RandomisationParams
from rulka.race_settings import ALIKE
from rulka.simulator.simulator import Simulator, SimulatorError

GAS_LEFT = 1
EVERYTHING = RandomisationParams(
    friction=0.3, camera_m=1.0, camera_deg=5.0, light_gain=0.2, light_offset=20.0, pixel_noise=8.0
)


def only(name: str) -> RandomisationParams:
    return ALIKE.model_copy(update={name: getattr(EVERYTHING, name)})


def race(env, seed: int, **options: float) -> tuple[np.ndarray, np.ndarray]:
    """Images and floats of twenty decisions to the left."""
    seen = [env.reset(seed=seed, options=options)[0]]
    seen += [env.step(np.full(env.action_space.shape, GAS_LEFT))[0] for _ in range(20)]
    return np.array([one["image"] for one in seen]), np.array([one["floats"] for one in seen])


def test_it_is_off_by_default_in_the_parameters_and_the_environments(make_env) -> None:
    assert reference_params().train.randomisation == ALIKE
    assert ALIKE.is_off
    assert not EVERYTHING.is_off
    assert make_env().settings.randomisation is ALIKE


def test_starts_do_not_depend_on_it(make_env) -> None:
    """The first race of a seed begins at the same place, whatever is randomised."""
    for seed in range(5):
        places = []
        for chosen in (ALIKE, EVERYTHING):
            env = make_env(randomisation=chosen, start_anywhere=0.5)
            env.reset(seed=seed)
            places.append(env.batch.simulator.cars.tobytes())
        assert places[0] == places[1]


def test_friction_changes_the_path_alone(make_env) -> None:
    plain, slippery = (race(make_env(randomisation=chosen), 3, speed_mps=18.0) for chosen in (ALIKE, only("friction")))
    assert np.array_equal(plain[0][0], slippery[0][0])
    assert not np.array_equal(plain[1][-1], slippery[1][-1])


@pytest.mark.parametrize("name", ["camera_m", "camera_deg", "light_gain", "light_offset", "pixel_noise"])
def test_each_part_changes_the_image_alone(make_env, name: str) -> None:
    plain, changed = (race(make_env(randomisation=chosen), 3) for chosen in (ALIKE, only(name)))
    assert np.array_equal(plain[1], changed[1])
    assert not np.array_equal(plain[0], changed[0])
    other = race(make_env(randomisation=only(name)), 4)
    assert np.array_equal(race(make_env(randomisation=only(name)), 4)[0], other[0])
    assert not np.array_equal(changed[0][0], other[0][0])


def test_noise_is_as_strong_as_asked_and_new_in_every_frame(make_env) -> None:
    env, plain = make_env(randomisation=only("pixel_noise")), make_env()
    noisy, clean = (np.clip(race(one, 3)[0].astype(float), 30, 225) for one in (env, plain))
    noise = (noisy - clean)[:, 0]
    strength = 8.0 * env.batch.save().draws[0, 6]
    assert strength > 1.0
    assert noise.std() == pytest.approx(strength, rel=0.15)
    assert not np.array_equal(noise[0], noise[1])


def test_a_vector_is_as_many_single_ones_and_is_restored(make_env, make_vector) -> None:
    vector = make_vector(3, randomisation=EVERYTHING, max_race_s=0.5)
    images, floats = race(vector, 7)
    env = make_env(randomisation=EVERYTHING, max_race_s=0.5)
    seen = [env.reset(seed=9)[0]]
    is_over = False
    for _ in range(20):
        observation, _, terminated, truncated, _ = (
            (env.reset()[0], 0, False, False, 0) if is_over else env.step(GAS_LEFT)
        )
        is_over = terminated or truncated
        seen.append(observation)
    assert np.array_equal(images[:, 2], np.array([one["image"] for one in seen]))
    assert np.array_equal(floats[:, 2], np.array([one["floats"] for one in seen]))
    saved = vector.batch.save()
    expected = vector.step(np.zeros(3, np.int64))[0]["image"]
    twin = make_vector(3, randomisation=EVERYTHING, max_race_s=0.5)
    twin.reset(seed=1, options={"state": saved})
    assert np.array_equal(twin.step(np.zeros(3, np.int64))[0]["image"], expected)
    with pytest.raises(SimulatorError, match="another domain randomisation"):
        make_vector(3).reset(options={"state": saved})


def test_friction_lasts_until_the_reset(straight, make_env) -> None:
    reference = RaceEnv(straight).settings
    simulator = Simulator(straight, 3, reference.simulator, reference.table)
    everyone = np.ones(3, bool)
    simulator.set_friction(np.array([False, True, False]), 0.3)
    simulator.step_controls(np.array([[-1.0, 1.0, 0.0]] * 3, np.float32))
    for _ in range(30):
        simulator.step(np.full(3, GAS_LEFT))
    assert simulator.cars[0].tobytes() == simulator.cars[2].tobytes() != simulator.cars[1].tobytes()
    simulator.reset(everyone)
    for _ in range(30):
        simulator.step(np.full(3, GAS_LEFT))
    assert simulator.cars[0].tobytes() == simulator.cars[1].tobytes()
    for wrong in (0.0, -1.0, np.nan):
        with pytest.raises(SimulatorError, match="positive numbers"):
            simulator.set_friction(everyone, wrong)


def test_wrong_amounts_are_refused() -> None:
    for update in ({"friction": 1.0}, {"pixel_noise": -1.0}, {"camera_m": float("nan")}, {"colour": 1.0}):
        with pytest.raises(ValidationError):
            RandomisationParams.model_validate(ALIKE.model_dump() | update)
