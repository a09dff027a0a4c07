"""Domain randomisation: nothing when off, something for each of its parts, the same again from the same seed."""

import json
from pathlib import Path

import numpy as np
import pytest

from rulka.envs.randomising import NUM_VARIANTS, PHYSICS_SPREAD, physics_variants
from rulka.envs.randomising import relight as relight_pixels
from rulka.params import read_params
from rulka.simulator import car as columns
from rulka.simulator.race_params import RandomisationParams
from rulka.simulator.race_settings import ALIKE

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


def test_the_spread_of_the_physics_is_that_of_the_report() -> None:
    report = json.loads(Path("docs/calibration/calibration.json").read_text(encoding="utf-8"))
    assert report["spread"] == PHYSICS_SPREAD


def test_physics_differ_from_race_to_race(make_vector) -> None:
    vector = make_vector(8, randomisation=RandomisationParams(physics=1.0))
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


def test_each_part_changes_the_image_alone(make_env) -> None:
    plain = race(make_env(), 3)
    for name in ("camera_m", "camera_deg", "light_gain", "light_offset", "pixel_noise"):
        changed, again, other = (race(make_env(randomisation=only(name)), seed) for seed in (3, 3, 4))
        assert np.array_equal(plain[1], changed[1])
        assert not np.array_equal(plain[0], changed[0])
        assert np.array_equal(again[0], changed[0])
        assert not np.array_equal(changed[0][0], other[0][0])


def numbers(count, gain=1.0, offset=0.0, noise=0.0):
    full = [np.full(count, value, np.float32) for value in (gain, offset, noise)]
    return (*full, np.arange(count, dtype=np.uint64) * np.uint64(977) + np.uint64(3))


def relight(images, *numbers) -> None:
    relight_pixels(images.reshape(len(images), -1), *numbers)


def test_gain_and_offset_by_hand() -> None:
    """10 * 1.5 - 4 = 11, 100 -> 146, 200 -> 296, cut at 255, 0 -> -4, cut at 0."""
    images = np.array([[[10, 100], [200, 0]]], np.uint8)
    relight(images, *numbers(1, 1.5, -4.0))
    assert images.tolist() == [[[11, 146], [255, 0]]]


def test_noise_has_the_deviation_asked_for_and_no_pattern() -> None:
    images = np.full((2, 128, 128), 128, np.uint8)
    relight(images, *numbers(2, noise=10.0))
    noise = images.astype(float) - 128.0
    assert noise.mean() == pytest.approx(0.0, abs=0.25)
    assert noise.std() == pytest.approx(10.0, rel=0.02)
    within = (np.abs(noise) < 10.0).mean()  # rounded, so within 9.5; a normal distribution has 65.8 % there
    assert within == pytest.approx(0.658, abs=0.012)
    neighbours = [noise[:, :, 1:] * noise[:, :, :-1], noise[:, 1:] * noise[:, :-1], noise[0] * noise[1]]
    assert all(abs(product.mean()) < 3.0 for product in neighbours), "100 would be the same noise"


def test_a_frame_does_not_depend_on_its_batch() -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 16, 16)).astype(np.uint8)
    arguments = numbers(5, 0.8, 5.0, 6.0)
    together = images.copy()
    relight(together, *arguments)
    for k in (0, 3, 4):
        alone = images[k : k + 1].copy()
        relight(alone, *(values[k : k + 1] for values in arguments))
        assert np.array_equal(alone[0], together[k])
