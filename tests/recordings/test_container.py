import pytest

from rulka.recordings.container import REPLAY, read_container
from rulka.recordings.errors import NotGbxError, TruncatedError, UnsupportedGenerationError


def test_external_references_are_passed_over(forge) -> None:
    """One folder holding one folder; one reference by name with a folder, one by index without."""
    folders = forge.u32(1) + forge.text("Vehicles") + forge.u32(1) + forge.text("Skins") + forge.u32(0)
    by_name = forge.u32(1) + forge.text("a.Gbx") + forge.u32(5, 0, 1)
    by_index = forge.u32(4, 77, 8, 0)
    references = forge.u32(2, 1) + folders + by_name + by_index
    found = read_container(forge.gbx(REPLAY, {}, b"body", references=references))
    assert (found.body, found.external_nodes) == (b"body", frozenset({5, 8}))


def test_header_only_needs_no_body(forge) -> None:
    data = forge.gbx(REPLAY, {REPLAY: b"one"}, b"body" * 100)
    size = 17 + 4 + 8 + 3  # signature, class and size; count, entry and chunk
    assert read_container(data[:size], header_only=True).header == {REPLAY: b"one"}
    with pytest.raises(TruncatedError):
        read_container(data[: size - 1], header_only=True)


def test_what_is_no_gbx_file() -> None:
    for data in (b"", b"GB", b"PK\x03\x04" + bytes(100), b"gbx" + bytes(100)):
        with pytest.raises(NotGbxError):
            read_container(data)


def test_unknown_generations(forge) -> None:
    data = bytearray(forge.gbx(REPLAY, {}, b"body"))
    for place, value, problem in ((3, 9, "version 9"), (5, ord("T"), "text"), (7, ord("X"), "unknown way")):
        changed = data.copy()
        changed[place] = value
        with pytest.raises(UnsupportedGenerationError, match=problem):
            read_container(bytes(changed))


def test_every_cut_is_called_truncated(forge) -> None:
    data = forge.gbx(REPLAY, {REPLAY: b"one"}, b"body" * 100)
    for end in range(4, len(data)):
        with pytest.raises(TruncatedError):
            read_container(data[:end])
