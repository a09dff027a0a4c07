"""A person's races, tick by tick: phases, controls, splits, pauses, and the clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rulka.dashboard.driving import COUNTDOWN_TICKS, OWN_BEST, Driving, Ghost, Phase, TickClock
from rulka.evaluation.results import RaceResult
from rulka.params import Params
from rulka.reference.medals import Medals
from tests.conftest import steady_race, straight_track

SIMULATOR = Params().simulator


def started(ghost: RaceResult | None = None, medals: Medals | None = None) -> Driving:
    """A race at the end of its countdown."""
    driving = Driving(straight_track(), SIMULATOR, Ghost(ghost, "a ghost") if ghost else None, medals)
    run(driving, 1)
    assert driving.phase is Phase.READY
    driving.restart()
    run(driving, COUNTDOWN_TICKS)
    assert driving.phase is Phase.RACING
    return driving


def run(driving: Driving, ticks: int) -> list[bool]:
    return [driving.tick() for _ in range(ticks)]


def finish(driving: Driving, controls: Sequence[float] = (0.0, 1.0, 0.0)) -> dict:
    driving.set_controls(*controls)
    while driving.phase is Phase.RACING:
        driving.tick()
    return driving.state()


def test_the_clock_by_hand() -> None:
    """A hundred ticks a second; at most five at once, the rest of a late second never comes."""
    clock = TickClock(10.0)
    assert [clock.due(at_s) for at_s in (10.0, 10.009, 10.01, 10.035, 10.04)] == [0, 0, 1, 2, 1]
    assert clock.wait_s(10.042) == pytest.approx(0.008)
    assert clock.wait_s(11.0) == 0.0
    assert clock.due(10.09) == 5
    assert clock.due(10.5) == 5
    assert [clock.due(at_s) for at_s in (10.5, 10.51, 10.52)] == [0, 1, 1]
    assert clock.pace == 1.0
    assert clock.due(11.02) == 5
    assert clock.pace == pytest.approx(21 / 102)
    assert sum(clock.due(11.02 + 0.01 * k) for k in range(1, 101)) == 100
    assert clock.pace == pytest.approx(1.0)


def test_controls_act_from_the_next_tick_on() -> None:
    driving = started()
    driving.set_controls(0.0, 1.0, 0.0)
    assert driving.state()["inputs"] == 0
    run(driving, 3)
    driving.set_controls(-0.5, 0.2, 1.0)
    run(driving, 2)
    race = driving.recorder.race("")
    assert race.controls.tolist() == [[0.0, 1.0, 0.0]] * 3 + [[-0.5, 0.0, 1.0]] * 2
    assert driving.state()["inputs"] == 2
    assert driving.state()["time_ms"] == 50
    driving.set_controls(0.0, 1.0, 0.0)
    run(driving, 45)
    assert driving.state()["speed_kmh"] > 5


def test_keys_held_in_the_countdown_act_in_the_first_tick() -> None:
    driving = Driving(straight_track(), SIMULATOR)
    driving.restart()
    driving.set_controls(0.0, 1.0, 0.0)
    assert driving.state()["countdown"] == 3
    run(driving, COUNTDOWN_TICKS - 1)
    assert (driving.phase, driving.state()["countdown"], driving.recorder.num_ticks) == (Phase.COUNTDOWN, 1, 0)
    run(driving, 2)
    assert driving.recorder.race("").controls.tolist() == [[0.0, 1.0, 0.0]]


def test_splits_and_medals_against_a_ghost() -> None:
    driving = started(steady_race(straight_track(), 20.0), Medals(1000, 2000, 10_000, 20_000))
    state = finish(driving)
    times_ms = driving.recorder.car.gate_time_ms[0].tolist()
    assert state["splits"] == [(times_ms[0], times_ms[0] - 2000), (times_ms[1], times_ms[1] - 4000),
                               (times_ms[2], times_ms[2] - 5000)]  # fmt: skip
    assert (state["phase"], state["time_ms"], state["best_ms"]) == ("finished", times_ms[2], times_ms[2])
    assert (state["medal"], state["ghost"], state["ghost_ms"]) == ("silver", "a ghost", 5000)
    assert not any(run(driving, 5)), "it ends once"
    driving.restart()
    assert driving.state()["ghost"] == "a ghost", "a given ghost stays"
    assert driving.state()["splits"] == []


def test_the_own_best_becomes_the_ghost() -> None:
    driving = started()
    first = finish(driving)
    assert {behind for _, behind in first["splits"]} == {None}
    assert driving.shot()[2].shape == (0, 12)
    driving.restart()
    pose, _, ghosts = driving.shot()
    np.testing.assert_allclose(ghosts, pose[None], atol=1e-6)
    driving.set_controls(0.0, 0.0, 0.0)
    run(driving, COUNTDOWN_TICKS + 100)  # a second too late
    driving.set_controls(0.0, 1.0, 0.0)
    second = finish(driving)
    assert (second["ghost"], second["ghost_ms"]) == (OWN_BEST, first["time_ms"])
    assert [behind for _, behind in second["splits"]] == pytest.approx([1000] * 3, abs=11)
    assert second["best_ms"] == first["time_ms"]


def test_a_pause_releases_everything_until_something_is_pressed() -> None:
    driving = started()
    driving.set_controls(0.0, 1.0, 0.0)
    run(driving, 10)
    driving.pause()
    run(driving, 10)
    driving.set_controls(0.0, 0.0, 0.0)
    run(driving, 10)
    assert (driving.is_paused, driving.recorder.num_ticks) == (True, 10)
    driving.set_controls(1.0, 0.0, 0.0)
    run(driving, 1)
    assert driving.recorder.race("").controls[-2:].tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    driving.pause()
    driving.restart()
    assert not driving.is_paused
    finish(started())
    ended = started()
    finish(ended)
    ended.pause()
    assert not ended.is_paused, "there is nothing to pause"


def test_a_race_ends_off_the_track_or_after_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    driving = started()
    assert finish(driving, (1.0, 1.0, 0.0))["phase"] == "left the track"
    assert driving.state()["medal"] is None
    assert not driving.recorder.race("").is_finished
    monkeypatch.setattr("rulka.dashboard.driving.MAX_TICKS", 100)
    assert finish(started(), (0.0, 0.0, 0.0))["phase"] == "took too long"
