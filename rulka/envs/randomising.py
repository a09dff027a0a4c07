"""Domain randomisation: each race draws its friction, physics, camera, light and noise at its start.

Dimensions: N cars, H x W pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.compiling import cached_kernel, inlined_kernel
from rulka.simulator.params import CameraParams, PhysicsParams
from rulka.simulator.race_params import RandomisationParams
from rulka.simulator.render import camera_array

FRICTION, BACK, HEIGHT, PITCH, GAIN, OFFSET, NOISE, KEY, NUM_DRAWS = range(9)
"""Columns of the draws, each uniform in [0, 1)."""
PHYSICS_SPREAD = {
    "sliding_push_mps2": 0.088,
    "locked_brake_mps2": 0.043,
    "locked_grip": 0.058,
    "turn_rate_rps": 0.005,
    "yaw_per_s": 0.009,
    "steer_per_s": 0.229,
    "steer_radius_m": 0.136,
    "steer_radius_s": 0.09,
    "stiffness_per_s": 0.035,
    "side_grip_mps2": 0.068,
    "slide_grip_mps2": 0.056,
    "excess_grip": 0.096,
    "axle_m": 0.065,
    "scrub": 0.139,
    "dirt_grip": 0.129,
    "dirt_slide": 0.033,
    "dirt_push": 0.055,
    "slope_loss": 0.146,
    "rolling": 0.079,
    "rest_m": 0.199,
    "travel_m": 0.093,
    "engine_brake_per_s": 0.006,
}
"""Standard deviations of the logarithms of fitted parameters, over leave-one-map-out fits
(docs/calibration/calibration.json); for a curve, that of its mean."""
NUM_VARIANTS = 16
"""Number of physics variants, assigned to races at random."""
MIN_HEIGHT_M, MAX_PITCH_DEG = 0.1, 59.0
"""Limits of camera randomisation."""
FRAME_KEY = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier that spreads frame times over the noise keys."""
HALF, LARGEST = np.float32(0.5), np.float32(255.0)
MEAN, DEVIATION = np.float32(8 * 127.5), np.float32(np.sqrt(8 * (256**2 - 1) / 12.0))
"""Mean and standard deviation of the sum of eight random bytes."""
EIGHT = np.uint64(8)
STEP = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@inlined_kernel
def hashed(key: Any, counter: Any) -> Any:
    """SplitMix64 of a key and a counter (S. Vigna, https://prng.di.unimi.it/splitmix64.c)."""
    z = key + (counter + np.uint64(1)) * STEP
    z = (z ^ (z >> SHIFTS[0])) * FIRST
    z = (z ^ (z >> SHIFTS[1])) * SECOND
    return z ^ (z >> SHIFTS[2])


@inlined_kernel
def byte_sum(bits: Any) -> Any:
    """Sum of the eight bytes of a number."""
    pairs = (bits & np.uint64(0x00FF00FF00FF00FF)) + ((bits >> EIGHT) & np.uint64(0x00FF00FF00FF00FF))
    return (pairs * np.uint64(0x0001000100010001)) >> np.uint64(48)


@cached_kernel
def relight(
    pixels: NDArray[np.uint8],
    gain: NDArray[np.float32],
    offset: NDArray[np.float32],
    noise_std: NDArray[np.float32],
    keys: NDArray[np.uint64],
) -> None:
    """Changes brightness and contrast of frames and adds noise, in place: pixel * gain + offset + noise, 0 to 255.

    A frame depends bit for bit on its own arguments only, not on the rest of the batch. Noise is counter-based: pixel p
    of frame n takes hash(keys[n], p). It is the sum of eight random bytes, approximately normal and bounded by 4.9
    standard deviations.

    Args:
        pixels: [N, H W] overwritten.
        gain: [N] factor.
        offset: [N] grey levels added.
        noise_std: [N] standard deviation of each pixel's noise in grey levels, not negative; 0 is none.
        keys: [N] noise key of each frame; different for every frame of a race.
    """
    for n in range(pixels.shape[0]):
        scale, key = noise_std[n] / DEVIATION, keys[n]
        for p in range(pixels.shape[1]):
            value = np.float32(pixels[n, p]) * gain[n] + offset[n]
            if scale > np.float32(0.0):
                noise = byte_sum(hashed(key, np.uint64(p)))
                value += (np.float32(np.int32(noise)) - MEAN) * scale
            pixels[n, p] = np.uint8(np.int32(min(max(value, np.float32(0.0)), LARGEST) + HALF))


