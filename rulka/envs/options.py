"""What `reset(options=...)` of the environments may hold: where to begin, a saved state, which cars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.envs.settings import SettingsError
from rulka.simulator.race_start import Starts

STATE, MASK = "state", "reset_mask"


def check_options(options: Mapping[str, Any] | None, further: tuple[str, ...]) -> Mapping[str, Any]:
    """Returns the options, or raises SettingsError where one is not known or contradicts another.

    Args:
        options: as given to `reset`.
        further: names allowed beside the places.
    """
    given = {} if options is None else options
    known = (*Starts._fields, *further)
    unknown = sorted(set(given) - set(known), key=str)
    if unknown:
        message = f"unknown reset options {unknown}; known are {list(known)}"
        raise SettingsError(message)
    if STATE in given and len(given) > 1:
        message = f"the reset option {STATE!r} says all; it excludes {sorted(set(given) - {STATE})}"
        raise SettingsError(message)
    return given


def read_places(options: Mapping[str, Any], num_cars: int) -> dict[str, NDArray[np.float64]]:
    """Returns the places among the options, one number for all cars or one for each.

    Raises:
        SettingsError: if one is not a finite number, or not as many as cars.
    """
    places: dict[str, NDArray[np.float64]] = {}
    for name in Starts._fields:
        if name not in options:
            continue
        try:
            places[name] = np.broadcast_to(np.asarray(options[name], np.float64), (num_cars,))
        except (TypeError, ValueError) as error:
            message = f"the reset option {name!r} is a number or {num_cars} of them, got {options[name]!r:.120}"
            raise SettingsError(message) from error
        if not np.isfinite(places[name]).all():
            message = f"the reset option {name!r} must be finite, got {options[name]!r:.120}"
            raise SettingsError(message)
    return places


def read_mask(options: Mapping[str, Any], num_cars: int) -> NDArray[np.bool_] | None:
    """Returns which cars [N] are to begin anew, or None for all.

    Raises:
        SettingsError: if it is not an array of truth values, one for each car, at least one of them true.
    """
    if MASK not in options:
        return None
    mask = options[MASK]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_cars,) or not mask.any():
        message = f"the reset option {MASK!r} is a bool array of {num_cars} with at least one True, got {mask!r:.120}"
        raise SettingsError(message)
    return mask
