import numpy as np
import pytest

from rulka.recordings.errors import DamagedError, UnlimiterMapError, UnsupportedGenerationError
from rulka.recordings.reader import parse_map, parse_recording


def test_a_map_by_hand(forge) -> None:
    found = parse_map(forge.map_file())
    assert (found.uid, found.name, found.author, found.environment) == (forge.MAP_UID, "Hand-made", "author", "Stadium")
    assert found.medals_ms == (4000, 3000, 2000, 1500)
    assert [block.name for block in found.blocks] == ["StadiumRoadMain", "StadiumCheckpoint"]  # the hole is left out
    road, checkpoint = found.blocks
    assert (road.coordinates, road.quarter_turns, road.flags) == ((2, 1, 4), 3, 0x1000)
    assert checkpoint.position_m == (11 * 32 + 16, 8, 19 * 32 + 16)


def test_the_header_of_a_map(forge) -> None:
    header = parse_map(forge.map_file()).header
    assert (header.kind, header.map_uid, header.map_name) == ("map", forge.MAP_UID, "Hand-made")
    assert header.medals_ms == (4000, 3000, 2000, 1500)


def test_the_map_inside_a_recording(forge) -> None:
    assert parse_map(parse_recording(forge.recording_file()).map_data).uid == forge.MAP_UID


def test_unlimiter_maps_are_named(forge) -> None:
    with pytest.raises(UnlimiterMapError, match="Hand-made") as caught:
        parse_map(forge.map_file(block_name="TMUnlimiter 2.0.0 is required to load this challenge."))
    assert caught.value.hint


def test_unknown_versions_and_false_counts(forge) -> None:
    start = forge.u32(0x0304301F) + forge.Ids()("uid", "Stadium", "author") + forge.text("x")
    start += forge.u32(0x40000000) + forge.text("Day") + forge.u32(0x40000002, 0xFFFFFFFF, 32, 32, 32, 0)
    with pytest.raises(UnsupportedGenerationError, match="version 7"):
        parse_map(forge.gbx(0x03043000, {}, start + forge.u32(7, 0)))
    with pytest.raises(DamagedError):
        parse_map(forge.gbx(0x03043000, {}, start + forge.u32(1, 0x7FFFFFFF)))


def test_a_skin_and_a_waypoint_are_passed_over(forge) -> None:
    """Both are nodes inside a block; the block after them is still found."""
    ids = forge.Ids()
    skin = (
        forge.u32(7, 0x03059000, 0x03059002) + forge.text("text") + b"\x01" + forge.text("") + b"\x01" + forge.text("")
    )
    waypoint = forge.u32(8, 0x2E009000, 0x2E009000, 2) + forge.text("Spawn") + forge.u32(0, forge.END)
    body = forge.u32(0x0304301F) + ids("uid", "Stadium", "author") + forge.text("x") + ids("Day", "", "")
    body += forge.u32(32, 32, 32, 0, 6, 2)
    body += ids("First") + bytes([0, 2, 9, 2]) + forge.u32(1 << 15 | 1 << 20) + ids("author") + skin
    body += forge.u32(forge.END) + waypoint
    body += ids("Second") + bytes([1, 3, 9, 3]) + forge.u32(0)
    blocks = parse_map(forge.gbx(0x03043000, {}, body)).blocks
    assert [(block.name, block.coordinates) for block in blocks] == [("First", (1, 9, 1)), ("Second", (2, 9, 2))]
    assert blocks[0].position_m == (48, 8, 48)


def test_free_blocks_have_their_own_places(forge) -> None:
    """Between the blocks and the chunk with the places stands one that cannot be passed over."""
    ids = forge.Ids()
    body = forge.u32(0x0304301F) + ids("uid", "Stadium", "author") + forge.text("x") + ids("Day", "", "")
    body += forge.u32(32, 32, 32, 0, 6, 3)
    body += ids("Grid") + bytes([0, 2, 9, 2]) + forge.u32(0)
    body += ids("Free") + bytes([0, 0, 0, 0]) + forge.u32(1 << 29)
    body += ids("Free") + bytes([0, 0, 0, 0]) + forge.u32(1 << 29)
    places = np.array([[1, 2, 3, 0.5, 0.25, 0], [7, 8, 9, 0, 0, 1]], np.float32).tobytes()
    unknown = forge.chunk(0x03043049, b"what stands here is not read")
    file = forge.gbx(0x03043000, {}, body + unknown + forge.skippable(0x0304305F, forge.u32(0) + places))
    grid, first, second = parse_map(file).blocks
    assert (grid.position_m, grid.pitch_yaw_roll) == ((48, 8, 48), None)
    assert (first.position_m, first.pitch_yaw_roll) == ((1, 2, 3), (0.5, 0.25, 0))
    assert (second.position_m, second.pitch_yaw_roll) == ((7, 8, 9), (0, 0, 1))
    with pytest.raises(DamagedError, match="2 free blocks"):
        parse_map(forge.gbx(0x03043000, {}, body + forge.skippable(0x0304305F, forge.u32(0) + places[:24])))