def physics_variants(physics: PhysicsParams, scale: float) -> list[PhysicsParams]:
    """Returns random physics around the given one, spread by `scale` times `PHYSICS_SPREAD`; none if `scale` is 0."""
    draws = np.random.default_rng(0).standard_normal((NUM_VARIANTS if scale > 0.0 else 0, len(PHYSICS_SPREAD)))
    factors = np.exp(scale * draws * list(PHYSICS_SPREAD.values()))
    variants = []
    for row in factors.tolist():
        changed = {name: _times(getattr(physics, name), by) for name, by in zip(PHYSICS_SPREAD, row, strict=True)}
        variants.append(PhysicsParams.model_validate(physics.model_dump() | changed))
    return variants


def _times(value: Any, factor: float) -> Any:
    """Multiplies a number, or the values of a curve, by a factor."""
    return value * factor if isinstance(value, float) else tuple((speed, height * factor) for speed, height in value)


class Randomiser:
    """Randomised properties of the races of a batch.

    Attributes:
        draws: [N, NUM_DRAWS] random draws of each car's race; they determine everything else.
    """

    def __init__(self, params: RandomisationParams, camera: CameraParams, num_cars: int) -> None:
        self._params, self._camera = params, camera
        self.draws = np.full((num_cars, NUM_DRAWS), 0.5)

    def begin(self, which: NDArray[np.bool_], draws: NDArray[np.float64]) -> None:
        """Sets the draws of the masked cars [N] from rows [N, NUM_DRAWS]."""
        self.draws[which] = draws[which]

    def friction(self) -> NDArray[np.float64]:
        """Returns the factors [N] on the grip."""
        return 1.0 + self._params.friction * self._spread(FRICTION)

    def variants(self) -> NDArray[np.int64]:
        """Returns the indices [N] into `physics_variants`, from 1; 0 if physics is not randomised."""
        if self._params.physics <= 0.0:
            return np.zeros(len(self.draws), np.int64)
        # Uses the noise key: an additional column would change all other draws of a seed.
        return 1 + (self.draws[:, KEY] * NUM_VARIANTS).astype(np.int64)

    def cameras(self) -> NDArray[np.float32]:
        """Returns the camera [N, 5] of each car."""
        moved = self._params.camera_m
        back = self._camera.back_m + moved * self._spread(BACK)
        height = np.maximum(self._camera.height_m + moved * self._spread(HEIGHT), MIN_HEIGHT_M)
        pitch = self._camera.pitch_deg + self._params.camera_deg * self._spread(PITCH)
        pitch = np.clip(pitch, -MAX_PITCH_DEG, MAX_PITCH_DEG)
        numbers = zip(back.tolist(), height.tolist(), pitch.tolist(), strict=True)
        return np.stack(
            [
                camera_array(self._camera.model_copy(update={"back_m": b, "height_m": h, "pitch_deg": p}))
                for b, h, p in numbers
            ]
        )

    def relight(self, images: NDArray[np.uint8], time_ms: NDArray[np.int64]) -> None:
        """Changes light and noise of frames [N, H, W] in place; noise depends on `time_ms` [N]."""
        params = self._params
        gain = (1.0 + params.light_gain * self._spread(GAIN)).astype(np.float32)
        offset = (params.light_offset * self._spread(OFFSET)).astype(np.float32)
        noise = (params.pixel_noise * self.draws[:, NOISE]).astype(np.float32)
        keys = (self.draws[:, KEY] * 2.0**53).astype(np.uint64) + time_ms.astype(np.uint64) * FRAME_KEY
        relight(images.reshape(len(images), -1), gain, offset, noise, keys)

    def _spread(self, column: int) -> NDArray[np.float64]:
        """Returns a column of the draws [N], scaled to -1 to 1."""
        return 2.0 * self.draws[:, column] - 1.0
