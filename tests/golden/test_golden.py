"""Every algorithm, objective and level learns to the bit what it learned when `values.json` was written.

A change that is meant to change numbers writes them anew (`python -m tests.golden.runs --write`), and its commit says
which and why.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import pytest

from tests.golden.runs import AGENTS, LEVELS, NUM_FIRST, compute, read_values

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the values are those of x86-64 processors")


def first_metrics(run: Mapping[str, Any]) -> dict[str, float]:
    """Returns what each metric was when it was there for the first time."""
    return {name: values["shown"][0] for name, values in run.items() if isinstance(values, dict)}


def test_the_first_updates() -> None:
    """Of every algorithm, so that a line that is lost from a loss or an update shows in the fast tier.

    An update makes several gradient steps, so that means over it show what the earlier ones did to the weights.
    """
    found, expected = compute(*NUM_FIRST, "--first"), read_values()
    for name, run in found.items():
        assert first_metrics(run) == first_metrics(expected[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [*AGENTS, *LEVELS])
def test_a_whole_run(name: str) -> None:
    assert compute(name)[name] == read_values()[name]


def test_every_run_has_values() -> None:
    assert set(read_values()) == {*AGENTS, *LEVELS}
