"""Description of `params.yaml`: a JSON schema for editors, and a list of parameters for people.

Both are generated from the typed sections, so that they cannot disagree with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rulka.contracts.problems import did_you_mean
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import MOST
from rulka.machine.errors import UserError
from rulka.params.reader import one_line
from rulka.params.sections import Params

SCHEMA_FILE = Path("params.schema.json")
_TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "object": "mapping",
}


class Parameter(NamedTuple):
    """One parameter.

    Attributes:
        key: as on the command line: "ppo.gamma".
        kind: kind of its section, if there are several kinds with different keys; else empty.
        type: in words.
        range: allowed values; empty if the type says it all.
        value: current value as YAML; None for a section, and if its section is null or of another kind.
        default: default as YAML; None for a section, and for a required key.
        description: what it does.
    """

    key: str
    kind: str
    type: str
    range: str
    value: str | None
    default: str | None
    description: str

    @property
    def is_changed(self) -> bool:
        """True if the current value is another number, text or list than the default."""
        if self.value is None or self.default is None:
            return self.value is not None
        return yaml.safe_load(self.value) != yaml.safe_load(self.default)

    def __str__(self) -> str:
        """Returns the parameter as two lines of text."""
        kind = f" ({self.kind})" if self.kind else ""
        value = "" if self.value is None else f" = {self.value}"
        if self.default is not None and (self.value is None or self.is_changed):
            value += f" (default {self.default})"
        type_and_range = ", ".join(part for part in (self.type, self.range) if part)
        return f"{self.key}{kind}{value}\n    {type_and_range}: {self.description}"


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of `params.yaml`, without the checks across keys and sections."""
    schema = Params.model_json_schema()
    sections = schema["$defs"]
    name = Schedule.__name__
    sections[name] = {"anyOf": [{"type": "number"}, sections[name]]}
    return {**schema, "title": "Rulka's params.yaml"}


def schema_text() -> str:
    """Returns the JSON schema as the text of a file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def parameters(values: Mapping[str, Any]) -> list[Parameter]:
    """Returns every parameter, in the order of the sections.

    Args:
        values: sections, as returned by `read_sections`; missing keys have their defaults.
    """
    schema = json_schema()
    return list(_parameters(schema, schema["$defs"], values, ""))


def parameters_about(topic: str, values: Mapping[str, Any]) -> list[Parameter]:
    """Returns the parameters of a topic: a key, a section, or words of keys and descriptions; all for an empty topic.

    Raises:
        UserError: if there is none.
    """
    known = parameters(values)
    found = [each for each in known if f"{each.key}.".startswith(f"{topic}." if topic else "")]
    found = found or [each for each in known if _words(topic) in _words(f"{each.key} {each.description}")]
    if not found:
        message = f"there is no parameter {topic}{did_you_mean(topic, [each.key for each in known])}"
        raise UserError(message, hint="`rulka params list` shows all.")
    return found


def _words(text: str) -> str:
    """Returns the words and numbers of a text in lower case, with a space before, between and after them."""
    return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "


def _parameters(
    section: Mapping[str, Any], defs: Mapping[str, Any], values: Mapping[str, Any] | None, inside: str
) -> Iterator[Parameter]:
    kind = section["properties"].get("kind", {}).get("const", "")
    for name, field in section["properties"].items():
        choices = [_resolved(choice, defs) for choice in field.get("oneOf", field.get("anyOf", [field]))]
        sections = [choice for choice in choices if "properties" in choice]
        has_default = "default" in field
        default = field["default"] if has_default else {}  # for a section; its keys have their own defaults
        value = None if values is None else values.get(name, default)
        has_value = values is not None and (has_default or name in values)
        yield Parameter(
            key=f"{inside}{name}",
            kind=kind,
            type=_type(field, defs),
            range=_range(field, defs),
            value=_shown(value, sections) if has_value else None,
            default=_shown(default, sections) if has_default else None,
            description=field["description"],
        )
        for each in sections:
            yield from _parameters(each, defs, value if _is_of(each, value) else None, f"{inside}{name}.")


def _resolved(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    return defs[node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def _shown(value: Any, sections: Iterable[Mapping[str, Any]]) -> str | None:
    return None if any(_is_of(each, value) for each in sections) else one_line(value)


def _is_of(section: Mapping[str, Any], value: Any) -> bool:
    kind = section["properties"].get("kind", {}).get("const")
    return isinstance(value, dict) and (kind is None or value.get("kind") == kind)


def _type(node: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """Returns a type in words, with alternatives joined by "or"."""
    if node.get("$ref", "").endswith(f"/{Schedule.__name__}"):
        return "number or schedule"
    node = _resolved(node, defs)
    choices = node.get("oneOf", node.get("anyOf"))
    if choices:
        return " or ".join(dict.fromkeys(_type(choice, defs) for choice in choices))
    if "properties" in node:
        return "section"
    if "enum" in node or "const" in node:
        return "choice"
    if node.get("type") == "array":
        items = node.get("prefixItems") or [node["items"]]
        return f"list of {' and '.join(dict.fromkeys(_type(each, defs) for each in items))}"
    return _TYPES[node["type"]]


def _range(node: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """Returns the allowed values in words, without alternatives that are sections."""
    own = _bounds(node)
    node = _resolved(node, defs)
    choices = node.get("oneOf", node.get("anyOf"))
    if own:
        return own
    if choices:
        sections = [_resolved(choice, defs).get("properties", {}) for choice in choices]
        kinds = [section["kind"]["const"] for section in sections if "kind" in section]
        parts = [f"kind: {', '.join(kinds)}" if kinds else "", *(_range(choice, defs) for choice in choices)]
        return ", ".join(dict.fromkeys(part for part in parts if part))
    if "enum" in node or "const" in node:
        return ", ".join(str(value) for value in node.get("enum", [node.get("const")]))
    if node.get("type") == "array":
        return ", ".join(dict.fromkeys(_range(each, defs) for each in node.get("prefixItems") or [node["items"]]))
    return _bounds(node)


def _bounds(node: Mapping[str, Any]) -> str:
    """Returns the bounds of a number in words, without the catch-all bound `MOST`."""
    low, high = "", ""
    if "exclusiveMinimum" in node:
        low = f"more than {_number(node['exclusiveMinimum'])}"
    elif node.get("minimum", -MOST) > -MOST:
        low = _number(node["minimum"])
    if node.get("maximum", MOST) < MOST:
        return f"{low} to {_number(node['maximum'])}" if low else f"at most {_number(node['maximum'])}"
    if "exclusiveMaximum" in node:
        high = f"less than {_number(node['exclusiveMaximum'])}"
    if low and "minimum" in node:
        low = f"{low} or more"
    return " and ".join(part for part in (low, high) if part)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
