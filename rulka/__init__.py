"""Rulka: a pipeline that teaches a car to race, from human recordings to an evaluated driver.

Importing it registers `rulka/Race-v0` and `rulka/Game-v0` with gymnasium and loads nothing heavier than that. The names
in `__all__` are what programs may use, see docs/library.md; each is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register

if TYPE_CHECKING:
    from rulka.datasets.formats.frames import FrameDataset
    from rulka.datasets.formats.races import RaceDataset
    from rulka.library import (
        Agent,
        ContractError,
        ImageEncoder,
        ObservationError,
        Score,
        evaluate,
        load_agent,
        load_encoder,
        load_frames,
        load_races,
        load_track,
        plot_track,
        read_recording,
    )
    from rulka.machine.errors import UserError
    from rulka.tracks.track import Track

__all__ = [
    "Agent",
    "ContractError",
    "FrameDataset",
    "ImageEncoder",
    "ObservationError",
    "RaceDataset",
    "Score",
    "Track",
    "UserError",
    "evaluate",
    "load_agent",
    "load_encoder",
    "load_frames",
    "load_races",
    "load_track",
    "plot_track",
    "read_recording",
]

_HOMES = {
    "FrameDataset": "rulka.datasets.formats.frames",
    "RaceDataset": "rulka.datasets.formats.races",
    "Track": "rulka.tracks.track",
    "UserError": "rulka.machine.errors",
}
"""Where public names are from; all others are from `rulka.library`."""

register(
    id="rulka/Race-v0",
    entry_point="rulka.envs.race:RaceEnv",
    vector_entry_point="rulka.envs.vector:RaceVectorEnv",
)
register(id="rulka/Game-v0", entry_point="rulka.envs.game:GameEnv")


def __getattr__(name: str) -> Any:
    """Returns a public name."""
    if name == "__version__":
        return version("rulka")
    if name not in __all__:
        raise AttributeError(f"module 'rulka' has no attribute {name!r}")
    _refuse_other_models()
    return getattr(import_module(_HOMES.get(name, "rulka.library")), name)


def _refuse_other_models() -> None:
    """Raises ImportError where a file beside somebody's script hides the package `models` that lies beside this one."""
    found = find_spec("models")
    # Resolved, for a project links to the packages that made it.
    places = [Path(place).resolve() for place in (found and found.submodule_search_locations) or ()]
    if Path(__file__).resolve().parents[1] / "models" not in places:
        message = f"Python finds {found and found.origin} where Rulka's package `models` should be: rename that file"
        raise ImportError(message)


def __dir__() -> list[str]:
    """Returns the public names, too, before they are loaded."""
    return sorted({*globals(), *__all__})
