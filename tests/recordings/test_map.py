import struct

import pytest

from rulka.recordings.errors import DamagedError, UnlimiterMapError, UnsupportedGenerationError
from rulka.recordings.model import MapInfo
from rulka.recordings.reader import parse_map, parse_recording


def facts(found: MapInfo) -> tuple[str, ...]:
    header = found.header
    return header.kind, header.map_uid, header.map_name, header.map_author, header.environment


def test_a_map_by_hand(forge) -> None:
    found = parse_map(forge.map_file())
    assert facts(found) == ("map", forge.MAP_UID, "Hand-made", "author", "Stadium")
    assert found.header.medals_ms == (4000, 3000, 2000, 1500)
    road, checkpoint = found.blocks  # the hole is left out
    assert (road.name, road.coordinates, road.quarter_turns, road.flags) == ("StadiumRoadMain", (2, 1, 4), 3, 0x1000)
    assert (checkpoint.name, checkpoint.position_m) == ("StadiumCheckpoint", (11 * 32 + 16, 8, 19 * 32 + 16))
    assert parse_map(parse_recording(forge.recording_file()).map_data) == found


def test_what_the_header_lacks_is_in_the_body(forge) -> None:
    """As in maps that recordings embed. The oldest ones state no version of their blocks, and flags of 16 bits."""
    ids = forge.Ids()
    body = forge.u32(0x03043011, 0xFFFFFFFF, 5, 0x0305B000, 0x0305B004, 9, 8, 7, 0xFFFFFFFF, 0, forge.END, 6)
    body += forge.u32(0x03043013) + ids("uid", "Coast", "author") + forge.text("x") + ids("Day", "", "")
    body += forge.u32(32, 32, 32, 0, 2) + ids("Hole") + bytes(4) + b"\xff\xff"
    for x in (1, 2):
        body += ids("Road") + bytes([1, x, 3, 4]) + bytes(2)
    found = parse_map(forge.gbx(0x03043000, {}, body))
    assert facts(found) == ("map", "uid", "x", "author", "Coast")
    assert found.header.medals_ms == (9, 8, 7, None)
    assert [(block.name, block.position_m) for block in found.blocks] == [
        ("Road", (24, 12, 72)),
        ("Road", (40, 12, 72)),
    ]
    with pytest.raises(UnsupportedGenerationError, match="0x030430AA"):
        parse_map(forge.gbx(0x03043000, {}, forge.chunk(0x030430AA, b"....") + body))


def test_unlimiter_maps_are_named(forge) -> None:
    with pytest.raises(UnlimiterMapError, match="Hand-made") as caught:
        parse_map(forge.map_file(block_name="TMUnlimiter 2.0.0 is required to load this challenge."))
    assert caught.value.hint
    assert caught.value.map_uid == forge.MAP_UID


def test_unknown_versions_and_false_counts(forge) -> None:
    with pytest.raises(UnsupportedGenerationError, match="version 7"):
        parse_map(forge.gbx(0x03043000, {}, forge.map_start(forge.Ids(), 7, 0)))
    with pytest.raises(DamagedError):
        parse_map(forge.gbx(0x03043000, {}, forge.map_start(forge.Ids(), 1, 0x7FFFFFFF)))


def test_what_is_attached_to_a_block_is_passed_over(forge) -> None:
    """A skin and a waypoint, which are nodes, and a card and a decal; the block after them is still found."""
    ids = forge.Ids()
    body = forge.map_start(ids, 6, 2)
    body += ids("First") + bytes([0, 2, 9, 2]) + forge.u32(1 << 15 | 1 << 17 | 1 << 18 | 1 << 20) + ids("author")
    body += forge.u32(7, 0x03059000, 0x03059002) + forge.text("text") + 2 * (b"\x01" + forge.text(""))
    body += forge.u32(forge.END, 8, 0x2E009000, 0x2E009000, 2) + forge.text("Spawn") + forge.u32(0, forge.END)
    body += forge.u32(1, 0, 0, 1) + ids("card", "", "") + ids("decal") + bytes(8)
    body += ids("Second") + bytes([1, 3, 9, 3]) + forge.u32(0)
    first, second = parse_map(forge.gbx(0x03043000, {}, body)).blocks
    assert (first.name, first.coordinates, first.position_m) == ("First", (1, 9, 1), (48, 8, 48))
    assert (second.name, second.coordinates, second.quarter_turns) == ("Second", (2, 9, 2), 1)


def test_free_blocks_have_their_own_places(forge) -> None:
    """Between the blocks and the chunk with the places stands one that cannot be passed over."""
    ids = forge.Ids()
    body = forge.map_start(ids, 6, 3) + ids("Grid") + bytes([0, 2, 9, 2]) + forge.u32(0)
    for _ in range(2):
        body += ids("Free") + bytes(4) + forge.u32(1 << 29)
    body += forge.chunk(0x03043049, b"what stands here is not read")
    places = struct.pack("<12f", 1, 2, 3, 0.5, 0.25, 0, 7, 8, 9, 0, 0, 1)

    def blocks(payload: bytes):
        return parse_map(forge.gbx(0x03043000, {}, body + payload)).blocks

    grid, first, second = blocks(forge.skippable(0x0304305F, forge.u32(0) + places))
    assert (grid.position_m, grid.pitch_yaw_roll) == ((48, 8, 48), None)
    assert (first.position_m, first.pitch_yaw_roll) == ((1, 2, 3), (0.5, 0.25, 0))
    assert (second.position_m, second.pitch_yaw_roll) == ((7, 8, 9), (0, 0, 1))
    with pytest.raises(DamagedError, match="2 free blocks"):
        blocks(b"")
    with pytest.raises(DamagedError, match="48 bytes"):
        blocks(forge.skippable(0x0304305F, forge.u32(0) + places[:24]))
    with pytest.raises(UnsupportedGenerationError, match="version 1"):
        blocks(forge.skippable(0x0304305F, forge.u32(1) + places))
