from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.contracts.actions import action_table
from rulka.machine.errors import UserError
from rulka.params import read_params
from rulka.planner.demonstrations import record_demonstrations
from rulka.reference.command import Searches, find_lap
from rulka.reference.lap import (
    LAPS_DIR,
    Reference,
    ReferenceLapError,
    StaleReferenceError,
    drive,
    load_reference,
    shipped_lap,
    store_reference,
)
from rulka.reference.medals import Medals, medal_won, medals_of
from rulka.reference.search import find_reference
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.generate import generate_track
from rulka.tracks.track import DRIVEN_SOURCE, Track

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")
SIMULATOR, TABLE = PARAMS.simulator, action_table(PARAMS.actions.ticks_per_action)
SHORT = {
    seed: generate_track(
        seed=seed, length_m=160.0, width_m=14.0, max_slope=0.1, gate_spacing_m=50.0, difficulty="medium"
    )
    for seed in (1, 4)
}
SLUGS = [entry.slug for entry in CAMPAIGN if (LAPS_DIR / f"{entry.slug}.txt").exists()]


@pytest.fixture(scope="module")
def found() -> dict[int, Reference]:
    return {seed: find_reference(track, SIMULATOR, TABLE, 1, 1_200_000) for seed, track in SHORT.items()}


END = PARAMS.race_end.model_copy(update={"max_race_s": 600.0})


def check_ranking(track: Track, reference_ms: int, num_drivers: int) -> None:
    """Random does not finish; the built-in driver at its slowest does, and is slower than the reference."""
    driver = PARAMS.races.driver.model_copy(update={"num_plans": 16, "horizon_s": 4.5, "pace_low": 0.6, "pace": 0.7})
    settings = RaceSettings.for_demonstrations(PARAMS.actions, SIMULATOR, END)
    races = record_demonstrations(track, settings, driver, num_drivers, 1)
    cars = Simulator(track, 8, SIMULATOR, TABLE)
    generator = np.random.default_rng(1)
    for _ in range(600):
        cars.step(generator.integers(TABLE.num_actions, size=8))
    assert not cars.is_finished.any()
    assert reference_ms < min(race.race_time_ms or 0 for race in races)


@pytest.mark.parametrize("seed", SHORT)
def test_random_then_the_driver_then_the_reference(found: dict[int, Reference], seed: int):
    check_ranking(SHORT[seed], found[seed].time_ms, 2)


def test_equal_seed_and_budget_give_the_same_lap(found: dict[int, Reference]):
    again = find_reference(SHORT[1], SIMULATOR, TABLE, 1, 1_200_000)
    np.testing.assert_array_equal(again.actions, found[1].actions)


def test_stored_lap_drives_to_the_stated_millisecond(found: dict[int, Reference], tmp_path: Path):
    path = tmp_path / "lap.txt"
    store_reference(found[1], TABLE, path)
    loaded = load_reference(path, SHORT[1], SIMULATOR, TABLE)
    np.testing.assert_array_equal(loaded.actions, found[1].actions)
    assert replace(loaded, actions=found[1].actions) == found[1]
    assert drive(SHORT[1], SIMULATOR, TABLE, loaded.actions)[0] == found[1].time_ms


def test_stale_laps_are_refused_by_name(found: dict[int, Reference], tmp_path: Path):
    path, lap, track = tmp_path / "lap.txt", found[1], SHORT[1]
    store_reference(lap, TABLE, path)
    with pytest.raises(StaleReferenceError, match="another track"):
        load_reference(path, SHORT[4], SIMULATOR, TABLE)
    wider = Track(
        **{**{name: getattr(track, name) for name in Track.__dataclass_fields__}, "width_m": track.width_m + 1}
    )
    with pytest.raises(StaleReferenceError, match="shape of the track"):
        load_reference(path, wider, SIMULATOR, TABLE)
    physics = SIMULATOR.physics.model_copy(update={"axle_m": 2.0})
    with pytest.raises(StaleReferenceError, match="other physics"):
        load_reference(path, track, SIMULATOR.model_copy(update={"physics": physics}), TABLE)
    with pytest.raises(StaleReferenceError, match="decision rate"):
        load_reference(path, track, SIMULATOR, action_table(1))
    store_reference(replace(lap, time_ms=lap.time_ms - 1), TABLE, path)
    with pytest.raises(StaleReferenceError, match=f"needs {lap.time_ms} ms"):
        load_reference(path, track, SIMULATOR, TABLE)
    store_reference(replace(lap, actions=lap.actions[:5]), TABLE, path)
    with pytest.raises(StaleReferenceError, match="does not reach the finish"):
        load_reference(path, track, SIMULATOR, TABLE)


