"""Splits races by a hash of the race id, so that splits hardly ever change when races are added.

The validation split is for selection, for example of the epoch; the test split is held out and only measured on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def hash_fraction(race_id: str) -> float:
    """Hashes a race id to a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(race_id.encode()).digest()[:8], "big") / 2**64


def split_races(race_ids: Sequence[str], validation_fraction: float, test_fraction: float) -> dict[str, Split]:
    """Assigns every race of a map to a split.

    Validation gets the races with the lowest hashes, test the next ones, training the rest. A split with a positive
    fraction gets at least one race if there are enough, in the order training, validation, test. If the hashes alone
    give every split a race, adding a race moves no other.

    Args:
        race_ids: distinct ids, in any order.
        validation_fraction: share of validation races, in [0, 1].
        test_fraction: share of test races, in [0, 1].
    """
    ordered = sorted(race_ids, key=hash_fraction)
    hashes = [hash_fraction(race_id) for race_id in ordered]
    ends = validation_fraction, validation_fraction + test_fraction
    num_validation = max(sum(at < ends[0] for at in hashes), validation_fraction > 0)
    num_test = max(sum(ends[0] <= at < ends[1] for at in hashes), test_fraction > 0)
    num_free = len(ordered) - 1
    num_validation = min(num_validation, max(num_free - (test_fraction > 0), min(num_free, 1)))
    num_test = min(num_test, num_free - num_validation)
    num_held_out = num_validation + num_test

    def split_of(at: int) -> Split:
        return "validation" if at < num_validation else "test" if at < num_held_out else "train"

    return {race_id: split_of(at) for at, race_id in enumerate(ordered)}


def split_maps(map_of: Mapping[str, str], validation_fraction: float, test_fraction: float) -> dict[str, Split]:
    """Assigns races to splits, each map separately; see `split_races`.

    Args:
        map_of: UID of the map by race id.
        validation_fraction: share of validation races in each map.
        test_fraction: share of test races in each map.
    """
    splits: dict[str, Split] = {}
    for uid in sorted(set(map_of.values())):
        of_map = [race_id for race_id, other in map_of.items() if other == uid]
        splits |= split_races(of_map, validation_fraction, test_fraction)
    return splits
