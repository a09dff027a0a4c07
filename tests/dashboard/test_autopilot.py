"""An agent at the wheel sees and drives what it would in a race, until a person takes over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable, action_table
from rulka.contracts.observation import FLOATS
from rulka.contracts.observation_params import ObservationParams
from rulka.dashboard.autopilot import Autopilot
from rulka.datasets.drives import Recorder
from rulka.evaluation.contest import Driver
from rulka.evaluation.race import EvaluationRaces, race
from rulka.params import Params
from tests.conftest import straight_track

PARAMS = Params()
RACES = EvaluationRaces.of(straight_track(), PARAMS)
STRAIGHT = RACES.settings.model_copy(update={"start_lateral_m": 0.0, "start_heading_deg": 0.0})
LEFT, GAS = 1, 0


class Scripted:
    """Decides by the number of the decision, and keeps what it saw."""

    def __init__(self, table: ActionTable, frames: int = 3) -> None:
        self.actions = table
        self.observation = ObservationParams(height=36, width=40, frames=frames, frames_as="channels", withheld=())
        self.images, self.floats = list[NDArray[np.uint8]](), list[NDArray[np.float32]]()

    def __call__(self, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> NDArray:
        number = len(self.images)
        self.images.append(image.copy())
        self.floats.append(floats.copy())
        if self.actions.is_analog:
            return np.array([[0.2 * np.sin(number), 1.0, 0.0]], np.float32)
        places = self.actions.actions_per_decision
        chosen = np.where((number + np.arange(places)) % 7 == 3, LEFT + number % 2, GAS)[None]
        return chosen if places > 1 else chosen[:, 0]


def at_the_wheel(policy: Any) -> tuple[Recorder, Autopilot]:
    recorder = Recorder(RACES.track, PARAMS.simulator)
    return recorder, Autopilot(Driver("agent", "Agent (PPO)", policy), recorder, STRAIGHT)


@pytest.mark.parametrize(
    "table",
    [
        action_table(5),
        action_table(6, 2),
        action_table(6, (0, 10, 40)),
        action_table(5, repeats=2),
        action_table(5, is_analog=True),
    ],
)
def test_alone_it_sees_and_drives_bit_for_bit_as_in_a_race(table: ActionTable) -> None:
    """Two races, so that nothing is left of the first; the road is long enough for a change of gear."""
    in_race, on_page = Scripted(table), Scripted(table)
    (result,) = race(in_race, replace(RACES, settings=STRAIGHT, seeds=range(1)))
    recorder, agent = at_the_wheel(on_page)
    for _ in range(2):
        on_page.images.clear()
        on_page.floats.clear()
        recorder.begin()
        while not recorder.has_ended:
            recorder.tick(agent.controls(), by_person=False)
        assert recorder.race("").race_time_ms == result.time_ms is not None
        np.testing.assert_array_equal(on_page.images, in_race.images)
        np.testing.assert_array_equal(on_page.floats, in_race.floats)
    assert np.array(in_race.floats)[:, 0, FLOATS["gearbox_counter"]].max() > 0 or table.actions_per_decision > 1
    assert not recorder.has_person


def test_it_sees_what_a_person_has_pressed() -> None:
    policy = Scripted(action_table(5))
    recorder, agent = at_the_wheel(policy)
    for tick in range(15):
        theirs, takes_over = agent.controls(), 5 <= tick < 10
        recorder.tick((-1.0, 0.0, 1.0) if takes_over else theirs, by_person=takes_over)
    agent.controls()
    keys = [floats[0, FLOATS["previous_actions"]].reshape(5, 4).tolist() for floats in policy.floats]
    gas, brakes_left = [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]
    assert keys == [5 * [gas], 5 * [gas], [*4 * [gas], brakes_left], [*3 * [gas], brakes_left, gas]]
    by_person = recorder.race("Ann").by_person
    assert by_person is not None
    assert by_person.tolist() == 5 * [False] + 5 * [True] + 5 * [False]
