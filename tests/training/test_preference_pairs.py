"""Pairs of captured races: which frames they are, who is preferred, and what is wrong with those that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rulka.agents.preferences.params import DemonstrationPairsParams
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.contracts.observation import NUM_CAR_FIELDS, NUM_FLOATS
from rulka.datasets.formats.frames import CapturedRace, FrameWriter
from rulka.datasets.formats.races import Race, RaceDataset
from rulka.training.preference_pairs import (
    CapturedRaces,
    PreferenceError,
    pairs_of_demonstrations,
    pairs_of_file,
)
from tests.conftest import NUM_PIXELS, sees, straight_track, synthetic_race

Captured = Callable[..., CapturedRaces]
STEADY = {"slow": 10.0, "fast": 20.0, "middle": 15.0}
"""Metres a second on 100 m: 200, 100 and 134 frames, 50 ms apart."""


def captured_race(race_id: str, along_m: np.ndarray, map_uid: str) -> CapturedRace:
    """Frames whose first float is their own number, and whose pixels that of their race's letters."""
    race = synthetic_race(race_id, len(along_m), 0, map_uid)
    number = np.arange(len(along_m))
    race.image[:], race.floats[:, 0] = len(race_id), number
    return replace(race, action=(number % 12).astype(np.uint8), along_m=along_m.astype(np.float32))


def known_race(race_id: str, map_uid: str, time_ms: int | None) -> Race:
    nothing = (np.zeros((0, 3), np.float32), np.zeros(0, np.int64), np.zeros((0, NUM_CAR_FIELDS), np.float32))
    return Race(race_id, "recording", "", "", map_uid, time_ms, time_ms is not None, (), None, *nothing)


@pytest.fixture
def captured(tmp_path: Path) -> Captured:
    """Makes a dataset of races that finish 100 m at steady speeds, and of others by where they are in each frame."""

    def make(
        speeds_mps: dict[str, float],
        others: dict[str, np.ndarray] | None = None,
        splits: dict[str, str] | None = None,
        places: int = 1,
    ) -> CapturedRaces:
        track, elsewhere = straight_track(), replace(straight_track(), uid="elsewhere")
        finished = {name: np.arange(0.0, 100.0, speed / 20.0) for name, speed in speeds_mps.items()}
        times_ms = {name: round(1000.0 * 100.0 / speed) for name, speed in speeds_mps.items()}
        driven = finished | (others or {})
        maps = {name: "elsewhere" if name.startswith("elsewhere") else "straight" for name in driven}
        splits = dict.fromkeys(driven, "train") | (splits or {})
        (tmp_path / "frames").mkdir(exist_ok=True)
        writer = FrameWriter(
            tmp_path / "frames",
            observation=observation_contract(sees(NUM_PIXELS, NUM_PIXELS)),
            actions=action_table(5),
            main_track="straight",
            splits=splits,  # type: ignore[arg-type]
            shard_frames=100,
        )
        for name, along_m in driven.items():
            writer.add(captured_race(name, along_m, maps[name]))
        writer.close()
        known = tuple(known_race(name, maps[name], times_ms.get(name)) for name in driven)
        races = RaceDataset((*known, known_race("uncaptured", "straight", None)), track, (), (elsewhere,))
        return CapturedRaces(tmp_path / "frames", races, 1, places)

    return make


def write(folder: Path, *rows: dict[str, Any] | str) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def row(chosen: str, rejected: str, from_m: float = 0.0, to_m: float | None = None) -> dict[str, Any]:
    return {"chosen": chosen, "rejected": rejected, "from_m": from_m, "to_m": to_m}


def numbers(pairs: Any, stretch: int) -> list[int]:
    """First and last frame of a stretch, in its race."""
    end = int(pairs.num_decisions[: stretch + 1].sum())
    first = end - int(pairs.num_decisions[stretch])
    return pairs.floats[[first, end - 1], 0].astype(int).tolist()


def test_stretches_are_cut_where_each_race_crosses_their_ends(captured: Captured, tmp_path: Path) -> None:
    """From 30 m to 60 m the slow car has the frames at 30.0 to 59.5 m, the fast one those at 30 to 59 m; and the whole
    races, with the finish, are as long as they are. The slow race is in both pairs, its frames are read for each.
    """
    path = write(tmp_path, row("fast", "slow", 30.0, 60.0), "", row("slow", "fast"))
    pairs = pairs_of_file(path, captured(STEADY))
    assert pairs.pairs.tolist() == [[0, 1], [2, 3]]
    assert pairs.num_decisions.tolist() == [30, 60, 200, 100]
    assert [numbers(pairs, stretch) for stretch in range(4)] == [[30, 59], [60, 119], [0, 199], [0, 99]]
    assert (pairs.action[0], pairs.action.shape) == (30 % 12, (390, 1))
    assert pairs.image[0, 0, 0, 0] == len("fast")
    assert (pairs.image.shape, pairs.floats.shape) == ((390, 1, NUM_PIXELS, NUM_PIXELS), (390, NUM_FLOATS))


