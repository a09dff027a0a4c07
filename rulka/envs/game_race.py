"""Races of the one car that a game drives: what the single environment and the collectors' cars have in common.

Observations, rewards and limits are those of the simulator's races: the state block becomes a `CAR` row, from which
`build_floats` makes the floats; the frame becomes grey; the way along the track comes from the car's position. What a
game cannot say is found from the track: where the car is, and by the rule of `rulka.simulator.race_end` whether it has
left the track and how its race ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from numpy.typing import NDArray

from rulka.actions import FORWARD, TICK_MS
from rulka.envs.rewards import (
    Happening,
    car_frame_velocity,
    length_of,
    manner_from_floats,
    potential_from_floats,
    whole_reward,
)
from rulka.envs.settings import RaceSettings
from rulka.game.errors import GameError
from rulka.game.frames import grey_from_bgra
from rulka.game.link import GameLink
from rulka.game.session import Decision, GameSession
from rulka.observation import CAR, NUM_CAR_FIELDS, NUM_PREVIOUS_ACTIONS, ZONE_SPACING_M, build_floats, num_floats
from rulka.simulator.race_end import TOO_LONG, RaceWatch, has_left
from rulka.tracks.progress import PATH_SEARCH_ZONES, all_zones, locate, zone_frames


@dataclass(frozen=True)
class GameStep:
    """What one decision of the car led to; arrays of one entry, as collectors read them.

    Attributes:
        reward: float32, without shaping; 0 where the decision was swallowed by a reset or by a lost connection.
        terminated: the race ended for good: finished or off the track.
        truncated: the race was cut by a limit, or the connection was lost.
        is_reset: the decision was swallowed by a reset, the observation is the first of a new race.
        progress_m: float32 furthest distance along the centreline.
        start_m: float32 distance along the centreline at which the race began.
        race_time_ms: int64 time since the start; of a finished race its time to the millisecond.
        is_finished: the finish was crossed.
        is_off_track: the car left the track.
        is_full_race: the race was not spoilt by a lost connection; all begin at the start line.
        is_crashed: the connection was lost.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    progress_m: NDArray[np.float32]
    start_m: NDArray[np.float32]
    race_time_ms: NDArray[np.int64]
    is_finished: NDArray[np.bool_]
    is_off_track: NDArray[np.bool_]
    is_full_race: NDArray[np.bool_]
    is_crashed: NDArray[np.bool_]

    @property
    def gained_m(self) -> NDArray[np.float32]:
        """[1] metres that the race got further than its start; never negative."""
        return self.progress_m - self.start_m


