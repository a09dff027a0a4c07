import struct
from itertools import product

import numpy as np
import pytest

from rulka.contracts.observation import CAR, FLOATS, NUM_CAR_FIELDS, NUM_FLOATS, build_floats
from rulka.game.errors import StateRefusedError
from rulka.game.state import (
    MAX_BYTES,
    MAX_CHECKPOINTS,
    STATE,
    car_row,
    read_state,
    write_state,
)


def by_hand(num_flags: int = 0, num_entries: int = 0) -> bytearray:
    """A block written number by number at the offsets of the facts, section 5.5."""
    block = bytearray(8356 + 4 * num_flags + 8 * num_entries)

    def put(offset: int, form: str, *values: float) -> None:
        struct.pack_into(f"<{form}", block, offset, *values)

    put(12 + 4, "i", 12345)  # timers[1]
    put(672, "4f", 1.0, 0.0, 0.0, 0.0)
    put(688, "9f", *range(1, 10))
    put(724, "3f", 500.5, 12.25, -300.75)
    put(736, "3f", 1.5, -2.5, 40.0)
    put(760, "3f", 0.125, 0.25, 0.5)
    put(2388, "i", 1)
    put(3112, "f", 8765.5)
    put(3128, "i", 4)
    put(3196, "i", 1)
    for k in range(4):
        put(3996 + 764 * k, "f", 0.01 * (k + 1))
        put(4108 + 764 * k, "i", k % 2)
        put(4112 + 764 * k, "i", (16, 2, 0x10006, 300)[k])
        put(4116 + 764 * k, "i", 1 - k % 2)
    put(7892, "i", -1000)
    put(8024, "I", 2)
    put(8032, "i", 1)
    put(8036, "i", 144)
    put(8348, "i", num_flags)
    at = 8352 + 4 * num_flags
    put(at, "i", num_entries)
    for k in range(num_entries):
        put(at + 4 + 8 * k, "2i", 1000 * (k + 1), 7)
    return block


def test_a_block_written_by_hand_is_read() -> None:
    state = read_state(by_hand(3, 2))
    fixed = state.fixed
    assert (state.race_time_ms, state.simulation_time_ms, state.is_finished) == (-1000, 12345, True)
    np.testing.assert_array_equal(fixed["rotation"], np.arange(1.0, 10.0).reshape(3, 3))
    assert fixed["position"].tolist() == [500.5, 12.25, -300.75]
    assert fixed["velocity"].tolist() == [1.5, -2.5, 40.0]
    assert fixed["angular_velocity"].tolist() == [0.125, 0.25, 0.5]
    assert (fixed["gearbox_state"], fixed["rpm"], fixed["gear"], fixed["is_free_wheeling"]) == (1, 8765.5, 4, 1)
    assert (fixed["checkpoint_count"], fixed["display_speed"]) == (2, 144)
    assert (len(state.flags), state.checkpoints["time_ms"].tolist()) == (3, [1000, 2000])


def test_a_car_row_has_the_games_facts() -> None:
    row = car_row(read_state(by_hand()), 3)
    assert row.shape == (NUM_CAR_FIELDS,)
    assert np.isfinite(row).all()
    np.testing.assert_array_equal(row[CAR["rotation"]], np.arange(1.0, 10.0))
    np.testing.assert_allclose(row[CAR["damper"]], [0.01, 0.02, 0.03, 0.04], rtol=1e-6)
    assert row[CAR["has_contact"]].tolist() == [0, 1, 0, 1]
    assert row[CAR["is_sliding"]].tolist() == [1, 0, 1, 0]
    # The upper half of a material id means nothing; what is too large for any group is in none.
    assert row[CAR["material"]].tolist() == [16, 2, 6, 255]
    assert row[CAR["gearbox_counter"]] == 3
    floats = np.empty((1, NUM_FLOATS), np.float32)
    zones = np.zeros((800, 3), np.float32)
    build_floats(
        row[None], np.zeros((1, 5, 4), np.float32), zones, np.zeros(1, np.int64), np.zeros(1, np.float32), floats
    )
    groups = floats[0, FLOATS["material"]].reshape(4, 4)
    assert groups.argmax(axis=1)[:3].tolist() == [0, 1, 2]
    assert groups.sum(axis=1).tolist() == [1, 1, 1, 0]


def test_what_is_written_is_read_back() -> None:
    for num_flags, num_entries in ((0, 0), (1, 0), (0, 1), (5, 3)):
        fixed = np.zeros(1, STATE)
        fixed["race_time_ms"], fixed["position"] = 4321, (1, 2, 3)
        times = np.arange(num_entries, dtype=np.int32) - 1
        block = write_state(fixed, np.arange(num_flags, dtype=np.int32), times)
        assert len(block) == 8356 + 4 * num_flags + 8 * num_entries
        state = read_state(block)
        assert (state.race_time_ms, state.flags.tolist()) == (4321, list(range(num_flags)))
        assert state.checkpoints["time_ms"].tolist() == times.tolist()


def test_blocks_of_wrong_lengths_and_counts_are_refused() -> None:
    whole = bytes(by_hand(3, 2))
    for block in (b"", bytes(8355), bytes(8357), whole[:-1], whole + b"\0", bytes(MAX_BYTES + 4)):
        with pytest.raises(StateRefusedError, match="bytes"):
            read_state(block)
    for offset, count in product((8348, 8352), (-1, 1, MAX_CHECKPOINTS + 1, 2**31 - 1)):
        block = by_hand()
        struct.pack_into("<i", block, offset, count)
        with pytest.raises(StateRefusedError):
            read_state(block)
