"""Decodes trajectory samples of the 2020 game: records of many entities in one compressed block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.recordings.errors import DamagedError, UnsupportedGenerationError, check_version
from rulka.recordings.model import Samples, VehicleState
from rulka.recordings.samples import as_float32, decode_motion, inflate, unit_bytes
from rulka.recordings.stream import ITEM_BYTES, Cursor

VEHICLE_CLASS = 0x0A018000
KNOWN_VERSIONS, COMPRESSED_VERSION, COLUMN_VERSION = range(1, 12), 5, 11
MAX_ENTITIES = 1 << 16
MOTION_OFFSET = 47
"""Byte offset of the motion in a car's record."""
MOTION_BYTES = 22
"""Position, rotation and velocity; the record holds no angular velocity."""
DETAIL_BYTES = 103
"""Minimum size of a record with a known vehicle state."""
WHEEL_DAMPER, WHEEL_MATERIAL = [23, 25, 27, 29], [24, 26, 28, 30]
MAX_RPM = 30_000
"""Rpm at byte value 255: the range of older games, so that gears keep their ratios."""
PEDALS = [14, 15, 18]
"""Byte offsets of steering, gas and brake."""


_Records = list[tuple[int, bytes]]
"""Records of one entity: time and bytes of each."""
ENTITY_RECORD = 0x0911F000
"""Id of the record's class and of its only chunk."""


def read_entity_samples(cursor: Cursor) -> Samples | None:
    """Reads the entity record of a ghost and decodes the trajectory of its car.

    Returns:
        The samples of the vehicle with the most records; None if the record holds no vehicle.

    Raises:
        UnsupportedGenerationError: if the record has an unknown version or its car an unknown layout.
        DamagedError: if the record is inconsistent.
    """
    version = cursor.u32()
    check_version("the record of entities has", version, KNOWN_VERSIONS)
    inner = Cursor(inflate(cursor), names=cursor.names) if version >= COMPRESSED_VERSION else cursor
    vehicles = _read_vehicles(inner, version)
    longest = max(vehicles, key=len, default=[])
    return _decode(longest, version) if longest else None


def _read_vehicles(cursor: Cursor, version: int) -> list[_Records]:
    cursor.skip(8)
    classes = []
    for _ in range(cursor.count(24)):
        classes.append(cursor.u32())
        cursor.skip(12)
        cursor.skip(cursor.u32())
        cursor.skip(4)
    if version >= 2:
        cursor.skip(cursor.count(12 if version >= 4 else 8) * (12 if version >= 4 else 8))
    vehicles = []
    is_more = cursor.u8()
    for _ in range(MAX_ENTITIES):
        if not is_more:
            return vehicles
        index = cursor.u32()
        cursor.skip(16 if version >= 6 else 12)
        records = _read_columns(cursor) if version >= COLUMN_VERSION else _read_rows(cursor)
        if index >= len(classes):
            raise DamagedError(f"an entity is of class number {index}, {len(classes)} are listed")
        if classes[index] == VEHICLE_CLASS:
            vehicles.append(records)
        is_more = cursor.u8()
        if version >= 2:
            _skip_notices(cursor)
    raise DamagedError(f"the record holds more than {MAX_ENTITIES} entities")


def _read_rows(cursor: Cursor) -> _Records:
    records: _Records = []
    while cursor.u8():
        cursor.names.charge_memory(ITEM_BYTES)
        records.append((cursor.i32(), cursor.take(cursor.u32())))
    return records


def _read_columns(cursor: Cursor) -> _Records:
    """Reads records stored column by column (one byte each), delta-encoded along time."""
    count = cursor.count(4)
    if count == 0:
        return []
    size = cursor.u32()
    times = np.cumsum(np.frombuffer(cursor.take(4 * count), dtype="<i4").astype(np.int64))
    columns = np.frombuffer(cursor.take(size * count), dtype=np.uint8).reshape(size, count)
    states = np.cumsum(columns, axis=1, dtype=np.uint8).T
    return list(zip(times.tolist(), (row.tobytes() for row in states), strict=True))


def _skip_notices(cursor: Cursor) -> None:
    while cursor.u8():
        cursor.names.charge_memory(ITEM_BYTES)
        cursor.skip(8)
        cursor.skip(cursor.u32())


def _decode(records: _Records, version: int) -> Samples:
    time_ms, states = zip(*records, strict=True)
    size = min(map(len, states))
    if size < MOTION_OFFSET + MOTION_BYTES:
        raise UnsupportedGenerationError(f"the car has records of {size} bytes, too few for its position")
    rows = np.frombuffer(b"".join(state[:size] for state in states), dtype=np.uint8).reshape(-1, size)
    motion = np.zeros((len(rows), 26), dtype=np.uint8)
    motion[:, :MOTION_BYTES] = rows[:, MOTION_OFFSET : MOTION_OFFSET + MOTION_BYTES]
    moved = decode_motion(motion)
    moved["angular_velocity"][:] = 0.0
    times = np.array(time_ms, dtype=np.int64)
    return Samples(
        version=version,
        size_bytes=size,
        period_ms=int(np.median(np.diff(times))) if len(times) > 1 else 0,
        time_ms=times,
        **moved,
        vehicle=_decode_vehicle(rows, moved["velocity"]) if size >= DETAIL_BYTES else None,
    )


def _decode_vehicle(rows: NDArray[np.uint8], velocity: NDArray[np.float32]) -> VehicleState:
    steer, gas, brake = unit_bytes(rows[:, PEDALS].T)
    slide_bits = rows[:, 32].astype(np.uint16) | (rows[:, 33].astype(np.uint16) << 8)
    slide = np.stack([slide_bits >> place & 1 for place in (6, 8, 10, 12)], axis=1).astype(bool)
    ground = (rows[:, 89] & 1).astype(bool)
    unknown = np.full(len(rows), np.nan, np.float32)
    return VehicleState(
        forward_speed_mps=as_float32(np.linalg.norm(velocity, axis=1)),
        rpm=as_float32(rows[:, 5] * (MAX_RPM / 255)),
        steer=steer * 2 - 1,
        gas=np.minimum(gas + brake, 1),
        brake=brake,
        has_contact=np.repeat(ground[:, None], 4, axis=1),
        is_sliding=slide,
        material=rows[:, WHEEL_MATERIAL],
        damper_m=unit_bytes(rows[:, WHEEL_DAMPER]) * 4 - 2,
        side_speed_mps=unknown,
        turbo=unknown,
    )
