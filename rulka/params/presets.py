"""Presets: overlays for `params.yaml`, each a file of the keys that differ.

`null` in a preset is a value like any other. Only changed lines are rewritten; comments stay. A key missing from the
file is added to its section. A section that is empty in the file is copied from the preset with its comments. The file
before and after each preset is kept in `runs/`, so that the last preset can be undone while the file is unchanged.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import takewhile
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

from rulka.agents.params import ALGORITHMS
from rulka.contracts.problems import did_you_mean
from rulka.contracts.stored import checked
from rulka.machine.errors import UserError
from rulka.params import PARAMS_FILE, Params, checked_params, keys_of, packaged_file, read_sections, resolved
from rulka.params.reader import one_line, parsed
from rulka.params.writer import with_sections, with_values
from rulka.stages.folders import PRESETS_DIR, PRESETS_LOG, preset_names
from rulka.stages.outputs import new_file

ENVIRONMENTS = "environments"
"""Folder in `PRESETS_DIR`: `any.yaml` for all Gymnasium environments, and one file by environment ID for some."""
HEADER = "# params.yaml with preset "
"""Prefix of the first line of a file with presets; the names of all applied presets follow, newest last."""
_END_OF_SENTENCE = re.compile(r"\.(?=\s+[A-Z]|$)")


class Applied(NamedTuple):
    """Result of applying or undoing a preset.

    Attributes:
        changes: one line per changed key: "iqn.n_steps: 3 -> 5".
        remarks: notes for the user: the comment at the top of the preset, presets applied before, changes that do not
            affect the agent, sections filled in.
    """

    changes: list[str]
    remarks: list[str]


def known_presets() -> dict[str, str]:
    """Returns each preset's name with the first sentence of its top comment, empty if it has none.

    Raises:
        UserError: if there are none.
    """
    found, names = {}, preset_names()
    if not names:
        message = f"there are no presets in {PRESETS_DIR.absolute()}"
        raise UserError(message, hint="Run this from the root of the project.")
    for name in names:
        found[name] = _END_OF_SENTENCE.split(_top_comment(PRESETS_DIR / f"{name}.yaml"))[0]
    return found


def apply_preset(name: str) -> Applied:
    """Applies a preset to `params.yaml`. Writes atomically, and only if the result is valid and differs.

    Raises:
        UserError: if the preset does not exist, is not a mapping or has a key that `params.yaml` does not have, the
            result is not valid, or the parameters cannot be written.
    """
    if name not in preset_names():
        raise UserError(f"no preset is called {name!r}; {PRESETS_DIR} holds {', '.join(preset_names()) or 'none'}")
    preset_file = PRESETS_DIR / f"{name}.yaml"
    overlay, written = read_sections(preset_file), read_sections(PARAMS_FILE)
    base = resolved(written, f"{PARAMS_FILE} is wrong")
    found = list(differences(base, overlay, f"preset {name!r}"))
    merged = merge_overlay(base, overlay, f"preset {name!r}")
    params = checked_params(merged, f"preset {name!r} does not fit {PARAMS_FILE}")
    text = _text(PARAMS_FILE)
    below = _applied_before(text)
    brought = [section for section, values in overlay.items() if values and not written.get(section)]
    body = with_sections(text.partition("\n")[2] if below else text, _text(preset_file), brought)
    body = with_values(body, {keys: new for keys, _, new in found if keys[0] not in brought})
    changes = _format_changes(found)
    remarks = _remarks(below, name, changes, params)
    if changes and (comment := _top_comment(preset_file)):
        remarks.insert(0, comment)
    if brought:  # most of such a section is at its defaults, which `changes` does not list
        remarks.append(f"{PARAMS_FILE} now shows what {name} sets in {', '.join(brought)}")
    if changes or brought:
        names = [*(other for other in below if other != name), name]
        after = f"{HEADER}{', '.join(names)}\n{body}"
        note = {"preset": name, "before": text, "after": after}
        _write(after, [*_noted(), note])
    return Applied(changes, remarks)


def undo_preset() -> Applied:
    """Restores, atomically, the file from before the last preset.

    Raises:
        UserError: if no preset is applied, the file was changed after the last one, or the parameters cannot be read
            or written.
    """
    sections, text, notes = read_sections(PARAMS_FILE), _text(PARAMS_FILE), _noted()
    names = _applied_before(text)
    if not names:
        raise UserError(f"no preset lies over {PARAMS_FILE}: its first line names none")
    if not notes or notes[-1].get("after") != text:
        message = f"{PARAMS_FILE} is not as preset {names[-1]} left it here, and what was changed since would be lost"
        raise UserError(message, hint="`git diff params.yaml` shows all that differs, to be taken back by hand.")
    now, before = (resolved(each, f"{PARAMS_FILE} is wrong") for each in (sections, parsed(notes[-1]["before"])))
    changes = _format_changes(differences(now, before, f"{PARAMS_FILE} before"))
    _write(notes[-1]["before"], notes[:-1])
    return Applied(changes, [])


def _format_changes(found: Iterable[tuple[tuple[str, ...], Any, Any]]) -> list[str]:
    return [f"{'.'.join(keys)}: {one_line(old)} -> {one_line(new)}" for keys, old, new in found]


def _noted() -> list[dict[str, Any]]:
    """Reads the log of applied presets: each entry has the preset's name and the file's text `before` and `after`."""
    lines = PRESETS_LOG.read_bytes().splitlines() if PRESETS_LOG.is_file() else []
    hint = "Remove that file; parameters are then taken back by hand, see `git diff params.yaml`."
    return [checked(line, dict[str, str], PRESETS_LOG.as_posix(), hint=hint) for line in lines]


def _write(text: str, notes: list[dict[str, Any]]) -> None:
    """Writes the parameters and the preset log, both or neither."""
    PRESETS_LOG.parent.mkdir(exist_ok=True)
    with new_file(PRESETS_LOG) as new_notes, new_file(PARAMS_FILE) as new_params:
        new_params.write_bytes(text.encode())
        new_notes.write_text("".join(f"{json.dumps(note)}\n" for note in notes), encoding="utf-8")


def environment_params(environment: str, *overlays: Mapping[str, Any]) -> Params:
    """Returns the parameters for training in a Gymnasium environment.

    They are `params.yaml` with these applied in order: `scratch`, `environments/any`, the environment's own preset if
    there is one, and the overlays. A file missing from the working folder is taken from the package.

    Args:
        environment: its ID; a module prefix is ignored.
        *overlays: sections of keys; later ones take precedence.

    Raises:
        UserError: if a key is unknown, or the result is not valid.
    """
    names = ("scratch", f"{ENVIRONMENTS}/any", f"{ENVIRONMENTS}/{environment.rpartition(':')[2]}")
    params_file, *layers = map(_nearest, (PARAMS_FILE, *(PRESETS_DIR / f"{name}.yaml" for name in names)))
    sections = resolved(read_sections(params_file), f"{params_file} is wrong")
    for file in filter(Path.is_file, layers):  # few environments have their own preset
        sections = merge_overlay(sections, read_sections(file), file.as_posix())
    for overlay in overlays:
        sections = merge_overlay(sections, overlay, "the command line")
    return checked_params(sections, f"the parameters for {environment} are wrong")


def _nearest(path: Path) -> Path:
    return path if path.is_file() else packaged_file(path)


def _remarks(below: list[str], name: str, changes: list[str], params: Params) -> list[str]:
    remarks = []
    others = [other for other in below if other != name]
    if others and changes:
        remarks.append(
            f"{', '.join(others)} had been applied before: what {name} does not set stays as that left it;"
            " take params.yaml from git to begin from the repository's values"
        )
    # Changes to algorithms other than the agent's. A key ends at the ":" of its change, ": old -> new".
    for other in ALGORITHMS:
        if other == params.train.algorithm:
            continue
        num_others = sum(change.replace(":", ".", 1).startswith(keys_of(other)) for change in changes)
        if num_others:
            is_compared = other in params.train.algorithms
            where = "which is trained for comparison only" if is_compared else "which is not trained"
            remarks.append(
                f"{num_others} of {len(changes)} changes act on {other.upper()} alone, {where}: train.algorithm is"
                f" {params.train.algorithm}; set it to {other} to get an agent of this preset"
            )
    return remarks


def _applied_before(text: str) -> list[str]:
    """Returns the applied presets named in the first line of the parameters, if any."""
    first = text.partition("\n")[0]
    return first.removeprefix(HEADER).split(", ") if first.startswith(HEADER) else []


def _top_comment(path: Path) -> str:
    """Returns the comment at the top of a preset, without its line breaks."""
    lines = takewhile(lambda line: line.startswith("#"), _text(path).splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def _text(path: Path) -> str:
    """Returns a text with its line endings unchanged. `read_sections` reports invalid UTF-8."""
    return path.read_bytes().decode(errors="replace")


def differences(
    base: dict[str, Any],
    overlay: dict[str, Any],
    whose: str,
    inside: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yields each change that an overlay makes: key path, old value and new value.

    An overlay replaces these as a whole: a section that is null in `base`, a schedule, and a section of another kind.
    Half of one makes no sense.

    Args:
        base: the sections to change.
        overlay: the keys that differ.
        whose: begins the message of an error.
        inside: key path of both.

    Raises:
        UserError: if `overlay` has a key that `base` does not have.
    """
    for key, value in overlay.items():
        keys = (*inside, key)
        if key not in base:
            raise UserError(f"{whose} has the unknown key {'.'.join(keys)}{did_you_mean(key, base)}")
        if isinstance(base[key], dict) and isinstance(value, dict) and not _is_whole(base[key], value):
            yield from differences(base[key], value, whose, keys)
        elif base[key] != value:
            yield keys, base[key], value


def merge_overlay(base: Mapping[str, Any], overlay: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Returns sections of parameters merged with an overlay; see `differences`."""
    merged = copy.deepcopy(dict(base))
    for keys, _, value in differences(merged, dict(overlay), whose):
        reduce(getitem, keys[:-1], merged)[keys[-1]] = copy.deepcopy(value)
    return merged


def _is_whole(base: dict[str, Any], value: dict[str, Any]) -> bool:
    """True if a mapping replaces another as a whole: a schedule, or a section of another kind."""
    return "points" in value or "shares" in value or value.get("kind", base.get("kind")) != base.get("kind")
