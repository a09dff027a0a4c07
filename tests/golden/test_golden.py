"""Every algorithm, objective and level learns to the bit what it learned when `values.json` was written.

A change that is meant to change numbers writes them anew (`python -m tests.golden.runs --write`), and its commit says
which and why.
"""

from __future__ import annotations

import platform

import pytest

from tests.golden.runs import AGENTS, LEVELS, compute, read_values

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the values are those of x86-64 processors")


FIRST = ("iqn", "ppo", "impala", "grpo", "dpo", "pql")


def test_the_first_updates() -> None:
    """Of every algorithm, so that a line that is lost from a loss or an update shows in the fast tier."""
    found, expected = compute(*FIRST, "--early"), read_values()
    assert {name: values["early"] for name, values in found.items()} == {
        name: expected[name]["early"] for name in FIRST
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [*AGENTS, *LEVELS])
def test_a_whole_run(name: str) -> None:
    assert compute(name)[name] == read_values()[name]


def test_every_run_has_values() -> None:
    assert set(read_values()) == {*AGENTS, *LEVELS}
