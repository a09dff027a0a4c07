"""Which races are held out: decided by a hash of each race's id, so that it never changes when races are added."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal


def place(race_id: str) -> float:
    """Returns a number in [0, 1) that depends on nothing but the id."""
    return int.from_bytes(hashlib.sha256(race_id.encode()).digest()[:8], "big") / 2**64


def split_races(race_ids: Sequence[str], validation_fraction: float) -> dict[str, Literal["train", "validation"]]:
    """Assigns every race to training or validation.

    With two races or more and a positive fraction, each side gets at least one: the race with the lowest place is
    validated on, the one with the highest is trained on. A single race is trained on.

    Args:
        race_ids: distinct ids, in any order.
        validation_fraction: share of races to hold out, in [0, 1].
    """
    ordered = sorted(race_ids, key=place)
    num_held_out = sum(place(race_id) < validation_fraction for race_id in ordered)
    if validation_fraction > 0:
        num_held_out = max(num_held_out, 1)
    num_held_out = min(num_held_out, len(ordered) - 1)
    return {race_id: "validation" if at < num_held_out else "train" for at, race_id in enumerate(ordered)}
