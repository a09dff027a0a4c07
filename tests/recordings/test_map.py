import pytest

from rulka.recordings.errors import UnsupportedGenerationError
from rulka.recordings.model import RecordingHeader
from rulka.recordings.reader import parse_map, parse_recording


def facts(found: RecordingHeader) -> tuple[str, ...]:
    return found.kind, found.map_uid, found.map_name, found.map_author, found.environment


def test_a_map_by_hand(forge) -> None:
    found = parse_map(forge.map_file())
    assert facts(found) == ("map", forge.MAP_UID, "Hand-made", "author", "Stadium")
    assert found.medals_ms == (4000, 3000, 2000, 1500)


def test_what_the_header_lacks_is_in_the_body(forge) -> None:
    """As in maps that recordings embed; what follows the identity is not read."""
    assert facts(parse_map(parse_recording(forge.recording_file()).map_data))[1] == forge.MAP_UID
    body = forge.u32(0x0304301F) + forge.Ids()("uid", "Stadium", "author") + forge.text("x") + b"blocks"
    assert facts(parse_map(forge.gbx(0x03043000, {}, body))) == ("map", "uid", "x", "author", "Stadium")
    with pytest.raises(UnsupportedGenerationError, match="0x030430AA"):
        parse_map(forge.gbx(0x03043000, {}, forge.chunk(0x030430AA, b"....") + body))