STOPPED = np.arange(0.0, 40.0, 0.5)
LATE = np.arange(50.0, 100.0, 1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("{", r"line 2: is no JSON"),
        ({"chosen": "fast"}, r"line 2: rejected is missing; from_m is missing; to_m is missing"),
        (row("fast", "slow") | {"margin": 1}, r"line 2: margin is not a key that is known"),
        (row("fast", "fast"), r"line 2: chosen and rejected are the same race, fast"),
        (row("fast", "slow", 50.0, 50.0), r"line 2: the stretch ends at 50 m, where it has not begun"),
        (row("fast", "slow", -1.0), r"line 2: from_m: must be greater than or equal to 0 \(got -1.0\)"),
        (row("fats", "slow"), r"line 2: race fats is not known; did you mean fast\?"),
        (row("uncaptured", "slow"), r"line 2: race uncaptured was not captured"),
        (row("held out", "slow"), r"line 2: race held out is of the test split, which is only measured on"),
        (row("fast", "elsewhere"), r"line 2: race fast was driven on straight, race elsewhere on elsewhere"),
        (row("fast", "stopped", 20.0, 60.0), r"line 2: race stopped gets to 39.5 m and never to 60 m"),
        (row("fast", "stopped", 60.0, 80.0), r"line 2: race stopped gets to 39.5 m and never to 60 m"),
        (row("late", "slow", 0.0, 80.0), r"line 2: race late is first seen at 50.0 m: it did not drive on from 0 m"),
        (row("fast", "slow", 30.1, 30.2), r"line 2: race fast makes no decision between 30.1 m and 30.2 m"),
        (row("fast", "slow", 20.0, 150.0), r"line 2: race fast gets to 99.0 m and never to 150 m"),
        (row("fast", "slow", 10.0, 90.0), r"line 2: line 1 has the same pair"),
        (row("slow", "fast", 10.0, 90.0), r"line 2: line 1 has the other way round"),
    ],
)
def test_what_is_wrong_with_a_pair_is_said(captured: Captured, tmp_path: Path, wrong: Any, message: str) -> None:
    others = {"stopped": STOPPED, "late": LATE, "held out": STOPPED, "elsewhere": STOPPED}
    races = captured(STEADY, others, {"held out": "test"})
    with pytest.raises(PreferenceError, match=r"pairs\.jsonl, " + message):
        pairs_of_file(write(tmp_path, row("fast", "slow", 10.0, 90.0), wrong), races)


def test_a_race_that_did_not_finish_may_lose_as_a_whole(captured: Captured, tmp_path: Path) -> None:
    """With `to_m` null both go to their ends: the winner's finish and the loser's failure are part of the pair."""
    pairs = pairs_of_file(write(tmp_path, row("fast", "stopped")), captured(STEADY, {"stopped": STOPPED}))
    assert pairs.num_decisions.tolist() == [100, 80]


def test_a_file_without_pairs_is_refused(captured: Captured, tmp_path: Path) -> None:
    races = captured(STEADY)
    with pytest.raises(PreferenceError, match="names no pair"):
        pairs_of_file(write(tmp_path, ""), races)
    with pytest.raises(PreferenceError, match=r"none\.jsonl cannot be read"):
        pairs_of_file(tmp_path / "none.jsonl", races)


def by_stretches(stretch_m: float, min_gain_s: float = 0.0, max_pairs: int = 100) -> DemonstrationPairsParams:
    return DemonstrationPairsParams(
        kind="demonstrations", stretch_m=stretch_m, min_gain_s=min_gain_s, max_pairs=max_pairs, pairs_per_update=4
    )


def test_the_faster_race_over_a_stretch_is_preferred(captured: Captured) -> None:
    """On two stretches of 50 m: fast before middle before slow, each against each; the last ends at the finish."""
    pairs = pairs_of_demonstrations(by_stretches(45.0), captured(STEADY), seed=0)
    lengths = pairs.num_decisions.tolist()
    assert sorted(lengths) == [50, 50, 67, 67, 100, 100]
    assert len(pairs.pairs) == 6
    assert all(lengths[chosen] < lengths[rejected] for chosen, rejected in pairs.pairs.tolist())
    assert [numbers(pairs, stretch)[1] for stretch in range(6)] == [49, 66, 99, 99, 133, 199]


def test_small_gains_are_no_preference(captured: Captured) -> None:
    """Over 50 m the races take 2.5, 3.33 and 5 s: with 1 s only the slow one is beaten, with 3 s none."""
    races = captured(STEADY)
    assert len(pairs_of_demonstrations(by_stretches(50.0, min_gain_s=1.0), races, seed=0).pairs) == 4
    with pytest.raises(PreferenceError, match=r"of 3 races .* none is 3 s faster than another over any of 2 stretches"):
        pairs_of_demonstrations(by_stretches(50.0, min_gain_s=3.0), races, seed=0)


def test_so_many_pairs_are_taken(captured: Captured) -> None:
    races = captured(STEADY)
    whole, few, same, other = (
        pairs_of_demonstrations(by_stretches(10.0, max_pairs=count), races, seed)
        for count, seed in ((100, 0), (5, 0), (5, 0), (5, 1))
    )
    assert (len(whole.pairs), len(few.pairs)) == (30, 5)
    np.testing.assert_array_equal(few.floats, same.floats)
    assert few.floats.shape != other.floats.shape or (few.floats != other.floats).any()


@pytest.mark.parametrize("others", [{}, {"elsewhere": STOPPED}])
def test_one_race_has_nothing_to_be_compared_with(captured: Captured, others: dict[str, np.ndarray]) -> None:
    with pytest.raises(PreferenceError, match="need two races on the main track, and there are 1"):
        pairs_of_demonstrations(by_stretches(50.0), captured({"fast": 20.0}, others), seed=0)
