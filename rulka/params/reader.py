"""Reading and validation of `params.yaml` and other files of sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from rulka.contracts.problems import problems_of
from rulka.contracts.section import Section
from rulka.machine.disk import check_readable
from rulka.machine.errors import UserError
from rulka.params.sections import Params
from rulka.stages.graph import PARAMS_FILE, read_graph, sections_of_stage

SectionT = TypeVar("SectionT", bound=Section)


def read_sections(path: Path) -> dict[str, Any]:
    """Reads a YAML file of sections without validating their content.

    Args:
        path: the file.

    Raises:
        UserError: if the file cannot be read, is not UTF-8 or YAML, or is not a mapping.
    """
    try:
        data = parsed(check_readable(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; run from the root of the project") from error
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise UserError(message, hint="Save it again as UTF-8, or take it from the repository.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold sections of keys, not {'nothing' if data is None else repr(data)[:80]}")
    return data


def read_params(path: Path = PARAMS_FILE) -> Params:
    """Reads and validates all parameters.

    Raises:
        UserError: if the file is missing, is not YAML, or a key is unknown, missing or of a wrong type.
    """
    return checked_params(read_sections(path), f"{path} is wrong")


def parsed(text: str) -> Any:
    """Parses YAML 1.2 as DVC does: 010 is 10, 1e-3 a number, and 1:30 a string.

    Raises:
        ValueError: if the text is not valid YAML.
    """
    try:
        return YAML(typ="safe", pure=True).load(text)  # libyaml's errors do not name a tab
    except MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        tab = r"character '\t' that cannot start any token"
        raise ValueError(f"{error.problem}{where}".replace(tab, "a tab; YAML indents by spaces")) from error
    except YAMLError as error:
        raise ValueError(str(error)) from error


def resolved(sections: dict[str, Any], what_is_wrong: str) -> dict[str, Any]:
    """Returns all parameters as plain values: the given sections, completed with defaults.

    Raises:
        UserError: see `checked_params`.
    """
    return checked_params(sections, what_is_wrong).model_dump(mode="json")


def checked_params(data: dict[str, Any], what_is_wrong: str) -> Params:
    """Validates plain values and returns them as parameters.

    Args:
        data: as returned by `read_sections`.
        what_is_wrong: begins the error message.

    Raises:
        UserError: if a key is unknown, missing or of a wrong type; with one line for each.
    """
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        message = what_is_wrong + ":" + "".join(f"\n  {line}" for line in problems_of(error, Params))
        is_unknown = any(problem["type"] == "extra_forbidden" for problem in error.errors())
        hint = "`rulka params list` shows all keys; delete one that an earlier version had." if is_unknown else ""
        raise UserError(message, hint=hint) from error


def with_given(section: SectionT, **given: Any) -> SectionT:
    """Returns a section with the given values, ignoring None, and validates it.

    `model_copy` does not validate; use that only for values known to be valid.

    Raises:
        UserError: if a value is out of range.
    """
    values = {name: value for name, value in given.items() if value is not None}
    try:
        return type(section).model_validate(dict(section) | values)
    except ValidationError as error:
        raise UserError("; ".join(problems_of(error, type(section)))) from error


def sections_of(stage: str, params: Params) -> dict[str, Section]:
    """Returns the sections that `dvc.yaml` names for a stage, by name."""
    names = sections_of_stage(read_graph()[stage], {"train": {"algorithm": params.train.algorithm}})
    return {name: getattr(params, name) for name in names}


def reference_params() -> Params:
    """Returns the parameters shipped with the package, independent of the current directory.

    They are for environments created without a configuration; stages never use them.
    """
    return read_params(packaged_file(PARAMS_FILE))


def packaged_file(path: Path) -> Path:
    """Returns the path of a file or folder of the project, independent of the current directory.

    In a checkout it is in the repository; in an installed wheel, it is the wheel's copy in `rulka/project`.
    """
    package = Path(__file__).resolve().parents[1]
    is_checkout = (package.parent / "pyproject.toml").is_file()
    return package.parent / path if is_checkout else package / "project" / path


def one_line(value: Any) -> str:
    """Formats a value as one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).removesuffix("\n...\n").strip()
