"""Writes values into `params.yaml` by ruamel.yaml: comments, order and every other line stay, as DVC writes them too.

A key that the file leaves out is added at the beginning of its section, where no comment of what follows is in its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML, CommentToken
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark

Keys = tuple[str, ...]
"""Those that lead to a value, the outermost first."""


def with_values(text: str, values: Mapping[Keys, Any]) -> str:
    """Returns the text of a file of sections with some values replaced, or added to their section.

    A mapping is written in one line, a list one item a line, as `dvc exp run -S` writes them.

    Args:
        text: YAML, as `read_sections` accepts it.
        values: plain values by the keys that lead to them.

    Raises:
        KeyError: if a key leads into something that is no section; its argument names all keys, joined by dots.
    """
    yaml = YAML()  # as DVC makes its own, so that neither rewrites what the other has written
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
    """Returns the text of a file in which empty sections are those of another, with the comments that these have."""
    yaml = YAML()
    data, theirs = yaml.load(text), YAML().load(source)
    for name in names:
        if name in data:
            _open(data, name)
        data[name] = theirs[name]
    return _dumped(yaml, data)


def _open(parent: CommentedMap, key: str) -> None:
    """Lets an empty section have lines of its own, before the empty lines and comments that follow it."""
    section = parent[key]
    if section:
        return
    section.fa.set_block_style()
    beside = parent.ca.items.get(key)
    if not beside or not beside[2]:
        return
    own, _, behind = beside[2].value.partition("\n")
    beside[2] = CommentToken(own + "\n", beside[2].start_mark)
    section.ca.comment = None  # ruamel.yaml has the same one there, too
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
