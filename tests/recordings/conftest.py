"""Limits on work and memory of readers."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest

from tests.recordings import forge as hand

MAX_STEPS = 5_000_000


@contextmanager
def little_work() -> Iterator[None]:
    """Fails the test after `MAX_STEPS` calls and returns, about two seconds of work; independent of machine speed."""
    num_steps, before = 0, sys.getprofile()

    def count(*_: object) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps > MAX_STEPS:
            pytest.fail(f"more than {MAX_STEPS:,} calls and returns")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def little_memory(max_bytes: int) -> Iterator[None]:
    """Fails if peak memory reaches `max_bytes`."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < max_bytes


@pytest.fixture
def forge() -> ModuleType:
    return hand


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
