"""Filters of `races.select` for training races, each with its own error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from rulka.datasets.formats.races import QuarantinedFile, Race, RaceDataset
from rulka.datasets.params import SelectParams
from rulka.machine.errors import UserError, counted


class UnusableRecordingError(UserError):
    """A readable recording that is unsuitable for training."""


class OtherDeviceError(UnusableRecordingError):
    """The race was driven with another input device than selected."""


class DurationError(UnusableRecordingError):
    """The race is shorter or longer than selected."""


class OtherCarError(UnusableRecordingError):
    """The race was driven with another car than selected, or with a later game's car of that name."""


class OtherEnvironmentError(UnusableRecordingError):
    """The race was driven in another environment than selected."""


class TooSlowError(UnusableRecordingError):
    """The race is too slow compared with the best one on its map."""


def refuse_unwanted(
    select: SelectParams, *, device: Literal["keyboard", "analog"], car: str, environment: str, race_time_ms: int | None
) -> None:
    """Checks a single race against the filters that need no other races.

    Args:
        select: the filters.
        device: input device of the driver.
        car: name of the car; empty if it is not known.
        environment: name of the environment.
        race_time_ms: race time; None without a finish.

    Raises:
        UnusableRecordingError: if it fails a filter; the subclass says which.
    """
    if select.device not in ("any", device):
        message = f"driven with {device} inputs, {select.device} is wanted"
        raise OtherDeviceError(message, hint="Set races.select.device in params.yaml to any to use both.")
    if select.car is not None and car not in ("", select.car):  # the oldest games name no car
        message = f"driven with the car {car!r}, {select.car!r} is wanted"
        simulated = "Only the StadiumCar of TrackMania Forever and United is simulated."
        raise OtherCarError(message, hint=f"{simulated} Set races.select.car in params.yaml to null to use any car.")
    wanted = select.environment
    if wanted is not None and environment.casefold() != wanted.casefold():
        message = f"driven in the environment {environment!r}, {wanted!r} is wanted"
        raise OtherEnvironmentError(message, hint="Set races.select.environment in params.yaml to null to use any.")
    race_s = (race_time_ms or 0) / 1000
    least, most = select.min_race_s or 0.0, select.max_race_s or math.inf
    if race_time_ms is not None and not least <= race_s <= most:
        message = f"the race takes {race_s:.2f} s, outside of {select.min_race_s} to {select.max_race_s} s"
        raise DurationError(message, hint="Change races.select.min_race_s or max_race_s in params.yaml.")


def too_slow(races: Iterable[Race], max_best_ratio: float | None) -> dict[str, TooSlowError]:
    """Returns an error by id for races that take more than `max_best_ratio` times the best on their map."""
    if max_best_ratio is None:
        return {}
    races = list(races)
    best_ms: dict[str, int] = {}
    for race in races:
        best_ms[race.map_uid] = min(best_ms.get(race.map_uid, race.duration_ms), race.duration_ms)
    slow = {}
    for race in races:
        best = best_ms[race.map_uid]
        if race.duration_ms > max_best_ratio * best:
            message = f"{race.duration_ms / 1000:.2f} s, the best on its map takes {best / 1000:.2f} s"
            hint = "Raise races.select.max_best_ratio in params.yaml, or set it to null."
            slow[race.race_id] = TooSlowError(message, hint=hint)
    return slow


def quarantined(file: str, error: UserError, ghost: str = "") -> QuarantinedFile:
    """Returns the quarantine row of a rejected file; `ghost` is a message prefix that names a ghost of it."""
    return QuarantinedFile(file, f"{type(error).__name__}: {ghost}{error}", error.hint)


def summary_of(dataset: RaceDataset) -> str:
    """Returns a one-line summary: races and maps used, and rejections by reason."""
    quarantine = dataset.quarantine
    reasons = Counter(item.error.split(":")[0].removesuffix("Error") for item in quarantine)
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda one: (-one[1], one)))
    used = f"{counted(len(dataset.races), 'race')} of {counted(len(dataset.tracks), 'map')} used"
    return f"{used}, {len(quarantine)} not used" + (f": {listed}" if listed else "")
