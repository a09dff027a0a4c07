"""Every algorithm, objective and level learns what it learned when `values.json` was written: to the bit on a processor
of a maker that it names, and in the first updates on any.

A change that is meant to change numbers writes them anew (`python -m tests.golden.runs --write`), and its commit says
which and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.golden.runs import AGENTS, LEVELS, NUM_FIRST, compute, maker, read_values


def first_metrics(run: Mapping[str, Any]) -> dict[str, float]:
    """Returns what each metric was when it was there for the first time."""
    return {name: values["shown"][0] for name, values in run.items() if isinstance(values, dict)}


def test_the_first_updates() -> None:
    """Of every algorithm, so that a line that is lost from a loss or an update shows in the fast tier.

    An update makes several gradient steps, so that means over it show what the earlier ones did to the weights.
    """
    found = compute(*NUM_FIRST, "--first")
    for values in read_values().values():
        for name, run in found.items():
            assert first_metrics(run) == pytest.approx(first_metrics(values[name]), rel=1e-4, abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [*AGENTS, *LEVELS])
@pytest.mark.skipif(maker() not in read_values(), reason=f"no values of processors by {maker() or 'an unknown maker'}")
def test_a_whole_run(name: str) -> None:
    known = read_values()[maker()]
    if name == "operations" and name not in known:
        pytest.skip(f"no processor by {maker()} has added its values")
    assert compute(name)[name] == known[name]


def test_every_run_has_values() -> None:
    for values in read_values().values():
        assert {"operations", *values} == {*AGENTS, *LEVELS}
