"""Editing of `params.yaml` with ruamel.yaml: comments, order and all other lines stay. DVC writes the same format.

A missing key is inserted at the beginning of its section, where no comment of a following key interferes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML, CommentToken
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark

Keys = tuple[str, ...]
"""Path to a value, outermost key first."""


def with_values(text: str, values: Mapping[Keys, Any]) -> str:
    """Returns the text of a file of sections with some values replaced, or added to their section.

    A mapping is written in one line, a list with one item per line, as by `dvc exp run -S`.

    Args:
        text: YAML, as accepted by `read_sections`.
        values: plain values by key path.

    Raises:
        KeyError: if a path leads into something that is not a section; its argument is the dotted path.
    """
    yaml = YAML()  # configured as in DVC, so that neither reformats the other's output
    data = yaml.load(text)
    for keys, value in values.items():
        section, new = data, value
        for depth, key in enumerate(keys):
            if key not in section:
                for inner in reversed(keys[depth + 1 :]):
                    new = {inner: new}
                section.insert(len(section) if section is data or section.fa.flow_style() else 0, key, _laid_out(new))
                break
            if depth == len(keys) - 1:
                _replace(section, key, value)
                break
            if not isinstance(section[key], CommentedMap):
                raise KeyError(".".join(keys))
            _open(section, key)
            section = section[key]
    return _dumped(yaml, data)


def with_sections(text: str, source: str, names: Iterable[str]) -> str:
    """Returns the text of a file with the named sections copied from another file, including their comments."""
    yaml = YAML()
    data, theirs = yaml.load(text), YAML().load(source)
    for name in names:
        if name in data:
            _open(data, name)
        data[name] = theirs[name]
    return _dumped(yaml, data)


def _open(parent: CommentedMap, key: str) -> None:
    """Prepares an empty section for block style, before the empty lines and comments that follow it."""
    section = parent[key]
    if section:
        return
    section.fa.set_block_style()
    beside = parent.ca.items.get(key)
    if not beside or not beside[2]:
        return
    own, _, behind = beside[2].value.partition("\n")
    beside[2] = CommentToken(own + "\n", beside[2].start_mark)
    section.ca.comment = None  # ruamel.yaml stores the same comment here, too
    names = list(parent)
    if behind and names[-1] != key:
        following = parent.ca.items.setdefault(names[names.index(key) + 1], [None, None, None, None])
        following[1] = [CommentToken(behind, CommentMark(0)), *(following[1] or ())]


def _dumped(yaml: YAML, data: Any) -> str:
    stream = StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def _replace(parent: CommentedMap, key: str, value: Any) -> None:
    old, new = parent[key], _laid_out(value)
    parent[key] = new
    if not isinstance(old, CommentedSeq) or old.fa.flow_style():
        return
    # A comment or empty line below a list is attached to its innermost last item, and would be lost with it.
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
    """Converts a value to ruamel.yaml objects in our layout."""
    if isinstance(value, Mapping):
        mapping = CommentedMap({key: _laid_out(each) for key, each in value.items()})
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, Sequence) and not isinstance(value, str):
        return CommentedSeq([_laid_out(each) for each in value])
    return value
