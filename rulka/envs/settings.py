"""Arguments of the environments: keywords, which become one `RaceSettings`, and the options of `reset`.

Missing keywords, and missing fields of a keyword, come from the reference parameters of the package
(`reference_params`), so that `gymnasium.make("rulka/Race-v0")` works anywhere: a timed race from the start line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rulka.contracts.observation import num_floats
from rulka.contracts.problems import did_you_mean
from rulka.machine.errors import UserError
from rulka.params import reference_params
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.race_start import Starts
from rulka.tracks.find import find_track
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

FLOAT_LIMIT = 1e6
"""Bound of the float observations' space; valid values are far smaller."""


def read_track(track: Track | Path | str | None) -> Track:
    """Returns a track as it is, or loads it by campaign slug or file; None is the track of the reference parameters.

    Raises:
        UserError: if it is anything else.
        TrackError: if there is no track of that name, or the file holds no valid track.
    """
    if track is None:
        return generate_track(**reference_params().track.model_dump())
    if not isinstance(track, Track | Path | str):
        raise UserError(f"track is a track, a slug of the campaign or a track file, got {track!r:.80}")
    return track if isinstance(track, Track) else find_track(track)


def action_space(settings: RaceSettings) -> spaces.Space[Any]:
    """Returns the action space of one car."""
    if settings.continuous:
        return spaces.Box(np.array([-1.0, 0.0, 0.0], np.float32), np.ones(3, np.float32), dtype=np.float32)
    if settings.table.actions_per_decision > 1:
        return spaces.MultiDiscrete([settings.table.num_actions] * settings.table.actions_per_decision)
    return spaces.Discrete(settings.table.num_actions)


def observation_space(settings: RaceSettings) -> spaces.Dict:
    """Returns the observation space of one car."""
    floats = (num_floats(settings.table.actions_per_decision),)
    return spaces.Dict(
        {
            "image": spaces.Box(0, 255, settings.image_shape, np.uint8),
            "floats": spaces.Box(-FLOAT_LIMIT, FLOAT_LIMIT, floats, np.float32),
        }
    )


STATE, MASK = "state", "reset_mask"


def check_options(options: Mapping[str, Any] | None, further: tuple[str, ...]) -> Mapping[str, Any]:
    """Returns the options, or raises UserError if one is unknown or contradicts another.

    Args:
        options: as given to `reset`.
        further: names allowed in addition to the fields of `Starts`.
    """
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise UserError(f"reset options are a mapping, got {given!r:.80}")
    known = (*Starts._fields, *further)
    unknown = sorted(set(given) - set(known), key=str)
    if unknown:
        near = did_you_mean(str(unknown[0]), known) or f"; known are {list(known)}"
        raise UserError(f"unknown reset options {unknown}{near}")
    if STATE in given and len(given) > 1:
        raise UserError(f"the reset option {STATE!r} says all; it excludes {sorted(set(given) - {STATE})}")
    return given


def read_places(options: Mapping[str, Any], num_cars: int) -> dict[str, NDArray[np.float64]]:
    """Returns the fields of `Starts` among the options, each broadcast to all cars [N].

    Raises:
        UserError: if one is not finite, or is neither one number nor one per car.
    """
    places: dict[str, NDArray[np.float64]] = {}
    for name in [name for name in Starts._fields if name in options]:
        try:
            places[name] = np.broadcast_to(np.asarray(options[name], np.float64), (num_cars,))
            is_right = bool(np.isfinite(places[name]).all())
        except (TypeError, ValueError):
            is_right = False
        if not is_right:
            message = f"the reset option {name!r} is a finite number or {num_cars} of them, got {options[name]!r:.120}"
            raise UserError(message)
    return places


def read_mask(options: Mapping[str, Any], num_cars: int) -> NDArray[np.bool_] | None:
    """Returns the mask [N] of cars to reset, or None for all.

    Raises:
        UserError: if it is not a bool array with one value per car, at least one of them True.
    """
    if MASK not in options:
        return None
    mask = options[MASK]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_cars,) or not mask.any():
        message = f"the reset option {MASK!r} is a bool array of {num_cars} with at least one True, got {mask!r:.120}"
        raise UserError(message)
    return mask
