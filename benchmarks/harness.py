"""Helpers of the benchmarks: interleaved timing of variants, and printing of results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Variants = dict[str, Callable[[], int]]
"""Functions to measure, by name; each call returns the number of samples or decisions processed."""
Rates = dict[str, float]
SMALL = 100.0
"""Numbers from here on are printed without decimals."""


def best_rates(
    variants: Variants,
    num_tries: int,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[], object] = lambda: None,
) -> Rates:
    """Returns the rate per second of each variant, the best of interleaved tries after one warm-up.

    Args:
        variants: functions to measure, by name.
        num_tries: counted tries of each.
        clock: clock of wall time or CPU time.
        wait: waits for pending work of the device.
    """
    best = dict.fromkeys(variants, 0.0)
    for attempt in range(num_tries + 1):
        for name, run in variants.items():
            start_s = clock()
            num_made = run()
            wait()
            if attempt:
                best[name] = max(best[name], num_made / max(clock() - start_s, 1e-9))
    return best


def show(found: Mapping[str, Any], as_json: bool) -> None:
    """Prints (possibly nested) results by name, as one JSON object or one line each."""
    for line in [json.dumps(found)] if as_json else _lines(found, ""):
        print(line)


def _lines(found: Mapping[str, Any], inside: str) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield f"{inside}{name}"
            yield from _lines(value, f"{inside}  ")
        else:
            is_number = isinstance(value, int | float)
            text = format(value, ",.4g" if abs(value) < SMALL else ",.0f") if is_number else str(value)
            yield f"{f'{inside}{name}':50s} {text:>12s}"
