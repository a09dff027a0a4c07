"""The game's binary simulation state (a "block"), and the fields that Rulka reads.

A block is a fixed part, then a flag per checkpoint and a time per checkpoint entry, `8356 + 4 a + 8 b` bytes in all.
Everything is little-endian. Offsets are those of the Python package `tminterface` 1.0.2.

The order of the four wheels is not documented anywhere that could be checked without the game. It is assumed to be that
of recordings: front left, front right, rear right, rear left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import CAR, NUM_CAR_FIELDS, NUM_WHEELS
from rulka.game.errors import StateRefusedError

WHEEL = np.dtype(
    {
        "names": ["damper", "has_contact", "material", "is_sliding"],
        "offsets": [180, 292, 296, 300],
        "formats": ["<f4", "<i4", "<i4", "<i4"],
        "itemsize": 764,
    }
)
"""Known fields of a wheel in a block."""

EVENT = np.dtype([("time", "<u4"), ("value", "<u4")])
"""Time and value (low 24 bits) of an input's last change."""
EVENT_NAMES = ("running", "finish", "accelerate", "brake", "left", "right", "steer", "gas")

STATE = np.dtype(
    {
        "names": ["version", "context_mode", "flags", "timers", "rotation", "position", "velocity",
                  "angular_velocity", "gearbox_state", "rpm", "gear", "is_free_wheeling", "wheels", "race_time_ms",
                  "checkpoint_count", "is_finished", "display_speed", "events", "num_respawns", "reserved"],
        "offsets": [0, 4, 8, 12, 688, 724, 736,
                    760, 2388, 3112, 3128, 3196, 3816, 7892,
                    8024, 8032, 8036, 8276, 8340, 8344],
        "formats": ["<u4", "<u4", "<u4", ("<i4", 53), ("<f4", (3, 3)), ("<f4", 3), ("<f4", 3),
                    ("<f4", 3), "<i4", "<f4", "<i4", "<i4", (WHEEL, NUM_WHEELS), "<i4",
                    "<u4", "<i4", "<i4", (EVENT, len(EVENT_NAMES)), "<u4", "<i4"],
        "itemsize": 8348,
    }
)  # fmt: skip
"""The fixed part of a block: every field that Rulka reads or writes. The only table of offsets."""

COUNT = np.dtype("<i4")
CHECKPOINT = np.dtype([("time_ms", "<i4"), ("stunts", "<i4")])
"""A checkpoint entry; a time of -1 means not passed."""
NOT_PASSED_MS = -1
SIMULATION_TIMER = 1
"""Index among the timers of the simulation time, which runs on after the finish."""
EMPTY_BYTES = STATE.itemsize + 2 * COUNT.itemsize
"""Size of a block without any checkpoint: 8356."""
MAX_CHECKPOINTS = 4096
"""Most flags or entries accepted in a block."""
MAX_BYTES = EMPTY_BYTES + MAX_CHECKPOINTS * (COUNT.itemsize + CHECKPOINT.itemsize)
MATERIAL_BITS = 0xFFFF
UNKNOWN_MATERIAL = 255
"""Replaces material ids too large for any group."""


class GameState(NamedTuple):
    """An unpacked block.

    Attributes:
        fixed: one record of the dtype `STATE`.
        flags: [a] int32, one for each checkpoint.
        checkpoints: [b] records of the dtype `CHECKPOINT`.
    """

    fixed: Any
    flags: NDArray[np.int32]
    checkpoints: NDArray

    @property
    def race_time_ms(self) -> int:
        """Milliseconds since the start, negative in the countdown."""
        return int(self.fixed["race_time_ms"])

    @property
    def simulation_time_ms(self) -> int:
        """Simulation time in milliseconds."""
        return int(self.fixed["timers"][SIMULATION_TIMER])

    @property
    def is_finished(self) -> bool:
        """True if the car has passed the finish."""
        return bool(self.fixed["is_finished"])

    def summary(self) -> dict[str, Any]:
        """Returns a summary for people, as plain values."""
        fixed, wheels = self.fixed, self.fixed["wheels"]
        return {
            "race_time_ms": self.race_time_ms,
            "position": [round(float(x), 3) for x in fixed["position"]],
            "velocity": [round(float(x), 3) for x in fixed["velocity"]],
            "speed_mps": round(float(np.linalg.norm(fixed["velocity"].astype(np.float64))), 3),
            "display_speed": int(fixed["display_speed"]),
            "gear": int(fixed["gear"]),
            "rpm": round(float(fixed["rpm"]), 1),
            "gearbox_state": int(fixed["gearbox_state"]),
            "is_free_wheeling": bool(fixed["is_free_wheeling"]),
            "wheels": {name: [round(float(x), 4) for x in wheels[name]] for name in WHEEL.names or ()},
            "checkpoint_count": int(fixed["checkpoint_count"]),
            "is_finished": self.is_finished,
            "num_flags": len(self.flags),
            "checkpoint_times_ms": [int(x) for x in self.checkpoints["time_ms"]],
        }


