"""Races of the one car in a game, used by collectors and by the gymnasium environment.

Observations, rewards and race ends use the simulator's code: the state block becomes a `CAR` row of a `View`, for
`build_floats` and `Scores`; the frame is converted to grey. Facts that a game does not report are derived from the
track: the car's position along it, and, by the rule of `rulka.simulator.race_end`, whether the car has left it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.error import InvalidAction
from numpy.typing import ArrayLike, NDArray

from rulka.contracts.actions import FORWARD, TICK_MS
from rulka.contracts.observation import (
    CAR,
    NUM_CAR_FIELDS,
    NUM_PREVIOUS_ACTIONS,
    ZONE_SPACING_M,
    build_floats,
    centres_of_mass,
    places_and_speeds,
)
from rulka.contracts.step_results import Floats, Images
from rulka.envs.batch import RacingCars
from rulka.envs.scoring import FULL_RACE, REWARD, TRUNCATED, Scores
from rulka.game.errors import GameError
from rulka.game.frames import grey_from_bgra
from rulka.game.link import GameLink
from rulka.game.session import Decision, GameSession
from rulka.simulator import physics
from rulka.simulator.frame_stack import FrameStack
from rulka.simulator.race_end import is_beyond_track
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.progress import PATH_SEARCH_ZONES, locate, zone_frames
from rulka.tracks.track import Track

_THE_CAR = np.ones(1, np.bool_)


class GameRace(RacingCars):
    """One car in one game, race after race; see `rulka.runtime.collector.CarBatch`.

    A lost connection ends the race as crashed; the next race reconnects, once. Before the first reset, the race counts
    as over.

    Args:
        track: line and gates of the open map.
        settings: of the races; start settings are ignored, because a game has one start.
        link: connection to the game.

    Attributes:
        frame_stack: stacked frames of the observation.
        is_crashed: True if the connection was lost in this race.

    Raises:
        GameError: if nothing listens at the link's address, or it speaks another protocol.
    """

    def __init__(self, track: Track, settings: RaceSettings, link: GameLink) -> None:
        self.settings, self.num_cars, self._track, self._link = settings, 1, track, link
        table, (frames, height, width) = settings.table, settings.image_shape
        # A run step for every action, also within a decision; several for longer ones.
        held = table.held_ticks
        step_ticks = int(np.gcd.reduce(held))
        self._place_at = np.repeat(np.arange(len(held)), held // step_ticks)
        self._session: GameSession = link.open(step_ticks * TICK_MS, width, height)
        limits = settings.simulator.physics
        self._centre, self._frames = track.exact_zones, zone_frames(track)
        crash_cosine = float(np.cos(np.radians(limits.crash_deg)))
        self._ride_m = limits.ride_m
        self._beyond = limits.off_road_m, limits.fall_m, limits.rest_m, crash_cosine
        self._table, self._keys = table, table.keys()
        self.frame_stack = FrameStack(1, (frames, height, width))
        self._view = physics.View(
            rows=np.zeros((1, NUM_CAR_FIELDS), np.float32),
            previous_keys=np.zeros((1, NUM_PREVIOUS_ACTIONS * table.actions_per_decision, 4), np.float32),
            progress=np.zeros((physics.NUM_PROGRESS, 1)),
            margin_m=np.zeros(1, np.float32),
            timing=np.zeros((physics.NUM_TIMING + 1, 1), np.int64),
            ended=np.zeros((physics.NUM_ENDS, 1), np.bool_),
        )
        self.scores = Scores(settings, track, self._view)
        self.scores.set_over(_THE_CAR)
        self.is_crashed = False

    def reset_into(self, image_out: Images, floats_out: Floats, potential_out: Floats, seed: int) -> None:
        """Begins a race, see `reset`, and writes the first observation, see `observe`; ignores the seed."""
        del seed
        self.reset()
        self.observe(image_out, floats_out, potential_out)

    def reset(self) -> None:
        """Begins a race at the start line.

        Raises:
            ClosedEnvironmentError: after `close`.
            GameError: if the connection is lost and not restored within the link's patience.
        """
        self._begin()
        self.scores.set_over(~_THE_CAR)

    def advance(self, actions: ArrayLike) -> None:
        """Takes one decision, see `RacingCars.advance`. Actions of a chunk after the finish are not executed.

        Raises:
            ClosedEnvironmentError: after `close`.
            InvalidAction: if an action is invalid.
            GameError: as in `reset`.
        """
        self.check_open()
        if self.scores.num_over:
            self._begin()
            self.scores.score()
            return
        chosen = self._checked(np.asarray(actions))
        self._remember()
        try:
            self._take(self._driven(chosen), is_first=False)
            self.scores.score()
        except GameError as error:
            self.scores.score()
            self._lose(error)

    def _begin(self) -> None:
        """Begins a race, which still counts as over; reconnects first if the connection was lost."""
        self.check_open()
        try:
            if not self.scores.num_over:
                self._session.give_up()
            decision = self._link.reconnect_and_begin(self._session) if self.is_crashed else self._session.begin()
        except GameError as error:
            if self.is_crashed:
                raise
            self._lose(error)
            decision = self._link.reconnect_and_begin(self._session)
        self.is_crashed = False
        self.scores.set_over(_THE_CAR)
        self._view.previous_keys[:] = self._keys[FORWARD]
        self._view.timing[:] = 0
        self._take(decision, is_first=True)
        self._remember()
        self.scores.begin(_THE_CAR, is_full_race=_THE_CAR)

    def _driven(self, chosen: NDArray[np.int64]) -> Decision:
        """Executes the actions [K] of a decision, repeated as the table says, and returns the resulting state."""
        keys, num_taken = self._view.previous_keys, 0
        while True:
            decision = self._session.drive([self._table.controls[index] for index in chosen[self._place_at]])
            pressed = chosen[: self._place_at[decision.num_pressed - 1] + 1]
            keys[0] = np.concatenate([keys[0, len(pressed) :], self._keys[pressed]])
            num_taken += 1
            if num_taken == self._table.repeats or decision.is_finished:
                return decision

    def observe(self, image_out: Images, floats_out: Floats, potential_out: Floats) -> None:
        """Writes image [1, L, H, W], floats [1, F] and shaping potential [1].

        A game sends no frame at the finish or on a lost connection; the newest frame is then the previous one.
        """
        image_out[:] = self.frame_stack.stack
        view, zones, zone_index = self._view, self._track.zones, self._view.timing[physics.ZONE_ROW]
        build_floats(view.rows, view.previous_keys, zones, zone_index, view.margin_m, floats_out)
        self.scores.find_potentials(potential_out)

    def state_dict(self) -> None:
        """Returns None: a game has no saved state, so races start over when a run resumes."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Is never called, because there is no state."""
        raise NotImplementedError

    def cars(self) -> Floats:
        """Returns world position in metres and speed in m/s [1, 4]."""
        return places_and_speeds(self._view.rows)

    def close(self) -> None:
        """Closes the game session; later steps and resets raise. Further calls have no effect."""
        if not self._is_closed and not self.is_crashed:
            self._link.close_quietly(self._session)
        super().close()

    def _lose(self, error: GameError) -> None:
        """Truncates the race: the last decision gets reward 0, and the race does not count as a full one."""
        self._link.report(error)
        self.is_crashed = True
        scores = self.scores
        scores.measures[REWARD], scores.flags[TRUNCATED], scores.flags[FULL_RACE] = 0.0, True, False
        scores.set_over(_THE_CAR)

    def _remember(self) -> None:
        """Stores progress and race time as those before the next decision."""
        progress = self._view.progress
        progress[physics.ALONG_BEFORE_ROW] = progress[physics.ALONG_ROW]
        progress[physics.TIME_BEFORE_ROW] = self._view.timing[physics.TIME_ROW]

    def _take(self, decision: Decision, *, is_first: bool) -> None:
        """Copies a game state into the view and locates the car on the track."""
        view, track = self._view, self._track
        view.rows[0] = decision.car
        if decision.pixels is not None:
            grey_from_bgra(decision.pixels, self.frame_stack.newest[0])
            self.frame_stack.push(has_moved=True, is_first=np.array([is_first]))
        rotation = view.rows[0, CAR["rotation"]].reshape(3, 3).astype(np.float64)
        # The centre of mass is located, as in the simulator.
        centre = centres_of_mass(view.rows[0].astype(np.float64))
        before = int(view.timing[physics.ZONE_ROW, 0])
        found = locate(centre, self._centre, self._frames, before, PATH_SEARCH_ZONES, ZONE_SPACING_M)
        zone, along_m, lateral_m, height_m = found
        view.timing[physics.ZONE_ROW], view.timing[[physics.TIME_ROW, -1]] = zone, decision.time_ms
        view.progress[physics.ALONG_ROW], view.margin_m[0] = along_m, track.length_m - along_m
        view.ended[physics.FINISHED_ROW] = decision.is_finished
        has_left = self._has_left(zone, along_m, lateral_m, height_m - self._ride_m, rotation[:, 1])
        view.ended[physics.OFF_TRACK_ROW] = not decision.is_finished and has_left

    def _has_left(self, zone: int, along_m: float, lateral_m: float, height_m: float, up: NDArray[np.float64]) -> bool:
        track, share = self._track, along_m / ZONE_SPACING_M - zone
        here, ahead = self._frames[zone, 6:9], self._frames[zone + 1, 6:9]
        normal = here + share * (ahead - here)
        aside_m = abs(lateral_m) - 0.5 * float(track.width_m[min(zone, track.num_zones - 1)])
        return is_beyond_track(aside_m, height_m, float(up @ normal / np.linalg.norm(normal)), *self._beyond)

    def _checked(self, actions: NDArray) -> NDArray[np.int64]:
        """Validates a decision [1] or [1, K] and returns its actions [K]."""
        table, last = self._table, self._table.num_actions - 1
        is_whole = actions.dtype.kind in "iu" and actions.shape == (1, *table.decision_shape)
        if not is_whole or actions.min() < 0 or actions.max() > last:
            count = "" if table.actions_per_decision == 1 else f"{table.actions_per_decision} times "
            raise InvalidAction(f"an action is {count}a whole number from 0 to {last}, got {actions!r:.200}")
        return actions.reshape(table.actions_per_decision).astype(np.int64)
