import pytest

from rulka.recordings.errors import DamagedError, TruncatedError, UnsupportedGenerationError
from rulka.recordings.stream import Cursor, Names


def test_ids_by_hand(forge) -> None:
    """New name, the same by reference, an empty one, a number, another new name, and the first again."""
    new, name = 0x40000000, 0x80000000
    data = forge.u32(3, new) + forge.text("Stadium") + forge.u32(name | 1, 0xFFFFFFFF, 26, name)
    data += forge.text("Nadeo") + forge.u32(new | 1, new | 2)
    cursor = Cursor(data)
    assert [cursor.id() for _ in range(7)] == ["Stadium", "Stadium", "", "26", "Nadeo", "Stadium", "Nadeo"]
    assert cursor.remaining == 0


def test_unknown_reference_and_version(forge) -> None:
    with pytest.raises(DamagedError, match="name 4"):
        Cursor(forge.u32(3, 0x40000004)).id()
    with pytest.raises(UnsupportedGenerationError, match="version 9"):
        Cursor(forge.u32(9, 0)).id()


def test_nothing_reads_beyond_the_end() -> None:
    for method in ("u8", "u16", "u32", "i32", "string", "id", "file_reference"):
        data = b"\x01" if method != "u8" else b""
        with pytest.raises(DamagedError):
            getattr(Cursor(data, names=Names(3)), method)()
        with pytest.raises(TruncatedError):
            getattr(Cursor(data, names=Names(3), is_file=True), method)()


def test_a_part_ends_where_it_ends(forge) -> None:
    cursor = Cursor(forge.u32(1, 2, 3))
    part = cursor.part(4)
    assert part.u32() == 1
    with pytest.raises(DamagedError):
        part.u8()
    assert cursor.u32() == 2


def test_counts_are_checked_before_anything_is_made(forge) -> None:
    with pytest.raises(DamagedError, match="too many"):
        Cursor(forge.u32(0x7FFFFFFF) + bytes(100)).count(8)
    assert Cursor(forge.u32(12) + bytes(96)).count(8) == 12


def test_file_references(forge) -> None:
    old = b"\x01" + forge.text("skin.zip") + forge.text("http://a")
    new = b"\x03" + bytes(32) + forge.text("") + forge.text("")
    empty = b"\x01" + forge.text("")
    cursor = Cursor(old + new + empty)
    assert [cursor.file_reference() for _ in range(3)] == ["skin.zip", "", ""]
    assert cursor.remaining == 0
