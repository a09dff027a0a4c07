"""Writes values into `params.yaml`: comments, order and every other line stay, in the layout that DVC writes too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq


def with_values(text: str, values: Mapping[tuple[str, ...], Any]) -> str:
    """Returns the text of a file of sections with some values replaced.

    A mapping is written in one line, a list one item a line, as `dvc exp run -S` writes them.

    Args:
        text: YAML, as `read_sections` accepts it.
        values: plain values by the keys that lead to them, the outermost first.

    Raises:
        KeyError: if one of the keys is not there; its argument names all that lead to it, joined by dots.
    """
    yaml = YAML()  # as DVC makes its own, so that neither rewrites what the other has written
    data = yaml.load(text)
    for keys, value in values.items():
        section = data
        for key in keys[:-1]:
            section = section.get(key) if isinstance(section, CommentedMap) else None
        if not isinstance(section, CommentedMap) or keys[-1] not in section:
            raise KeyError(".".join(keys))
        _replace(section, keys[-1], value)
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
