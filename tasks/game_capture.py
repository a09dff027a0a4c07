"""Captures frames of a race in the game: replays its keys tick by tick and verifies the result.

A race counts as captured if the game reproduces its checkpoint and finish times to the millisecond. Any difference
means that another race was driven: another map, another start, other keys, a dropped input. Such a race is quarantined
with the reason and never used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS, Controls
from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.datasets.capture import CaptureSettings, captured_race
from rulka.datasets.formats.frames import CapturedRace
from rulka.datasets.formats.races import Race
from rulka.game.errors import GameError
from rulka.game.frames import grey_from_bgra
from rulka.game.link import GameLink
from rulka.game.session import Decision, GameSession
from rulka.machine.errors import UserError
from rulka.tracks.track import Track

QUARANTINE_FILE = "quarantine.json"
GRACE_DECISIONS = 2
"""Extra decisions after the recorded finish before a race counts as unfinished."""
START_TOLERANCE_M = 0.01


class ReplayError(UserError):
    """A race cannot be captured in the game, or its replay differs; the message says why."""


class GameCapture:
    """Captures races in one game, until `close`.

    Args:
        link: link to the game, in which the map of the races is open.
        track: track of that map.
        settings: capture settings.

    Raises:
        GameError: if there is no game.
    """

    def __init__(self, link: GameLink, track: Track, settings: CaptureSettings) -> None:
        self._link, self._track, self._settings = link, track, settings
        self._session: GameSession = link.open(TICK_MS, settings.width, settings.height)

    def capture(self, race: Race) -> CapturedRace:
        """Replays one race. If the connection is lost, reconnects once and restarts the race.

        Raises:
            ReplayError: if the race cannot be driven with keys, or its times differ in the game.
            GameError: if the game is lost and reconnecting fails.
        """
        keys = keys_by_tick(race)
        try:
            return self._drive(race, keys, self._session.begin())
        except GameError as error:
            self._link.report(error)
            return self._drive(race, keys, self._link.reconnect_and_begin(self._session))

    def close(self) -> None:
        """Releases the game."""
        self._link.close_quietly(self._session)

    def _drive(self, race: Race, keys: Sequence[Controls], decision: Decision) -> CapturedRace:
        """Presses the keys of the race from its first decision on; captures only at decisions."""
        settings, per_decision = self._settings, self._settings.table.decision_ticks
        decision_ms = np.arange(0, race.duration_ms, settings.table.duration_ms, dtype=np.int64)
        cars = np.empty((len(decision_ms), NUM_CAR_FIELDS), np.float32)
        image = np.empty((len(decision_ms), settings.height, settings.width), np.uint8)
        start_m = decision.car[CAR["position"]].copy()
        for number in range(len(decision_ms) + GRACE_DECISIONS * race.is_finished):
            if number < len(decision_ms) and decision.pixels is not None:
                cars[number] = decision.car
                grey_from_bgra(decision.pixels, image[number])
            held = keys[number * per_decision : (number + 1) * per_decision]
            decision = self._session.drive(held or [keys[-1]] * per_decision)
            if decision.is_finished:
                break
        if not decision.is_finished:
            self._session.give_up()
        _verify(race, decision, start_m)
        return captured_race(race, self._track, decision_ms, cars, image, settings)


def keys_by_tick(race: Race) -> list[Controls]:
    """Returns the keys to press in the run step of every tick, whose state is the first to show them.

    Args:
        race: the race with the inputs.

    Raises:
        ReplayError: if there are analog inputs: the link to the game only takes keys.
    """
    steer, gas, brake = race.controls.T
    is_key = np.isin(steer, (-1.0, 0.0, 1.0)) & np.isin(gas, (0.0, 1.0)) & np.isin(brake, (0.0, 1.0))
    if not is_key.all():
        message = f"analog inputs, first at {int(np.argmin(is_key)) * TICK_MS} ms: the game's link takes keys alone"
        raise ReplayError(message)
    pressed = np.stack([gas > 0, brake > 0, steer < 0, steer > 0], axis=1)
    return [Controls(*map(bool, row)) for row in pressed]


def _verify(race: Race, decision: Decision, start_m: NDArray[np.float32]) -> None:
    """Raises ReplayError if the game's times are not those of the race, listing all differences."""
    times = decision.state.checkpoints["time_ms"]
    driven = tuple(int(time) for time in times[times > 0])
    problems = []
    if decision.is_finished != race.is_finished:
        problems.append("finished in the game alone" if decision.is_finished else "not finished in the game")
    elif race.is_finished and decision.time_ms != race.race_time_ms:
        problems.append(f"finish at {decision.time_ms} ms in the game, {race.race_time_ms} ms in the race")
    if driven != race.checkpoint_times_ms:
        problems.append(
            f"checkpoints at {_named(driven)} ms in the game, {_named(race.checkpoint_times_ms)} in the race"
        )
    if not problems:
        return
    away_m = float(np.linalg.norm(start_m - race.state[0, CAR["position"]]))
    if race.state_time_ms[0] == 0 and away_m > START_TOLERANCE_M:
        problems.append(f"it began {away_m:.2f} m from where the game begins")
    raise ReplayError("; ".join(problems))


def _named(times: Sequence[int]) -> str:
    return ", ".join(map(str, times)) or "no time"


def write_quarantine(folder: Path, reasons: Mapping[str, str]) -> None:
    """Writes `quarantine.json`: id and reason of each rejected race; an empty list if there are none."""
    rows = [{"race_id": race_id, "reason": reason} for race_id, reason in reasons.items()]
    (folder / QUARANTINE_FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
