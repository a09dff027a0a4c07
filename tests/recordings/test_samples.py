import struct
import zlib

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from rulka.recordings.errors import DamagedError, UnsupportedGenerationError
from rulka.recordings.samples import read_compressed_samples, read_plain_samples
from rulka.recordings.stream import Cursor


def read(chunk: bytes):
    cursor = Cursor(chunk)
    cursor.skip(4)
    return read_compressed_samples(cursor)


def compressed(forge, data: bytes) -> Cursor:
    packed = zlib.compress(data)
    return Cursor(forge.u32(len(data), len(packed)) + packed)


def motion(*, rotation: tuple[int, int, int] = (0, 0, 0), velocity: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    still = struct.pack("<hbb", -32768, 0, 0)
    return struct.pack("<3fHhh", 1, 2, 3, *rotation) + struct.pack("<hbb", *velocity) + still


def test_rotation_by_hand(forge) -> None:
    """A quarter turn about y: half angle pi/4 is 65535/4; the axis (0, 1, 0) has heading pi/2, which is 32767/2."""
    rows = (
        ((16384, 16384, 0), 2, [1, 0, 0]),  # forward turns from +z to +x (to the left, seen from above)
        ((16384, -16384, 0), 2, [-1, 0, 0]),
        ((16384, 0, 0), 2, [0, -1, 0]),  # about x (heading 0): forward turns from +z to -y: nose down
        ((16384, 0, 32767), 1, [-1, 0, 0]),  # about z (pitch pi/2): up turns from +y to -x: roll to the right
    )
    for rotation, axis, expected in rows:
        samples = read(forge.samples_chunk([motion(rotation=rotation) + bytes(35)] * 2))
        matrix = Rotation.from_quat(samples.quaternion, scalar_first=True).as_matrix()[0]
        np.testing.assert_allclose(matrix[:, axis], expected, atol=2e-4)


def test_velocity_by_hand(forge) -> None:
    """A magnitude of exp(thousandths), a heading whose 127 is pi, a pitch whose 127 is pi/2."""
    rows = {
        (0, 0, 0): [1, 0, 0],
        (1000, 0, 0): [np.e, 0, 0],
        (-1000, 0, 0): [1 / np.e, 0, 0],
        (0, 127, 0): [-1, 0, 0],
        (0, 0, 127): [0, 0, 1],
        (0, 0, -127): [0, 0, -1],
        (-32768, 50, 50): [0, 0, 0],
    }
    for packed, expected in rows.items():
        samples = read(forge.samples_chunk([motion(velocity=packed) + bytes(35)] * 2))
        np.testing.assert_allclose(samples.velocity[0], expected, atol=1e-6)


def test_vehicle_state_by_hand(forge) -> None:
    vehicle = read(forge.samples_chunk([forge.sample_bytes((0, 0, 0), steer=255, gas=255, brake=51)] * 2)).vehicle
    assert (vehicle.steer[0], vehicle.gas[0]) == (1, 1)
    np.testing.assert_allclose(vehicle.brake[0], 0.2, rtol=1e-6)
    np.testing.assert_allclose(vehicle.forward_speed_mps[0], 7, atol=0.1)
    np.testing.assert_allclose(vehicle.rpm[0], 15000, atol=1)
    assert vehicle.has_contact.all()
    assert not vehicle.is_sliding.any()
    assert (vehicle.material == 16).all()
    np.testing.assert_allclose(vehicle.damper_m, 128 / 255 * 4 - 2, atol=1e-6)


def test_each_wheel_has_its_bits(forge) -> None:
    """Slide is the lower bit of each pair: 6 and 7 of byte 58, then 0 to 5 of byte 59."""
    for bit in range(6, 14):
        sample = bytearray(61)
        sample[58 + bit // 8] = 1 << bit % 8
        vehicle = read(forge.samples_chunk([bytes(sample)] * 2)).vehicle
        expected = np.arange(4) == (bit - 6) // 2
        assert (vehicle.has_contact[0] == (expected & (bit % 2 == 1))).all()
        assert (vehicle.is_sliding[0] == (expected & (bit % 2 == 0))).all()


def test_the_layout_before_version_8(forge) -> None:
    """Wheels of three bytes from 34 on, contact bits 2, 4, 6, 8 of byte 46, steer, gas and brake from 50 on."""
    sample = bytearray(56)
    sample[34:46] = bytes([128, 9, 16, 128, 9, 6, 128, 9, 4, 255, 9, 0])
    sample[46], sample[47] = 0b0101_0100, 0b0000_0001
    sample[50:53] = bytes([0, 255, 255])
    vehicle = read(forge.samples_chunk([bytes(sample)] * 2, version=7)).vehicle
    assert vehicle.material[0].tolist() == [16, 6, 4, 0]
    assert vehicle.has_contact[0].tolist() == [True, True, True, True]
    assert (vehicle.steer[0], vehicle.gas[0], vehicle.brake[0]) == (-1, 1, 1)
    assert vehicle.damper_m[0, 3] == 2


def test_samples_of_differing_sizes(forge) -> None:
    """Version 11 may append parts to single samples; sizes are listed for all but the last."""
    plain, long = motion() + bytes(42), motion() + bytes(42 + 19)
    samples = read(forge.samples_chunk([plain, long, plain], version=11, sizes=[len(plain), len(long)]))
    assert samples.position.tolist() == [[1, 2, 3]] * 3
    assert samples.size_bytes == 68


def test_free_times_are_differences(forge) -> None:
    """Without a fixed step the time of each sample is stored as the difference to the one before."""
    states = forge.sample_bytes((0, 0, 0)) * 3
    data = forge.u32(0x0A02B000, 0, 0, 100, 9, len(states)) + states + forge.u32(3, 0, 61, 3, 0, 100, 50)
    samples = read_compressed_samples(compressed(forge, data))
    assert samples is not None
    assert samples.time_ms.tolist() == [0, 100, 150]


def test_plain_samples_of_the_oldest_games(forge) -> None:
    states = bytes(56) * 3
    data = forge.u32(len(states)) + states + forge.u32(3, 0, 56, 112, 3, 0, 120, 250, 0, 100, 7)
    samples = read_plain_samples(Cursor(data))
    assert samples is not None
    assert (len(samples), samples.time_ms.tolist()) == (3, [0, 120, 250])


def test_unknown_classes_and_versions(forge) -> None:
    for version in (3, 6):
        with pytest.raises(UnsupportedGenerationError, match=f"version {version}"):
            read(forge.samples_chunk([bytes(80)] * 2, version=version))
    with pytest.raises(UnsupportedGenerationError, match="60 bytes"):
        read(forge.samples_chunk([bytes(60)] * 2, version=9))


def test_versions_not_listed_are_read_for_their_motion_alone(forge) -> None:
    for version in (13, 17):
        samples = read(forge.samples_chunk([motion(velocity=(0, 0, 0)) + bytes(54)] * 2, version=version))
        assert samples.position.tolist() == [[1, 2, 3]] * 2
        np.testing.assert_allclose(samples.velocity[1], [1, 0, 0], atol=1e-6)
        assert samples.vehicle is None
        with pytest.raises(UnsupportedGenerationError, match=f"version {version}"):
            read(forge.samples_chunk([bytes(60)] * 2, version=version))


def test_sizes_that_cannot_be(forge) -> None:
    rows = (
        (100, 61, 61),  # more samples than bytes
        (3, 61, 61),  # the first offset leaves no room
        (3, 0, 0x7FFFFFFF),
        (3, -5, 61),
        (3, 0, -1, 61, -200),  # listed sizes that go backwards
        (3, 0, -1, 61),  # a list that is cut off
    )
    for numbers in rows:
        states = bytes(61 * 3) if numbers[0] != 100 else bytes(61)
        data = forge.u32(0x0A02B000, 1, 0, 100, 9, len(states)) + states + forge.u32(*numbers)
        with pytest.raises(DamagedError):
            read_compressed_samples(compressed(forge, data))
    with pytest.raises(DamagedError, match="not finite"):
        read(forge.samples_chunk([forge.sample_bytes((0, float("nan"), 0))] * 2))


def test_a_stream_of_another_size_than_stated(forge) -> None:
    """20 MB of zeros in 20 kB are refused when the size is true, and cut off when it is not."""
    for stated in (10, 9, 11, 1 << 31, 200_000):
        packed = zlib.compress(bytes(10)) if stated != 10 else b"no zlib at all"
        with pytest.raises(DamagedError):
            read_compressed_samples(Cursor(forge.u32(stated, len(packed)) + packed))
    packed = zlib.compress(bytes(20_000_000))
    with pytest.raises(DamagedError, match="instead of 5"):
        read_compressed_samples(Cursor(forge.u32(5, len(packed)) + packed))
    packed = zlib.compress(forge.u32(0x0A02B000, 1, 0, 100, 9, 0, 0))[:-4]
    with pytest.raises(DamagedError, match="checksum"):
        read_compressed_samples(Cursor(forge.u32(28, len(packed)) + packed))


def test_bytes_left_over_after_the_samples_are_damage(forge) -> None:
    chunk = forge.samples_chunk([forge.sample_bytes((0.0, 0.0, 0.0))] * 2)
    for num_left in (0, 4):
        assert read_compressed_samples(compressed(forge, zlib.decompress(chunk[12:]) + bytes(num_left))) is not None
    for num_left in (5, 61):
        with pytest.raises(DamagedError, match=f"{num_left} bytes are left over after the samples"):
            read_compressed_samples(compressed(forge, zlib.decompress(chunk[12:]) + bytes(num_left)))
