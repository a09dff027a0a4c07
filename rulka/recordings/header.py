"""Parses the uncompressed header of recordings and maps, enough to sort a large collection without decompression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.sax.saxutils import unescape

from rulka.recordings.container import GHOST, MAP, REPLAY, Container
from rulka.recordings.errors import DamagedError
from rulka.recordings.model import RecordingHeader
from rulka.recordings.stream import Cursor

KINDS = {REPLAY: "recording", GHOST: "ghost", MAP: "map"}
MAX_XML_CHARACTERS = 1 << 20
_NO_RECORD_VERSION = 9999
_ELEMENT = re.compile(r"<([A-Za-z_][\w.-]*)((?:\s+[\w.:-]+=\"[^\"]*\")+)")
_ATTRIBUTE = re.compile(r"([\w.:-]+)=\"([^\"]*)\"")


def parse_header(container: Container) -> RecordingHeader:
    """Reads the header chunks of a file.

    Raises:
        DamagedError: if a header chunk ends too early.
    """
    kind = KINDS.get(container.class_id, "unknown")
    if container.class_id == REPLAY:
        return _recording_header(container.header)
    if container.class_id == MAP:
        return _map_header(container.header)
    return RecordingHeader(kind=kind)


def _recording_header(chunks: Mapping[int, bytes]) -> RecordingHeader:
    xml = _read_xml(chunks.get(REPLAY | 1))
    fields = _basic_fields(Cursor(chunks[REPLAY])) if REPLAY in chunks else {}
    return RecordingHeader(
        kind="recording",
        respawns=xml_number(xml, "times.respawns"),
        stunts=xml_number(xml, "times.stuntscore"),
        xml=xml,
        **fields,  # pyright: ignore[reportArgumentType]
    )


def _basic_fields(cursor: Cursor) -> dict[str, object]:
    version = cursor.u32()
    if version < 4 or version == _NO_RECORD_VERSION:
        return {}
    uid, environment, author = cursor.ident()
    fields: dict[str, object] = {"map_uid": uid, "environment": environment, "map_author": author}
    fields |= {"race_time_ms": cursor.optional(), "nickname": cursor.string()}
    return fields | ({"login": cursor.string()} if version >= 6 else {})


def _map_header(chunks: Mapping[int, bytes]) -> RecordingHeader:
    xml = _read_xml(chunks.get(MAP | 5))
    uid, environment, author, name = "", "", "", ""
    if MAP | 3 in chunks:
        cursor = Cursor(chunks[MAP | 3])
        cursor.skip(1)
        uid, environment, author = cursor.ident()
        name = cursor.string()
    medals: tuple[int | None, ...] = (None, None, None, None)
    if MAP | 2 in chunks:
        medals, old = _description(Cursor(chunks[MAP | 2]))
        uid, environment, author, name = (new or old[i] for i, new in enumerate((uid, environment, author, name)))
    return RecordingHeader(
        kind="map",
        map_uid=uid,
        environment=environment,
        map_author=author,
        map_name=name,
        medals_ms=medals,
        xml=xml,
    )


def _description(cursor: Cursor) -> tuple[tuple[int | None, ...], tuple[str, str, str, str]]:
    version = cursor.u8()
    identity = "", "", "", ""
    if version <= 2:
        uid, environment, author = cursor.ident()
        identity = uid, environment, author, cursor.string()
    cursor.skip(4)
    medals = tuple(cursor.optional() for _ in range(4)) if version >= 1 else (None,) * 4
    return medals, identity


def xml_number(xml: Mapping[str, str], attribute: str) -> int | None:
    """Returns an attribute of the XML header as an integer; None if it is missing, not an integer or negative."""
    try:
        value = int(xml.get(attribute, ""))
    except ValueError:
        return None
    return value if value >= 0 else None


def _read_xml(chunk: bytes | None) -> dict[str, str]:
    """Returns the attributes of the XML header. Uses regular expressions: the game's XML is not always valid."""
    if chunk is None:
        return {}
    text = Cursor(chunk).string()
    if len(text) > MAX_XML_CHARACTERS:
        raise DamagedError(f"the XML header has {len(text)} characters, {MAX_XML_CHARACTERS} is the most")
    entities = {"&quot;": '"', "&apos;": "'"}
    return {
        f"{element}.{name}": unescape(value, entities) if "&" in value else value
        for element, attributes in _ELEMENT.findall(text)
        for name, value in _ATTRIBUTE.findall(attributes)
    }
