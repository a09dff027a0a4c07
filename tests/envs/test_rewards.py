import numpy as np
import pytest

from rulka.envs.rewards import (
    Manner,
    decision_reward,
    direction_potential,
    engineered_reward,
    potential,
    slide_quality,
    speed_reward,
)
from rulka.params import EngineeredRewardParams, RewardParams

NOTHING = {"interpolation": "linear", "points": [[0, 0.0]]}
OFF = dict.fromkeys(("speed_slide", "neo_slide", "kamikaze", "line_distance"), NOTHING)
WEIGHTS = RewardParams.model_validate(
    {
        "per_metre": 0.05,
        "per_second": -0.4,
        "off_track": -2.0,
        "line_distance_potential": 0.1,
        "direction_potential": 0.3,
        "speed_as_seconds": 2.0,
        "engineered": OFF,
    }
)


def test_reward_by_hand() -> None:
    """2 m in 50 ms: 0.1 - 0.02. 3 m back: -0.15 - 0.02. Off the track on the spot: -0.02 - 2. A last 10 ms: -0.004."""
    reward = decision_reward(
        np.array([2.0, -3.0, 0.0, 0.0]),
        np.array([0.05, 0.05, 0.05, 0.01]),
        np.array([False, False, True, False]),
        WEIGHTS,
    )
    assert reward.dtype == np.float32
    assert reward == pytest.approx([0.08, -0.17, -2.02, -0.004], abs=1e-6)


def test_potential_by_hand() -> None:
    """0.1 for each metre, clamped to 2 and 25 m."""
    value = potential(np.array([0.0, 2.0, 10.0, 25.0, 80.0]), WEIGHTS)
    assert value.dtype == np.float32
    assert value == pytest.approx([-0.2, -0.2, -1.0, -2.5, -2.5])


def test_no_potential_without_weight() -> None:
    weights = WEIGHTS.model_copy(update={"line_distance_potential": 0.0})
    assert not potential(np.array([0.0, 10.0, 80.0]), weights).any()


def engineered(**changes: float) -> RewardParams:
    rising = {name: {"interpolation": "linear", "points": [[0, 0.0], [100, value]]} for name, value in changes.items()}
    return WEIGHTS.model_copy(update={"engineered": EngineeredRewardParams.model_validate(OFF | rising)})


def manner(num_cars: int, **changes: object) -> Manner:
    """Cars that go straight at 50 m/s on four wheels, coasting, on the line."""
    straight = Manner(
        velocity_mps=np.tile([0.0, 0.0, 50.0], (num_cars, 1)),
        num_wheels_on_ground=np.full(num_cars, 4),
        action=np.full(num_cars, 3),
        distance_m=np.zeros(num_cars),
    )
    return straight._replace(**changes)


def test_gained_speed_counts_like_metres() -> None:
    """0.05 * 2 s * (5 - 3); braking costs the same; nothing backwards or with the end of the race."""
    velocity = np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 1.0], [0.0, 0.0, -9.0], [0.0, 0.0, 9.0]])
    ended = np.array([False, False, False, True])
    assert speed_reward(np.full(4, 3.0), velocity, ended, WEIGHTS) == pytest.approx([0.2, -0.2, 0.0, 0.0])


@pytest.mark.parametrize(
    ("forward_kmh", "start"),
    [(0, 80), (50, 80), (100, 80), (150, 77.5), (200, 75), (300, 67), (400, 60), (500, 55), (800, 55)],
)
def test_speed_slide_by_its_table(forward_kmh: float, start: float) -> None:
    """Nothing until 20 |v_x| reaches the start, half at 1.5 times of it, best at twice, none at three times."""
    sideways = np.array([0.0, 1.0, 1.5, -2.0, 2.5, 3.0, 9.0]) * start / 20.0
    velocity = np.stack([sideways, np.zeros(7), np.full(7, forward_kmh / 3.6)], axis=1)
    assert slide_quality(velocity) == pytest.approx([0.0, 0.0, 0.5, 1.0, 0.5, 0.0, 0.0], abs=1e-9)


def test_speed_slides_need_all_wheels_on_the_ground() -> None:
    best = np.tile([8.0, 0.0, 100 / 3.6], (3, 1))
    cars = manner(3, velocity_mps=best, num_wheels_on_ground=np.array([4, 3, 0]))
    assert engineered_reward(cars, engineered(speed_slide=0.5), 100) == pytest.approx([0.5, 0.0, 0.0])


def test_neo_slides_begin_at_2_mps() -> None:
    velocity = np.array([[1.99, 0, 50], [2.0, 0, 50], [-7.0, 0, 50]])
    cars = manner(3, velocity_mps=velocity)
    assert engineered_reward(cars, engineered(neo_slide=0.5), 100) == pytest.approx([0.0, 0.5, 0.5])


def test_kamikaze_is_full_gas_or_the_air() -> None:
    cars = manner(5, action=np.array([0, 2, 3, 9, 9]), num_wheels_on_ground=np.array([4, 4, 4, 1, 2]))
    assert engineered_reward(cars, engineered(kamikaze=0.5), 100) == pytest.approx([0.5, 0.5, 0.0, 0.5, 0.0])


def test_line_distance_is_clamped_to_5_and_25_m() -> None:
    cars = manner(4, distance_m=np.array([0.0, 5.0, 10.0, 60.0]))
    assert engineered_reward(cars, engineered(line_distance=-0.1), 100) == pytest.approx([-0.5, -0.5, -1.0, -2.5])


def test_engineered_weights_follow_their_schedules() -> None:
    cars = manner(1, action=np.array([0]))
    values = [float(engineered_reward(cars, engineered(kamikaze=0.5), step)[0]) for step in (0, 50, 100, 1000)]
    assert values == pytest.approx([0.0, 0.25, 0.5, 0.5])
    assert not engineered_reward(cars, WEIGHTS, 1000).any()
    assert engineered_reward(cars, WEIGHTS, 0).dtype == np.float32


def test_direction_potential_by_hand() -> None:
    """0.3 (cos - 1): 0 along the line, -0.3 across it, -0.6 against it."""
    line = np.array([[0.0, 0.0, 0.5], [2.0, 0.0, 0.0], [0.0, 0.0, -3.0], [3.0, 0.0, 4.0]])
    assert direction_potential(line, WEIGHTS) == pytest.approx([0.0, -0.3, -0.6, 0.3 * (0.8 - 1)])
