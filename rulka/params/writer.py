"""Writes values into `params.yaml`: comments, order and every other line stay, in the layout that DVC writes too.

A key that the file leaves out is added at the end of its section.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

Keys = tuple[str, ...]
"""Those that lead to a value, the outermost first."""
_STEP = "  "
_EMPTY = re.compile(r"^(\s*[^\s:#]+:) *\{ *\}")
"""The line of a section without keys, which stands for one as it comes."""


def with_values(text: str, values: Mapping[Keys, Any]) -> str:
    """Returns the text of a file of sections with some values replaced, or added at the end of their section.

    A mapping is written in one line, a list one item a line, as `dvc exp run -S` writes them.

    Args:
        text: YAML, as `read_sections` accepts it.
        values: plain values by the keys that lead to them.

    Raises:
        KeyError: if a key leads into something that is no section; its argument names all keys, joined by dots.
    """
    yaml = YAML()  # as DVC makes its own, so that neither rewrites what the other has written
    data = yaml.load(text)
    added: dict[Keys, Any] = {}
    for keys, value in values.items():
        section, is_there = _inmost(data, keys)
        if is_there and keys[-1] in section:
            _replace(section, keys[-1], value)
        elif is_there and section.fa.flow_style() and section:
            section[keys[-1]] = _laid_out(value)
        else:
            added[keys] = value
    written = _dumped(yaml, data)
    for keys, value in added.items():
        written = _with_added(written, keys, value)
    return written


def with_section(text: str, name: str, lines: str) -> str:
    """Returns the text of a file in which an empty section, or one that is not there, has lines of YAML below it."""
    rows = _normal(text).splitlines()
    place = _place(rows, (name,))
    if place is None:
        return f"{text.rstrip()}\n\n{name}:\n{lines}"
    rows[place.start] = _EMPTY.sub(r"\1", rows[place.start])
    return _joined([*rows[: place.start + 1], *lines.splitlines(), *rows[place.start + 1 :]])


def section_lines(text: str, name: str) -> str:
    """Returns the lines below the name of a section, comments included; none where it is written in one line."""
    rows = _normal(text).splitlines()
    place = _place(rows, (name,))
    assert place is not None
    return _joined(rows[place.start + 1 : place.stop])


def _inmost(data: Any, keys: Keys) -> tuple[Any, bool]:
    """Returns the section in which the last key lies or would lie, and whether there is one.

    Raises:
        KeyError: if one of the keys before is there, and is no section.
    """
    section = data
    for key in keys[:-1]:
        if key not in section:
            return None, False
        section = section[key]
        if not isinstance(section, CommentedMap):
            raise KeyError(".".join(keys))
    return section, True


def _with_added(text: str, keys: Keys, value: Any) -> str:
    rows = text.splitlines()
    depth = next(count for count in range(len(keys) - 1, -1, -1) if _place(rows, keys[:count]) is not None)
    place = _place(rows, keys[:depth])
    assert place is not None
    new = StringIO()
    inside = _laid_out(value)
    for key in reversed(keys[depth:]):
        inside = CommentedMap({key: inside})
    YAML().dump(inside, new)
    indent = _STEP * depth
    if depth:
        rows[place.start] = _EMPTY.sub(r"\1", rows[place.start])
    gap = [""] if depth == 0 else []
    return _joined(
        [*rows[: place.stop], *gap, *(indent + row for row in new.getvalue().splitlines()), *rows[place.stop :]]
    )


def _place(rows: Sequence[str], keys: Keys) -> range | None:
    """Returns the lines of a key and of all below it, without comments that follow; None if no line begins with it."""
    first, stop = -1, len(rows)
    for depth, key in enumerate(keys):
        head = f"{_STEP * depth}{key}:"
        found = next((n for n in range(first + 1, stop) if rows[n].startswith(head)), None)
        if found is None:
            return None
        first, end = found, found + 1
        while end < stop and (not _is_content(rows[end]) or _is_below(rows[end], depth)):
            end += 1
        stop = end
        while not _is_content(rows[stop - 1]):
            stop -= 1
    while stop > first + 1 and not _is_content(rows[stop - 1]):
        stop -= 1
    return range(first, stop)


def _is_below(row: str, depth: int) -> bool:
    """Whether a line belongs to a key of a depth: deeper, or an item of a list, which YAML does not indent."""
    indent = len(row) - len(row.lstrip())
    return indent > len(_STEP) * depth or (indent == len(_STEP) * depth and row.lstrip().startswith("- "))


def _is_content(row: str) -> bool:
    return bool(row.strip()) and not row.lstrip().startswith("#")


def _joined(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _normal(text: str) -> str:
    """Returns a file as ruamel.yaml lays it out: two spaces for each depth, lists not indented."""
    yaml = YAML()
    return _dumped(yaml, yaml.load(text))


def _dumped(yaml: YAML, data: Any) -> str:
    stream = StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def _replace(parent: CommentedMap, key: str, value: Any) -> None:
    old, new = parent[key], _laid_out(value)
    parent[key] = new
    if not isinstance(old, CommentedSeq) or old.fa.flow_style():
        return
    # The comment or empty line below a list hangs on the list's innermost last item, and would go with it.
    last = _innermost(old)
    behind = last.ca.items.get(len(last) - 1)
    if behind and isinstance(new, CommentedSeq) and new:
        innermost = _innermost(new)
        innermost.ca.items[len(innermost) - 1] = behind
    elif behind:
        parent.ca.items[key] = [None, None, behind[0], None]


def _innermost(items: CommentedSeq) -> CommentedSeq:
    while items and isinstance(items[-1], CommentedSeq) and items[-1]:
        items = items[-1]
    return items


def _laid_out(value: Any) -> Any:
    """Returns a value as ruamel.yaml writes it in our layout."""
    if isinstance(value, Mapping):
        mapping = CommentedMap({key: _laid_out(each) for key, each in value.items()})
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, Sequence) and not isinstance(value, str):
        return CommentedSeq([_laid_out(each) for each in value])
    return value
