"""Races of the one car that a game drives, as collectors drive it; the gymnasium environment is made of it, too.

Observations, rewards and ends are made by what makes them of the simulator's cars: the state block becomes a `CAR` row
of a `View`, from which `build_floats` and `Scores` do the rest; the frame becomes grey. What a game cannot say is found
from the track: where the car is, and by the rule of `rulka.simulator.race_end` whether it has left the track.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.error import InvalidAction
from numpy.typing import ArrayLike, NDArray

from rulka.actions import FORWARD, TICK_MS
from rulka.envs.batch import RacingCars
from rulka.envs.scoring import FULL_RACE, REWARD, TRUNCATED, Scores
from rulka.game.errors import GameError
from rulka.game.frames import grey_from_bgra
from rulka.game.link import GameLink
from rulka.game.session import Decision, GameSession
from rulka.observation import (
    CAR,
    NUM_CAR_FIELDS,
    NUM_PREVIOUS_ACTIONS,
    ZONE_SPACING_M,
    build_floats,
    centres_of_mass,
    places_and_speeds,
)
from rulka.race_settings import RaceSettings
from rulka.simulator import physics
from rulka.simulator.frame_history import FrameHistory
from rulka.simulator.race_end import is_beyond_track
from rulka.step_results import Floats, Images
from rulka.tracks.progress import PATH_SEARCH_ZONES, locate, zone_frames
from rulka.tracks.track import Track

_THE_CAR = np.ones(1, np.bool_)


class GameRace(RacingCars):
    """One car in one game, race after race; see `rulka.runtime.collector.CarBatch`.

    A connection that is lost in a race ends that race as crashed; the next race connects anew, once.

    Args:
        track: line and gates of the map that is open.
        settings: how its races go; how they start is ignored, a game has one start.
        link: where the game is.

    Attributes:
        history: the frames that are seen.
        is_crashed: the connection was lost in this race. Before the first race, that one counts as over.

    Raises:
        GameError: if nobody listens there, or somebody who speaks another protocol.
    """

    def __init__(self, track: Track, settings: RaceSettings, link: GameLink) -> None:
        self.settings, self.num_cars, self._track, self._link = settings, 1, track, link
        table, (frames, height, width) = settings.table, settings.image_shape
        # A run step for every action, also within a decision.
        self._session: GameSession = link.open(table.ticks_per_action * TICK_MS, width, height)
        limits = settings.simulator.physics
        self._centre, self._frames = track.exact_zones, zone_frames(track)
        crash_cosine = float(np.cos(np.radians(limits.crash_deg)))
        self._ride_m = limits.ride_m
        self._beyond = limits.off_road_m, limits.fall_m, limits.rest_m, crash_cosine
        self._table, self._keys = table, table.keys()
        self.history = FrameHistory(1, (frames, height, width))
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
        """Begins a race, see `reset`, and writes what is seen then, see `observe`; the seed does nothing."""
        del seed
        self.reset()
        self.observe(image_out, floats_out, potential_out)

    def reset(self) -> None:
        """Begins a race at the start line.

        Raises:
            ClosedEnvironmentError: after `close`.
            GameError: if the game is lost, and does not come back within the patience of the link.
        """
        self._begin()
        self.scores.set_over(~_THE_CAR)

    def advance(self, actions: ArrayLike) -> None:
        """Takes one decision, see `RacingCars.advance`; in a chunk that ends at the finish later keys are not pressed.

        Raises:
            ClosedEnvironmentError: after `close`.
            InvalidAction: if an action is none.
            GameError: as of `reset`.
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
        """Begins a race, which still counts as over; connects anew first where the connection was lost."""
        self.check_open()
        try:
            if not self.scores.num_over:
                self._session.give_up()
            decision = self._link.begin_anew(self._session) if self.is_crashed else self._session.begin()
        except GameError as error:
            if self.is_crashed:
                raise
            self._lose(error)
            decision = self._link.begin_anew(self._session)
        self.is_crashed = False
        self.scores.set_over(_THE_CAR)
        self._view.previous_keys[:] = self._keys[FORWARD]
        self._view.timing[:] = 0
        self._take(decision, is_first=True)
        self._remember()
        self.scores.begin(_THE_CAR, is_full_race=_THE_CAR)

    def _driven(self, chosen: NDArray[np.int64]) -> Decision:
        """Takes the actions [K] of a decision as often as the table says, and returns what is seen then."""
        keys, num_taken = self._view.previous_keys, 0
        while True:
            decision = self._session.drive([self._table.controls[index] for index in chosen])
            pressed = chosen[: decision.num_pressed]
            keys[0] = np.concatenate([keys[0, len(pressed) :], self._keys[pressed]])
            num_taken += 1
            if num_taken == self._table.repeats or decision.is_finished:
                return decision

    def observe(self, image_out: Images, floats_out: Floats, potential_out: Floats) -> None:
        """Writes image [1, L, H, W], floats [1, F] and shaping potential [1].

        A game sends no frame at the finish, or when it is lost; the newest frame is then that of the decision before.
        """
        image_out[:] = self.history.seen
        view, zones, zone_index = self._view, self._track.zones, self._view.timing[physics.ZONE_ROW]
        build_floats(view.rows, view.previous_keys, zones, zone_index, view.margin_m, floats_out)
        self.scores.find_potentials(potential_out)

    def state_dict(self) -> None:
        """Returns nothing: a game's races begin anew when a run goes on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Is never called: there is no state."""
        raise NotImplementedError

    def cars(self) -> Floats:
        """Returns [1, 4] where the car is, world metres, and its speed in m/s."""
        return places_and_speeds(self._view.rows)

    def close(self) -> None:
        """Hands the game back, and refuses every later step and reset; a second time does nothing."""
        if not self._is_closed and not self.is_crashed:
            self._link.let_go(self._session)
        super().close()

    def _lose(self, error: GameError) -> None:
        """Ends the race, without pay for the last decision, and not as a whole one."""
        self._link.report(error)
        self.is_crashed = True
        scores = self.scores
        scores.measures[REWARD], scores.flags[TRUNCATED], scores.flags[FULL_RACE] = 0.0, True, False
        scores.set_over(_THE_CAR)

    def _remember(self) -> None:
        """Keeps where the car is and its clock as those before the next decision."""
        progress = self._view.progress
        progress[physics.ALONG_BEFORE_ROW] = progress[physics.ALONG_ROW]
        progress[physics.TIME_BEFORE_ROW] = self._view.timing[physics.TIME_ROW]

    def _take(self, decision: Decision, *, is_first: bool) -> None:
        """Takes over what is seen, and finds where on the track that is."""
        view, track = self._view, self._track
        view.rows[0] = decision.car
        if decision.pixels is not None:
            grey_from_bgra(decision.pixels, self.history.newest[0])
            self.history.add(has_moved=True, is_first=np.array([is_first]))
        rotation = view.rows[0, CAR["rotation"]].reshape(3, 3).astype(np.float64)
        # Where the centre of mass is, as in the simulator.
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
        """Returns the actions [K] of a decision [1] or [1, K]."""
        table, last = self._table, self._table.num_actions - 1
        is_whole = actions.dtype.kind in "iu" and actions.shape == (1, *table.decision_shape)
        if not is_whole or actions.min() < 0 or actions.max() > last:
            count = "" if table.actions_per_decision == 1 else f"{table.actions_per_decision} times "
            message = f"an action is {count}a whole number from 0 to {last}, got {actions!r:.200}"
            raise InvalidAction(message)
        return actions.reshape(table.actions_per_decision).astype(np.int64)
