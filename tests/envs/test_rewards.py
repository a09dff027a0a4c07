"""The formulas of the rewards, by hand."""

import numpy as np
import pytest
from numba import njit

from rulka.contracts.schedule import Moment
from rulka.envs import rewards as formulas
from rulka.envs.scoring import num_on_ground
from rulka.simulator.race_params import EngineeredRewardParams, RewardParams

NOTHING = {"interpolation": "linear", "points": [[0, 0.0]]}
OFF = dict.fromkeys(("speed_slide", "neo_slide", "kamikaze", "line_distance"), NOTHING)
WEIGHTS = RewardParams.model_validate(
    {
        "per_metre": 0.05,
        "per_second": -0.4,
        "off_track": -2.0,
        "finish_as_seconds": 4.0,
        "line_distance_potential": 0.1,
        "direction_potential": 0.3,
        "speed_as_seconds": 2.0,
        "engineered": OFF,
    }
)
COASTING = {
    "gained_mps": 0.0,
    "left_mps": 0.0,
    "forward_mps": 50.0,
    "num_wheels": 4,
    "is_full_gas": False,
    "distance_m": 0.0,
}
"""A car that goes straight at 50 m/s on four wheels, coasting, on the line."""


progress_reward, finish_reward, driving_reward = (
    njit(kernel) for kernel in (formulas.progress_reward, formulas.finish_reward, formulas.driving_reward)
)
line_potential, direction_potential = njit(formulas.line_potential), njit(formulas.direction_potential)


def rules_of(rewards: RewardParams, env_steps: int = 0) -> np.ndarray:
    rules = np.zeros(formulas.NUM_RULES)
    formulas.set_rewards(rules, rewards)
    formulas.set_engineered(rules, rewards, Moment(env_steps))
    return rules


def test_progress_by_hand() -> None:
    for gained_m, duration_s, left_track, expected in (
        (2.0, 0.05, False, 0.08),  # 0.1 - 0.02
        (-3.0, 0.05, False, -0.17),  # -0.15 - 0.02
        (0.0, 0.05, True, -2.02),
        (0.0, 0.01, False, -0.004),  # a last 10 ms
    ):
        assert progress_reward(gained_m, duration_s, left_track, rules_of(WEIGHTS)) == pytest.approx(expected, abs=1e-6)


def test_potentials_by_hand() -> None:
    """0.1 for each metre, clamped to 2 and 25 m, nothing without a weight; and 0.3 (cos - 1)."""
    none = WEIGHTS.model_copy(update={"line_distance_potential": 0.0})
    for distance_m, expected in ((0.0, -0.2), (2.0, -0.2), (10.0, -1.0), (25.0, -2.5), (80.0, -2.5)):
        assert line_potential(np.float32(distance_m), rules_of(WEIGHTS)) == pytest.approx(expected)
        assert line_potential(np.float32(distance_m), rules_of(none)) == 0.0
    for cosine, expected in ((1.0, 0.0), (0.0, -0.3), (-1.0, -0.6), (0.8, 0.3 * (0.8 - 1))):
        assert direction_potential(np.float32(cosine), rules_of(WEIGHTS)) == pytest.approx(expected, abs=1e-7)


def paid(env_steps: int = 100, weights: dict[str, float] | None = None, **changes: float) -> float:
    """What a coasting car that differs by `changes` is paid for how it drives, with weights that rise to step 100."""
    rising = {
        name: {"interpolation": "linear", "points": [[0, 0.0], [100, value]]} for name, value in (weights or {}).items()
    }
    engineered = EngineeredRewardParams.model_validate(OFF | rising)
    rules = rules_of(WEIGHTS.model_copy(update={"engineered": engineered}), env_steps)
    return driving_reward(*(COASTING | changes).values(), rules)


def test_gained_speed_counts_like_metres() -> None:
    """0.05 * 2 s * (5 - 3); braking costs the same."""
    assert paid(gained_mps=2.0) == pytest.approx(0.2)
    assert paid(gained_mps=-2.0) == pytest.approx(-0.2)


def test_speed_slide_by_its_table() -> None:
    """Nothing until 20 |v_x| reaches the start, half at 1.5 times of it, best at twice, none at three times."""
    points = ((0, 80), (50, 80), (100, 80), (150, 77.5), (200, 75), (300, 67), (400, 60), (500, 55), (800, 55))
    for kmh, start in points:
        sideways = np.array([0.0, 1.0, 1.5, -2.0, 2.5, 3.0, 9.0]) * start / 20.0
        found = [paid(weights={"speed_slide": 1.0}, left_mps=left, forward_mps=kmh / 3.6) for left in sideways]
        assert found == pytest.approx([0.0, 0.0, 0.5, 1.0, 0.5, 0.0, 0.0], abs=1e-9)
    for num_wheels, expected in ((4, 0.5), (3, 0.0), (0, 0.0)):
        best = {"left_mps": 8.0, "forward_mps": 100 / 3.6, "num_wheels": num_wheels}
        assert paid(weights={"speed_slide": 0.5}, **best) == pytest.approx(expected)


def test_the_other_engineered_rewards_by_hand() -> None:
    """Neo slides begin at 2 m/s, kamikaze is full gas or the air, the distance to the line is clamped to 5 and 25 m."""
    for left_mps, expected in ((1.99, 0.0), (2.0, 0.5), (-7.0, 0.5)):
        assert paid(weights={"neo_slide": 0.5}, left_mps=left_mps) == pytest.approx(expected)
    for is_full_gas, wheels, expected in ((True, 4, 0.5), (False, 4, 0.0), (False, 1, 0.5), (False, 2, 0.0)):
        assert paid(weights={"kamikaze": 0.5}, is_full_gas=is_full_gas, num_wheels=wheels) == pytest.approx(expected)
    assert [num_on_ground(np.array(contact)) for contact in ([1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0])] == [4, 2, 0]
    for distance_m, expected in ((0.0, -0.5), (5.0, -0.5), (10.0, -1.0), (60.0, -2.5)):
        assert paid(weights={"line_distance": -0.1}, distance_m=distance_m) == pytest.approx(expected)


def test_engineered_weights_follow_their_schedules() -> None:
    values = [paid(step, {"kamikaze": 0.5}, is_full_gas=True) for step in (0, 50, 100, 1000)]
    assert values == pytest.approx([0.0, 0.25, 0.5, 0.5])
    assert paid(1000, is_full_gas=True) == 0.0


def test_the_finish_is_worth_going_on_for_four_seconds() -> None:
    """At 50 m/s 200 m and 4 s: 10 - 1.6."""
    assert finish_reward(50.0, rules_of(WEIGHTS)) == pytest.approx(8.4)
    assert finish_reward(50.0, rules_of(WEIGHTS.model_copy(update={"finish_as_seconds": 0.0}))) == 0.0