def test_damaged_laps_are_refused(found: dict[int, Reference], tmp_path: Path):
    path = tmp_path / "lap.txt"
    with pytest.raises(ReferenceLapError, match="no reference lap"):
        load_reference(path, SHORT[1], SIMULATOR, TABLE)
    for change in (
        ("time_ms", "times"),
        ("press", "pres"),
        ("decisions: ", "decisions: 0 #"),
        ("seed: 1", "seed: x"),
        ("decisions: ", "decisions: 9999999999"),
    ):
        store_reference(found[1], TABLE, path)
        path.write_text(path.read_text().replace(*change))
        with pytest.raises(ReferenceLapError, match="no reference lap"):
            load_reference(path, SHORT[1], SIMULATOR, TABLE)


def test_numbers_out_of_range_are_named(tmp_path: Path):
    for searches, message in (
        (Searches(seed=-1), "a seed is a whole"),
        (Searches(budget=0), "the budget must be"),
        (Searches(num_laps=0), "at least one search"),
    ):
        with pytest.raises(UserError, match=message):
            find_lap("copper-oval", PARAMS, searches, tmp_path / "a.txt", print)


def test_the_fastest_of_several_searches_is_taken_and_says_how_far_they_lie_apart(tmp_path: Path, capsys):
    track, said = campaign_track("copper-oval"), []
    find_lap("copper-oval", PARAMS, Searches(seed=1, num_laps=3, budget=1), tmp_path / "a.txt", said.append)
    shown = capsys.readouterr().out
    (first,) = re.findall(r"the first lap alone takes ([\d,]+) decisions", shown)[:1]
    assert f"{first}/{first} decisions" in shown
    lap = load_reference(tmp_path / "a.txt", track, SIMULATOR, TABLE)
    alone = [find_reference(track, SIMULATOR, TABLE, seed, 1) for seed in (1, 2, 3)]
    times_ms = sorted(one.time_ms for one in alone)
    assert lap.searched_ms == tuple(times_ms)
    assert lap.time_ms == times_ms[0] < times_ms[2]
    assert f"{times_ms[0] / 1000:.3f} to {times_ms[2] / 1000:.3f} s in 3 searches" in said[0]


@pytest.mark.skipif(not SLUGS, reason="no laps are shipped yet: `rulka track reference SLUG` finds one")
@pytest.mark.parametrize("slug", SLUGS)
def test_shipped_laps(slug: str):
    track = campaign_track(slug)
    lap = load_reference(LAPS_DIR / f"{slug}.txt", track, SIMULATOR, TABLE)
    assert shipped_lap(track) == LAPS_DIR / f"{slug}.txt"
    check_ranking(track, lap.time_ms, 1)


def test_medals_by_hand():
    """24540 * 1.06 = 26012.4, * 1.2 = 29448, * 1.5 = 36810; a whole second gets one more."""
    track = generate_track(5, 150.0, 16.0, 0.06, 60.0)
    assert medals_of(track, 24540) == Medals(24540, 27000, 30000, 37000)
    assert medals_of(track, 50000) == Medals(50000, 54000, 61000, 76000)
    medals = medals_of(track, 10000)
    assert medals == Medals(10000, 11000, 13000, 16000)
    won = [medal_won(time, medals) for time in (9999, 10000, 10001, 11000, 11001, 13001, 16001)]
    assert won == ["author", "author", "gold", "gold", "silver", "bronze", None]


def test_a_map_of_the_game_has_its_own_and_no_lap_of_the_simulator_is_its_authors():
    driven = replace(generate_track(5, 150.0, 16.0, 0.06, 60.0), source=f"{DRIVEN_SOURCE} of 3 of 3 recordings")
    assert medals_of(driven, 61970) is None
    known = replace(driven, medals_ms=(52870, 57000, 64000, 80000))
    assert medals_of(known, 61970) == medals_of(known, None) == Medals(52870, 57000, 64000, 80000)