def read_state(data: bytes | bytearray | memoryview) -> GameState:
    """Unpacks a block without copying it.

    Raises:
        StateRefusedError: if its length is out of range or does not match its counts.
    """
    size = len(data)
    if not EMPTY_BYTES <= size <= MAX_BYTES:
        raise StateRefusedError(f"a simulation state has {EMPTY_BYTES} to {MAX_BYTES} bytes, got {size}")
    fixed = np.frombuffer(data, STATE, 1)[0]
    at = STATE.itemsize
    num_flags = _count(data, at, "checkpoint flags")
    at += COUNT.itemsize
    room = size - at - COUNT.itemsize
    if num_flags * COUNT.itemsize > room:
        raise StateRefusedError(f"a simulation state of {size} bytes has no room for {num_flags} checkpoint flags")
    flags = np.frombuffer(data, COUNT, num_flags, at)
    at += flags.nbytes
    num_entries = _count(data, at, "checkpoint entries")
    due = EMPTY_BYTES + COUNT.itemsize * num_flags + CHECKPOINT.itemsize * num_entries
    if due != size:
        message = f"a simulation state with {num_flags} flags and {num_entries} entries has {due} bytes, got {size}"
        raise StateRefusedError(message)
    return GameState(fixed, flags, np.frombuffer(data, CHECKPOINT, num_entries, at + COUNT.itemsize))


def _count(data: bytes | bytearray | memoryview, at: int, what: str) -> int:
    count = int.from_bytes(data[at : at + COUNT.itemsize], "little", signed=True)
    if not 0 <= count <= MAX_CHECKPOINTS:
        raise StateRefusedError(f"a simulation state holds 0 to {MAX_CHECKPOINTS} {what}, got {count}")
    return count


def write_state(fixed: NDArray, flags: NDArray[np.bool_], checkpoint_ms: NDArray[np.int32]) -> bytes:
    """Packs a block; the inverse of `read_state`.

    Args:
        fixed: one record of the dtype `STATE`, as an array of shape [] or [1].
        flags: [a] True for each passed checkpoint.
        checkpoint_ms: [b] race time at each checkpoint entry, `NOT_PASSED_MS` if not passed yet.
    """
    entries = np.zeros(len(checkpoint_ms), CHECKPOINT)
    entries["time_ms"] = checkpoint_ms
    counts = [np.array(len(part), COUNT).tobytes() for part in (flags, entries)]
    return b"".join((fixed.tobytes(), counts[0], flags.astype(COUNT).tobytes(), counts[1], entries.tobytes()))


def car_row(state: GameState, gearbox_counter: int) -> NDArray[np.float32]:
    """Converts a state to a `CAR` row [NUM_CAR_FIELDS], the input of `build_floats`.

    Args:
        state: the game's state.
        gearbox_counter: consecutive decisions with a gearbox state other than 0, including this one; it is not in a
            block, see `next_gearbox_counter`.
    """
    fixed, wheels = state.fixed, state.fixed["wheels"]
    out = np.full(NUM_CAR_FIELDS, np.nan, np.float32)
    for name in ("position", "velocity", "angular_velocity", "gearbox_state", "gear", "rpm"):
        out[CAR[name]] = fixed[name]
    out[CAR["rotation"]] = fixed["rotation"].ravel()
    out[CAR["damper"]] = wheels["damper"]
    out[CAR["has_contact"]] = wheels["has_contact"] != 0
    out[CAR["is_sliding"]] = wheels["is_sliding"] != 0
    out[CAR["material"]] = np.minimum(wheels["material"] & MATERIAL_BITS, UNKNOWN_MATERIAL)
    out[CAR["gearbox_counter"]] = gearbox_counter
    out[CAR["is_free_wheeling"]] = fixed["is_free_wheeling"] != 0
    return out


def next_gearbox_counter(counter: int, state: GameState) -> int:
    """Returns the gearbox counter of the decision at `state`, given that of the decision before."""
    return counter + 1 if state.fixed["gearbox_state"] != 0 else 0
