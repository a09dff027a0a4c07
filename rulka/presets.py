"""Presets: whole alternatives to `params.yaml`, each a file of the keys that differ, laid over it.

`null` in a preset is a value like any other. Comments of `params.yaml` are not kept, as YAML readers drop them.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rulka.errors import UserError
from rulka.params import PARAMS_FILE, Params, ParamsError

PRESETS_DIR = Path("presets")


class PresetError(UserError):
    """A preset does not exist, or does not fit `params.yaml`."""


def preset_names(folder: Path = PRESETS_DIR) -> list[str]:
    """Returns the names of all presets."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def apply_preset(name: str, params_file: Path = PARAMS_FILE, folder: Path = PRESETS_DIR) -> list[str]:
    """Lays a preset over the parameters and writes them, if the result is valid.

    Args:
        name: of the preset.
        params_file: read, and written at once or not at all.
        folder: where presets lie.

    Returns:
        One line for each key that changed: "iqn.n_steps: 3 -> 5".

    Raises:
        PresetError: if there is no such preset, it holds a key that `params.yaml` has not, or it is no mapping.
        ParamsError: if the result is not valid.
    """
    if name not in preset_names(folder):
        message = f"no preset is called {name!r}; {folder} holds {', '.join(preset_names(folder)) or 'none'}"
        raise PresetError(message)
    overlay, base = _read(folder / f"{name}.yaml"), _read(params_file)
    changes: list[str] = []
    merged = _overlaid(base, overlay, "", changes, name)
    try:
        Params.model_validate(merged)
    except ValidationError as error:
        message = f"preset {name!r} does not fit {params_file}: {error}"
        raise ParamsError(message) from error
    text = f"# params.yaml with preset {name}; typed by rulka/params.py.\n"
    text += yaml.safe_dump(merged, sort_keys=False, default_flow_style=None, width=110)
    aside = params_file.with_suffix(".yaml.new")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, params_file)
    return changes


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}; run from the root of the project"
        raise PresetError(message) from error
    except yaml.YAMLError as error:
        message = f"{path} is not valid YAML: {error}"
        raise PresetError(message) from error
    if not isinstance(data, dict):
        message = f"{path} must hold sections of keys"
        raise PresetError(message)
    return data


def _overlaid(base: dict[str, Any], overlay: dict[str, Any], inside: str, changes: list[str], name: str) -> dict:
    """Returns a copy of `base` with the values of `overlay`; a section that is null in `base` is taken as it is."""
    result = copy.copy(base)
    for key, value in overlay.items():
        where = f"{inside}{key}"
        if key not in base:
            message = f"preset {name!r} has the unknown key {where}"
            raise PresetError(message)
        if isinstance(base[key], dict) and isinstance(value, dict) and "points" not in value:
            result[key] = _overlaid(base[key], value, f"{where}.", changes, name)
        elif base[key] != value:
            result[key] = value
            changes.append(f"{where}: {_short(base[key])} -> {_short(value)}")
    return result


def _short(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
