"""The split of races: fixed for ever by a hash, and never one-sided."""

from __future__ import annotations

from itertools import product

import pytest

from rulka.datasets.formats.split import split_maps, split_races


def test_split_is_frozen() -> None:
    """These assignments may never change: published numbers depend on them."""
    splits = split_races([f"race-{number}" for number in range(10)], 0.3, 0.2)
    assert [name for name, split in splits.items() if split == "validation"] == ["race-3", "race-6", "race-8"]
    assert [name for name, split in splits.items() if split == "test"] == ["race-0", "race-7", "race-1", "race-9"]


def test_other_races_do_not_move_a_race() -> None:
    few, many = (split_races([f"race-{n}" for n in range(count)][::-1], 0.2, 0.1) for count in (50, 500))
    assert {name: many[name] for name in few} == few
    assert set(split_races(list(few), 0.0, 0.0).values()) == {"train"}


@pytest.mark.parametrize(
    ("num_races", "expected"),
    [(1, ["train"]), (2, ["train", "validation"]), (3, ["test", "train", "validation"])],
)
def test_training_comes_first_then_validation_then_test(num_races: int, expected: list[str]) -> None:
    cases = product(range(0, 40, 4), [(0.1, 0.1), (0.8, 0.1), (0.1, 0.8), (0.5, 0.4)])
    found = {
        (start, parts): split_races([f"race-{start + n}" for n in range(num_races)], *parts) for start, parts in cases
    }
    assert {case: splits for case, splits in found.items() if sorted(splits.values()) != expected} == {}


def test_the_held_out_races_are_those_of_one_share_divided() -> None:
    """Whoever held out a fifth to choose by still trains on the same races."""
    names = [f"race-{n}" for n in range(200)]
    one, two = split_races(names, 0.2, 0.0), split_races(names, 0.1, 0.1)
    assert {name for name in names if one[name] == "train"} == {name for name in names if two[name] == "train"}


def test_every_map_is_split_by_itself() -> None:
    few, many = [f"few-{n}" for n in range(3)], [f"many-{n}" for n in range(50)]
    splits = split_maps(dict.fromkeys(few, "a") | dict.fromkeys(many, "b") | {"alone": "c"}, 0.1, 0.1)
    assert splits == split_races(few, 0.1, 0.1) | split_races(many, 0.1, 0.1) | {"alone": "train"}
    assert {splits[name] for name in few} == {splits[name] for name in many} == {"train", "validation", "test"}
