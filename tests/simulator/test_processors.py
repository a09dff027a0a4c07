"""The same race on every processor, bit by bit."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from numpy._core import _multiarray_umath as core  # no public module has the features

from rulka.tracks.campaign_slugs import CAMPAIGN_SLUGS
from rulka.tracks.trigonometry import sin_cos
from tests.simulator.laps import hashes, hashes_on

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="forces instruction sets of x86")
THOUSAND = 91, 600, 6, *CAMPAIGN_SLUGS
NEEDS = {"SSE2": "X86_V2", "AVX2": "X86_V3", "AVX-512": "X86_V4"}


def test_without_avx_and_fma_every_bit_is_the_same() -> None:
    assert hashes_on("SSE2", 4, 40, 1, "patchwork") == hashes(4, 40, 1, "patchwork")


@pytest.fixture(scope="module")
def thousand() -> dict[str, str]:
    """Hashes of 91 cars on each of 11 roads, for 30 s, which is longer than most laps."""
    return hashes(*THOUSAND)


@pytest.mark.slow
@pytest.mark.parametrize("processor", list(NEEDS))
def test_a_thousand_laps_are_the_same_on_every_processor(thousand: dict[str, str], processor: str) -> None:
    """Ticks, images, floats, rewards and tracks."""
    if not core.__cpu_features__.get(NEEDS[processor]):
        pytest.skip(f"this processor has no {processor}")
    assert hashes_on(processor, *THOUSAND) == thousand


def test_sine_and_cosine_are_within_a_bit_of_those_of_numpy() -> None:
    angle = np.concatenate(
        [
            np.random.default_rng(0).uniform(-10.0, 10.0, 10_000),
            np.random.default_rng(1).uniform(-1e6, 1e6, 10_000),
            np.arange(-4000, 4000) * np.pi / 4.0,
        ]
    )
    sine, cosine = sin_cos(angle)
    np.testing.assert_allclose(sine, np.sin(angle), rtol=0.0, atol=2.3e-16)
    np.testing.assert_allclose(cosine, np.cos(angle), rtol=0.0, atol=2.3e-16)
    assert [part.tolist() for part in sin_cos([[0.0]])] == [[[0.0]], [[1.0]]]
