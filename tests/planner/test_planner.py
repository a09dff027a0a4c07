"""The planner drives at sight, comes back from anywhere, follows races, and is the same everywhere."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from rulka.contracts.actions import ActionTable, action_table
from rulka.contracts.observation import centres_of_mass
from rulka.params import Params
from rulka.planner import kernels
from rulka.planner.demonstrations import record_demonstrations
from rulka.planner.params import PlannerParams
from rulka.planner.planner import FOLLOW, FOLLOWING, RACE, RACE_ON_LINE, Planner, action_shares, centreline, line_of
from rulka.reference.lap import read_reference, shipped_lap
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.campaign import campaign_track
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

SMALL = PlannerParams(num_plans=12, horizon_s=2.0, step_m=0.3)


@pytest.fixture(scope="module")
def track(params: Params) -> Track:
    return generate_track(**params.track.model_dump())


class Drive:
    """Cars on a track, driven by a planner to their end."""

    def __init__(
        self, track: Track, params: Params, num_cars: int = 1, plans: PlannerParams = SMALL, **more: Any
    ) -> None:
        self.table = more.pop("table", action_table(5))
        self.cars = Simulator(track, num_cars, params.simulator, self.table)
        settings: dict[str, Any] = {"seed": 1} | more
        self.planner = Planner(track, params.simulator.physics, self.table, num_cars, plans, **settings)
        self.actions: list[np.ndarray] = []

    def drive(self, num_decisions: int = 2000) -> Simulator:
        for _ in range(num_decisions):
            if (self.cars.is_finished | self.cars.is_off_track).all():
                break
            self.actions.append(self.planner.actions(self.cars.save()))
            self.cars.step(self.actions[-1])
        return self.cars


def test_the_first_lap_at_sight_nears_the_reference(params: Params, table: ActionTable) -> None:
    track = campaign_track("copper-oval")
    path = shipped_lap(track)
    assert path is not None
    cars = Drive(track, params, plans=PlannerParams()).drive()
    assert cars.is_finished[0]
    assert cars.gate_time_ms[0, -1] < 1.12 * read_reference(path, table).time_ms


def test_cars_come_back_from_anywhere(track: Track, params: Params) -> None:
    """80 % of half the width beside the line, up to 0.2 rad askew, at 5 to 40 m/s."""
    number, rng = 40, np.random.default_rng(3)
    drive = Drive(track, params, number, PlannerParams(num_plans=24, horizon_s=3.0))
    along_m = rng.uniform(0.0, 0.8 * track.length_m, number)
    half_m = np.interp(along_m, np.arange(track.num_zones) * 0.5, track.width_m) / 2.0
    aside_m, askew = rng.uniform(-0.8, 0.8, number) * half_m, rng.uniform(-0.2, 0.2, number)
    drive.cars.reset(np.ones(number, bool), along_m, aside_m, askew, rng.uniform(5.0, 40.0, number))
    assert drive.drive(600).is_finished.sum() >= 38


def test_a_car_depends_on_the_seed_and_not_on_its_batch(track: Track, params: Params) -> None:
    one, three, other = (Drive(track, params, number, seed=seed) for number, seed in ((1, 4), (3, 4), (1, 5)))
    for each in (one, three, other):
        each.drive(60)
    np.testing.assert_array_equal(np.array(one.actions)[:, 0], np.array(three.actions)[:, 0])
    assert not np.array_equal(np.array(three.actions)[:, 0], np.array(three.actions)[:, 1])
    assert not np.array_equal(one.actions, other.actions)


def test_plans_are_the_same_on_every_processor(make_track, params: Params) -> None:
    drive = Drive(make_track(300.0, curvature=lambda s: 0.02 * np.sign(np.sin(s / 40.0))), params)
    drive.drive(100)
    assert hashlib.sha256(np.array(drive.actions, "<i8").tobytes()).hexdigest()[:16] == "5f191d1c642106fc"


@pytest.mark.parametrize(("aim", "step_m", "within"), [(RACE, 0.3, 1e-6), (FOLLOW, 0.3, 1e-6), (RACE, 0.7, 0.5)])
def test_the_score_of_a_plan_is_what_driving_it_comes_to(
    track: Track, params: Params, aim: kernels.Aim, step_m: float, within: float
) -> None:
    """The naive twin: the simulator drives the kept plan, and Python adds up what it is worth.

    With longer steps of the physics than the simulator's, the plan is off by less than half a metre after two seconds.
    """
    line = centreline(track, params.simulator.physics)
    line = line._replace(left_m=line.left_m + 1.0, along_m=np.arange(1000) * 0.25)
    drive = Drive(track, params, plans=SMALL.model_copy(update={"step_m": step_m}), aim=aim, line=line)
    cars, planner, table = drive.cars, drive.planner, drive.table
    cars.reset(np.ones(1, bool), 100.0, 6.0, 0.1, 20.0)
    remainder, tick = 0.0, float(np.searchsorted(line.along_m, 100.0, side="right")) - 1.0
    planner.controls(cars.save())
    planner.plans.remainder[:] = 0.0
    cost, num_decisions = 0.0, 40
    for decision in range(num_decisions):
        wanted, pressed = np.zeros((1, 3)), np.zeros(1)
        kernels.follow(cars.save(), np.zeros(1, np.int64), planner.plans, planner._course, wanted, pressed)
        held = wanted.astype(np.float32)
        if aim is RACE:
            asked = wanted[0, 0] + remainder
            held[0, 0] = 1.0 if asked > 0.5 else -1.0 if asked < -0.5 else 0.0
            remainder = asked - held[0, 0]
            assert held[0, 0] == pressed[0]
        cars.step_controls(held)
        half_m = track.width_m[cars.zone_index[0]] / 2.0
        cost += aim.edge_cost * max(abs(cars.lateral_m[0]) - half_m + aim.edge_m, 0.0) * 0.05
        cost += aim.line_cost * (cars.lateral_m[0] - 1.0) ** 2 * 0.05
        there_m = 0.25 * (tick + 5 * (decision + 1))
        cost += aim.time_cost * (there_m - cars.along_m[0]) ** 2 * 0.05
    speed = float(np.linalg.norm(cars.save()[0, 3:6]))
    worth = aim.progress * (cars.along_m[0] + kernels.SPEED_S * speed) - cost
    assert planner.plans.score[0] == pytest.approx(worth, abs=within)
    assert table.duration_ms * num_decisions == 1000 * SMALL.horizon_s


def test_keys_make_up_for_what_they_cannot_do(track: Track, params: Params, table: ActionTable) -> None:
    """Whole key presses never differ by more than half a decision from the steering that was asked for up to then."""
    drive = Drive(track, params, 3)
    ahead, differences = np.zeros(3), []
    for _ in range(80):
        wanted, pressed = drive.planner.controls(drive.cars.save())
        assert np.isin(pressed, (-1.0, 0.0, 1.0)).all()
        ahead += pressed - wanted[:, 0]
        differences.append(ahead.copy())
        drive.cars.step(table.index_of(wanted[:, 1], wanted[:, 2], pressed, 0.5))
    assert np.abs(differences).max() <= 0.5 + 1e-9
    assert np.ptp(differences) > 0.5


def test_shares_of_actions_by_hand(table: ActionTable) -> None:
    """A quarter to the left on the gas; straight on the brake; full lock without pedals."""
    shares = action_shares(table, np.array([[-0.25, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(shares @ table.keys(), [[1, 0, 0.25, 0], [0, 1, 0, 0], [0, 0, 0, 1]], atol=1e-7)


def test_a_race_that_is_over_asks_for_nothing(track: Track, params: Params) -> None:
    drive = Drive(track, params, 2)
    over = drive.cars.save()
    over[1, kernels.columns.OFF_TRACK] = 1.0
    drive.cars.restore(over)
    before = drive.planner.plans.values.copy()
    wanted, pressed = drive.planner.controls(drive.cars.save())
    assert wanted[0, 1] == 1.0
    assert not wanted[1].any()
    assert not pressed[1]
    np.testing.assert_array_equal(drive.planner.plans.values[1], before[1])
    assert drive.planner.spent == SMALL.num_plans * 40


def test_a_bound_on_the_pace_makes_plans_slower(params: Params) -> None:
    track = generate_track(**params.track.model_copy(update={"length_m": 300.0}).model_dump())
    careful, bold = (Drive(track, params, plans=SMALL.model_copy(update={"pace": pace})).drive() for pace in (0.8, 2.0))
    assert careful.is_finished[0]
    assert careful.gate_time_ms[0, -1] > 1.03 * bold.gate_time_ms[0, -1]


def test_a_recorded_race_is_followed_or_beaten_near_its_line(track: Track, params: Params, table: ActionTable) -> None:
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    driver = params.races.driver.model_copy(update={"num_plans": 12, "pace_low": 0.8, "pace": 0.8})
    (race,) = record_demonstrations(track, settings, driver, 1, 1)
    assert race.race_time_ms is not None
    ticks = np.arange(race.race_time_ms // 10 + 1) * 10
    rows = np.stack([np.interp(ticks, race.time_ms, column) for column in race.car_rows.T.astype(np.float64)], axis=1)
    line = line_of(track, rows)
    assert len(centres_of_mass(rows)) + 1000 == len(line.along_m)
    zone_m, beside_m = np.arange(len(line.left_m)) * 0.5, {}
    for name, plans, aim in (("follow", FOLLOWING, FOLLOW), ("race", PlannerParams(), RACE_ON_LINE)):
        cars = Simulator(track, 1, params.simulator, table)
        cars.reset(np.ones(1, bool), lateral_m=line.left_m[0])
        planner, away = Planner(track, params.simulator.physics, table, 1, plans, seed=1, aim=aim, line=line), []
        while not (cars.is_finished[0] or cars.is_off_track[0]):
            wanted, pressed = planner.controls(cars.save())
            controls = wanted.astype(np.float32)
            if aim.progress:
                controls[:, 0] = pressed
            cars.step_controls(controls)
            away.append(abs(cars.lateral_m[0] - np.interp(cars.along_m[0], zone_m, line.left_m)))
        beside_m[name] = np.median(away), cars.gate_time_ms[0, -1] / race.race_time_ms
    assert beside_m["follow"][0] < 0.2
    assert beside_m["follow"][1] == pytest.approx(1.0, abs=0.02)
    assert beside_m["race"][0] < 2.0
    assert beside_m["race"][1] < 0.95