class GameRace:
    """One car in one game, race after race.

    A connection that is lost in a race ends that race as crashed; the next `begin` connects anew, once.

    Args:
        settings: track, actions, image size, rewards and limits; places to start at are ignored, a game has one.
        link: where the game is.

    Attributes:
        settings: as given.
        env_steps: decisions that the whole run has taken, for rewards whose weights follow schedules.

    Raises:
        GameError: if nobody listens there, or somebody who speaks another protocol.
    """

    def __init__(self, settings: RaceSettings, link: GameLink) -> None:
        self.settings, self._link, self.env_steps = settings, link, 0
        observation = settings.observation
        table = settings.table  # a run step for every action, also within a decision
        self._session: GameSession = link.open(table.ticks_per_action * TICK_MS, observation.width, observation.height)
        track, physics = settings.track, settings.simulator.physics
        self._centre, self._frames = all_zones(track), zone_frames(track)
        crash_cosine = float(np.cos(np.radians(physics.crash_deg)))
        self._beyond = physics.off_road_m, physics.fall_m, physics.rest_m, crash_cosine
        self._reference_m = physics.reference_m
        self._keys, self._num_places = table.keys(), table.actions_per_decision
        self._grey = np.zeros((observation.height, observation.width), np.uint8)
        self._previous = np.zeros((1, NUM_PREVIOUS_ACTIONS * self._num_places, 4), np.float32)
        self._cars = np.zeros((1, NUM_CAR_FIELDS), np.float32)
        self._floats = np.zeros((1, num_floats(self._num_places)), np.float32)
        self._is_started = self._is_over = self._is_lost = self._is_closed = False
        self._forget_race()

    def begin(self) -> None:
        """Begins a race at the start line; connects anew first where the connection was lost.

        Raises:
            ClosedEnvironmentError: after `close`.
            GameError: if the game is lost, and does not come back within the patience of the link.
        """
        self.check_open()
        try:
            if not self._is_lost and self._is_started and not self._is_over:
                self._session.give_up()
            decision = self._recovered() if self._is_lost else self._session.begin()
        except GameError as error:
            if self._is_lost:
                raise
            self._lose(error)
            decision = self._recovered()
        self._is_started, self._is_over = True, False
        self._forget_race()
        self._take(decision)
        self._furthest_m = self._start_m = self._along_m
        self._watch = RaceWatch(self.settings.end, self.settings.track.length_m, np.array([self._along_m]))

    def step(self, action: int | NDArray[np.int64]) -> GameStep:
        """Takes one decision.

        Args:
            action: an index into the action table, or [K] of them where decisions are blocks; in a block that ends at
                the finish the keys after it are never pressed.

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first `begin`, and after the end of a race.
            InvalidAction: if it is anything else.
        """
        self.check_open()
        if not self._is_started or self._is_over:
            message = "the race has ended or not begun; reset the environment before the next step"
            raise ResetNeeded(message)
        chosen = self._checked(action)
        before_m, before_ms = self._along_m, self._time_ms
        before_mps = length_of(car_frame_velocity(self._cars))
        try:
            decision = self._session.drive([self.settings.table.controls[index] for index in chosen])
        except GameError as error:
            self._lose(error)
            return self._result(0.0, terminated=False, truncated=True)
        pressed = chosen[: decision.num_pressed]
        self._previous[0] = np.concatenate([self._previous[0, len(pressed) :], self._keys[pressed]])
        self._take(decision)
        return self._judge(int(pressed[-1]), before_m, before_ms, before_mps)

    def step_or_begin(self, action: int | NDArray[np.int64]) -> GameStep:
        """Takes one decision; where a race has ended, begins the next one instead."""
        if not self._is_over:
            return self.step(action)
        self.begin()
        return self._result(0.0, terminated=False, truncated=False, is_reset=True)

    def observe(
        self, image_out: NDArray[np.uint8], floats_out: NDArray[np.float32], potential_out: NDArray[np.float32]
    ) -> None:
        """Writes image [1, 1, H, W], floats [1, F] and shaping potential [1].

        A game sends no frame at the finish, or when it is lost; the image is then that of the decision before.
        """
        image_out[0, 0] = self._grey
        floats_out[:] = self._floats
        potential_out[:] = potential_from_floats(self._floats, self.settings.rewards)

    def facts(self) -> dict[str, float | int | bool]:
        """Returns the info of the car, by the names of the simulator's environment, and `is_crashed`."""
        return {
            "progress_m": float(np.float32(self._furthest_m)),
            "start_m": float(np.float32(self._start_m)),
            "time_ms": self._time_ms,
            "is_finished": self._is_finished,
            "is_off_track": self._is_off_track,
            "is_crashed": self._is_crashed,
        }

    def close(self) -> None:
        """Hands the game back, and refuses every later step and reset; a second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_lost:
            self._link.let_go(self._session)

    def check_open(self) -> None:
        """Raises ClosedEnvironmentError after `close`."""
        if self._is_closed:
            message = "the environment is closed; make a new one"
            raise ClosedEnvironmentError(message)

    def _forget_race(self) -> None:
        self._previous[:] = self._keys[FORWARD]
        self._zone, self._along_m, self._time_ms = 0, 0.0, 0
        self._furthest_m = self._start_m = 0.0
        self._is_finished = self._is_off_track = self._is_crashed = False

    def _lose(self, error: GameError) -> None:
        self._link.report(error)
        self._is_lost = self._is_over = self._is_crashed = True

    def _recovered(self) -> Decision:
        self._link.recover(self._session)
        decision = self._session.begin()
        self._is_lost = False
        return decision

    def _take(self, decision: Decision) -> None:
        """Takes over what is seen, and finds where on the track that is."""
        self._cars[0] = decision.car
        if decision.pixels is not None:
            grey_from_bgra(decision.pixels, self._grey)
        self._time_ms, self._is_finished = decision.time_ms, decision.is_finished
        track = self.settings.track
        up = self._cars[0, CAR["rotation"]].reshape(3, 3)[:, 1].astype(np.float64)
        # The ground under the car, as in the simulator: a car that leans has its position beside it.
        ground = self._cars[0, CAR["position"]].astype(np.float64) - self._reference_m * up
        found = locate(ground, self._centre, self._frames, self._zone, PATH_SEARCH_ZONES, ZONE_SPACING_M)
        self._zone, unbounded_m, lateral_m, height_m = found
        self._along_m = min(unbounded_m, track.length_m)
        self._is_off_track = not decision.is_finished and self._has_left(unbounded_m, lateral_m, height_m, up)
        zone, margin_m = np.array([self._zone]), np.array([track.length_m - unbounded_m], np.float32)
        build_floats(self._cars, self._previous, track.zones, zone, margin_m, self._floats)

    def _has_left(self, along_m: float, lateral_m: float, height_m: float, up: NDArray[np.float64]) -> bool:
        track, share = self.settings.track, along_m / ZONE_SPACING_M - self._zone
        here, ahead = self._frames[self._zone, 6:9], self._frames[self._zone + 1, 6:9]
        normal = here + share * (ahead - here)
        aside_m = abs(lateral_m) - 0.5 * float(track.width_m[min(self._zone, track.num_zones - 1)])
        return has_left(aside_m, height_m, float(up @ normal / np.linalg.norm(normal)), *self._beyond)

    def _judge(self, last_action: int, before_m: float, before_ms: int, before_mps: NDArray[np.float64]) -> GameStep:
        self._furthest_m = max(self._furthest_m, self._along_m)
        self._watch.look(
            np.array([self._is_finished]),
            np.array([self._is_off_track]),
            np.array([self._along_m]),
            np.array([self._time_ms]),
        )
        terminated = self._is_finished or self._is_off_track
        truncated = bool(self._watch.ends[0] >= TOO_LONG)
        happening = Happening(
            gained_m=np.array([self._along_m - before_m]),
            duration_s=np.array([(self._time_ms - before_ms) / 1000.0]),
            left_track=np.array([self._is_off_track]),
            has_ended=np.array([terminated or truncated]),
            before_mps=before_mps,
        )
        manner = manner_from_floats(self._floats, np.array([last_action]))
        reward = whole_reward(happening, manner, self.settings.rewards, self.env_steps)
        return self._result(float(reward[0]), terminated=terminated, truncated=truncated)

    def _result(self, reward: float, *, terminated: bool, truncated: bool, is_reset: bool = False) -> GameStep:
        self._is_over = terminated or truncated
        return GameStep(
            reward=np.array([reward], np.float32),
            terminated=np.array([terminated]),
            truncated=np.array([truncated]),
            is_reset=np.array([is_reset]),
            progress_m=np.array([self._furthest_m], np.float32),
            start_m=np.array([self._start_m], np.float32),
            race_time_ms=np.array([self._time_ms]),
            is_finished=np.array([self._is_finished]),
            is_off_track=np.array([self._is_off_track]),
            is_full_race=np.array([not self._is_crashed]),
            is_crashed=np.array([self._is_crashed]),
        )

    def _checked(self, action: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the actions [K] of a decision."""
        array, num_actions = np.asarray(action), self.settings.table.num_actions
        is_whole = array.dtype.kind in "iu" and array.shape == self.settings.table.decision_shape
        if not is_whole or array.min() < 0 or array.max() >= num_actions:
            count = "" if self._num_places == 1 else f"{self._num_places} times "
            message = f"an action is {count}a whole number from 0 to {num_actions - 1}, got {action!r:.200}"
            raise InvalidAction(message)
        return array.reshape(self._num_places).astype(np.int64)


def floats_and_image(settings: RaceSettings) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Returns empty image [1, 1, H, W], floats [1, F] and potential [1] for `GameRace.observe`."""
    shape = (1, 1, settings.observation.height, settings.observation.width)
    floats = np.empty((1, num_floats(settings.table.actions_per_decision)), np.float32)
    return np.empty(shape, np.uint8), floats, np.empty(1, np.float32)
