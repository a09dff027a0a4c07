"""An agent at the wheel of a car that a person may take over at any tick."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import FORWARD
from rulka.contracts.observation import CAR, NUM_PREVIOUS_ACTIONS, build_floats, num_floats
from rulka.datasets.drives import Recorder
from rulka.evaluation.contest import Driver
from rulka.simulator.frame_stack import FrameStack
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene


class Autopilot:
    """Drives a recorder's car as in `rulka.evaluation.race`, tick by tick.

    It decides also while a person drives, and sees what that person has pressed as its own previous actions.

    Attributes:
        label: display name of the agent.
    """

    def __init__(self, driver: Driver, recorder: Recorder, settings: RaceSettings) -> None:
        """Takes the wheel; the agent sees what it was made for, or by default what `settings` say."""
        self.label, self._policy, self._car = driver.label, driver.policy, recorder.car
        self._recorder, self._table = recorder, getattr(driver.policy, "actions", settings.table)
        self._observation = getattr(driver.policy, "observation", settings.image)
        self._stack = FrameStack(1, self._observation.image_shape)
        camera, scene = camera_array(settings.simulator.camera), bake_scene(recorder.track)
        self._renderer = FrameRenderer(self._car.cars, self._car.zone_index, scene, camera)
        places, held = self._table.actions_per_decision, self._table.held_ticks
        self._begins = np.cumsum(held) - held
        self._keys = np.zeros((1, NUM_PREVIOUS_ACTIONS * places, 4), np.float32)
        self._floats = np.zeros((1, num_floats(places)), np.float32)

    def controls(self) -> NDArray[np.float32]:
        """Returns steer, gas and brake [3] for the next tick; call it once before each tick."""
        table, tick = self._table, self._recorder.num_ticks
        decision, tick_of_decision = divmod(tick, table.decision_ticks)
        place = int(np.searchsorted(self._begins, tick_of_decision, side="right")) - 1
        if tick == 0:
            self._keys[:] = table.keys()[FORWARD]
            self._num_shifting = 0
        elif tick_of_decision == self._begins[place]:
            self._keys = np.concatenate([self._keys[:, 1:], self._car.previous_keys[:, -1:]], axis=1)
            if place == 0:  # the simulator counts the ticks of a gear change here, agents know decisions
                is_shifting = self._car.cars[0, CAR["gearbox_state"]][0] == 1.0
                self._num_shifting = self._num_shifting + 1 if is_shifting else 0
        if tick_of_decision == 0 and decision % table.repeats == 0:
            self._decide(is_first=tick == 0)
        return self._decided[place]

    def _decide(self, *, is_first: bool) -> None:
        if self._observation.shows_image:
            self._renderer.render(self._stack.newest)
            self._stack.push(has_moved=True, is_first=np.array([is_first]))
        car, row = self._car, self._car.cars.copy()
        row[0, CAR["gearbox_counter"]] = self._num_shifting
        build_floats(row, self._keys, car.track.zones, car.zone_index, car.view.margin_m, self._floats)
        decision = self._policy(self._stack.stack, self._floats)[0]
        chosen = decision if self._table.is_analog else self._table.analog()[decision]
        self._decided = np.asarray(chosen, np.float32).reshape(-1, 3)
