"""Other light and noise over finished frames, for domain randomisation.

Noise comes from a counter: pixel p of frame n takes hash(keys[n], p), whatever the size of the batch. It is the sum of
eight random bytes, near enough to a normal distribution: bounded by 4.9 standard deviations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.errors import UserError
from rulka.simulator.compiling import cached_kernel, inlined_kernel

HALF, LARGEST = np.float32(0.5), np.float32(255.0)
MEAN, DEVIATION = np.float32(8 * 127.5), np.float32(np.sqrt(8 * (256**2 - 1) / 12.0))
"""Of the sum of eight random bytes."""
BYTE, EIGHT = np.uint64(255), np.uint64(8)
STEP = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class RelightError(UserError):
    """Arrays that cannot be relit; the message names the array."""


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
def relight_frames(
    pixels: NDArray[np.uint8],
    gain: NDArray[np.float32],
    offset: NDArray[np.float32],
    noise_std: NDArray[np.float32],
    keys: NDArray[np.uint64],
) -> None:
    """Does the work of `relight`, which checks the arguments; here the frames are [N, H W]."""
    for n in range(pixels.shape[0]):
        scale, key = noise_std[n] / DEVIATION, keys[n]
        for p in range(pixels.shape[1]):
            value = np.float32(pixels[n, p]) * gain[n] + offset[n]
            if scale > np.float32(0.0):
                noise = byte_sum(hashed(key, np.uint64(p)))
                value += (np.float32(np.int32(noise)) - MEAN) * scale
            pixels[n, p] = np.uint8(np.int32(min(max(value, np.float32(0.0)), LARGEST) + HALF))


def relight(
    images: NDArray[np.uint8],
    gain: NDArray[np.float32],
    offset: NDArray[np.float32],
    noise_std: NDArray[np.float32],
    keys: NDArray[np.uint64],
) -> None:
    """Changes brightness and contrast of frames and adds noise, in place: pixel * gain + offset + noise, 0 to 255.

    A frame depends on its own numbers alone, to the bit, not on the rest of the batch.

    Args:
        images: [N, H, W] uint8, contiguous; overwritten.
        gain: [N] float32 factor.
        offset: [N] float32 grey levels added.
        noise_std: [N] float32 standard deviation of each pixel's noise in grey levels, not negative; 0 is none.
        keys: [N] uint64 source of chance of each frame; another one for every frame of a race.

    Raises:
        RelightError: if an array has a wrong shape, type or layout, or a number is not finite or negative noise.
    """
    if images.dtype != np.uint8 or images.ndim != 3 or not images.flags.c_contiguous:
        message = f"relighting needs contiguous uint8 images [N, H, W], got {images.dtype} {images.shape}"
        raise RelightError(message)
    for name, values, dtype in (
        ("gain", gain, np.float32),
        ("offset", offset, np.float32),
        ("noise_std", noise_std, np.float32),
        ("keys", keys, np.uint64),
    ):
        if values.dtype != dtype or values.shape != (len(images),):
            message = (
                f"{len(images)} images need as many {name} of {np.dtype(dtype)}, got {values.dtype} {values.shape}"
            )
            raise RelightError(message)
        if not np.isfinite(values).all() or (name == "noise_std" and (values < 0).any()):
            message = f"{name} holds a value that is not finite or, of noise, negative"
            raise RelightError(message)
    flat = images.reshape(len(images), images.shape[1] * images.shape[2])
    contiguous = np.ascontiguousarray
    relight_frames(flat, contiguous(gain), contiguous(offset), contiguous(noise_std), contiguous(keys))
