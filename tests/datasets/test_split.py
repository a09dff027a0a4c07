"""The split of races: fixed for ever by a hash, and never one-sided."""

from __future__ import annotations

import hashlib

import pytest

from rulka.datasets.split import place, split_races


def test_place_by_hand() -> None:
    first = hashlib.sha256(b"race-1").hexdigest()[:16]
    assert place("race-1") == int(first, 16) / 2**64


def test_split_is_frozen() -> None:
    """These assignments may never change: published numbers depend on them."""
    splits = split_races([f"race-{number}" for number in range(10)], 0.3)
    assert [name for name, split in splits.items() if split == "validation"] == ["race-3", "race-6", "race-8"]


def test_other_races_do_not_move_a_race() -> None:
    few, many = (split_races([f"race-{n}" for n in range(count)], 0.3) for count in (50, 500))
    assert {name: many[name] for name in few} == few


def test_share_is_about_what_was_asked_for() -> None:
    splits = list(split_races([f"race-{n}" for n in range(2000)], 0.15).values())
    assert 0.12 < splits.count("validation") / 2000 < 0.18


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9, 1.0])
@pytest.mark.parametrize("num_races", [2, 5])
def test_both_sides_get_a_race(fraction: float, num_races: int) -> None:
    splits = split_races([f"race-{n}" for n in range(num_races)], fraction)
    assert set(splits.values()) == {"train", "validation"}


def test_a_single_race_is_trained_on() -> None:
    assert split_races(["alone"], 0.9) == {"alone": "train"}


def test_nothing_is_held_out_when_nothing_is_asked_for() -> None:
    assert set(split_races([f"race-{n}" for n in range(50)], 0.0).values()) == {"train"}


def test_order_does_not_matter() -> None:
    names = [f"race-{n}" for n in range(20)]
    assert split_races(names, 0.2) == split_races(names[::-1], 0.2)
