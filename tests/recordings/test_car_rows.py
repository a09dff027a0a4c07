import numpy as np
import pytest

from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.recordings.car_rows import RPM_PER_MPS, car_rows, interpolate_rows
from rulka.recordings.errors import NoSamplesError
from rulka.recordings.model import Ghost
from rulka.recordings.reader import parse_recording


def rows_of(positions: list[list[float]], velocities: list[list[float]]) -> np.ndarray:
    rows = np.zeros((len(positions), NUM_CAR_FIELDS), dtype=np.float32)
    rows[:, CAR["position"]] = positions
    rows[:, CAR["velocity"]] = velocities
    rows[:, CAR["rotation"]] = np.eye(3).reshape(9)
    return rows


def test_rows_of_a_recording_by_hand(forge) -> None:
    ghost = parse_recording(forge.recording_file()).ghosts[0]
    time_ms, rows = car_rows(ghost)
    assert time_ms.tolist() == [0, 100, 200, 300, 400]
    assert rows.shape == (5, NUM_CAR_FIELDS)
    np.testing.assert_allclose(rows[:, CAR["rotation"]], np.tile(np.eye(3).reshape(9), (5, 1)), atol=1e-6)
    np.testing.assert_allclose(rows[1, CAR["position"]], [0, 1, 0.7], rtol=1e-6)
    # The speed of the stored vector; sideways it is stored in steps of 2000 / 65535 m/s, half a step off 0.
    np.testing.assert_allclose(rows[1, CAR["velocity"]], [-0.015259, 0, np.exp(2.0)], atol=1e-4)
    assert (rows[:, CAR["material"]] == 16).all()
    assert (rows[:, CAR["has_contact"]] == 1).all()
    assert (rows[:, CAR["is_sliding"]] == 0).all()
    assert (rows[:, CAR["damper"]] >= 0.005).all()
    np.testing.assert_allclose(rows[:, CAR["rpm"]], 15000, atol=1)


def test_gear_changes_and_the_start(forge) -> None:
    """Standing, then second gear, then wheels spinning freely, which tells nothing, then third."""
    ghost = parse_recording(forge.recording_file()).ghosts[0]
    assert ghost.samples is not None
    assert ghost.samples.vehicle is not None
    ghost.samples.vehicle.forward_speed_mps[:] = [0, 40, 40, 50, 50]
    ghost.samples.vehicle.rpm[:] = [1000, 40 * 219, 1000, 50 * 160, 50 * 160]
    _, rows = car_rows(ghost)
    np.testing.assert_allclose(interpolate_rows(ghost.samples.time_ms, rows, ghost.samples.time_ms), rows, atol=1e-5)
    assert rows[:, CAR["gear"]][:, 0].tolist() == [1, 2, 2, 3, 3]
    assert rows[:, CAR["gearbox_state"]][:, 0].tolist() == [2, 1, 0, 1, 0]
    assert rows[:, CAR["gearbox_counter"]][:, 0].tolist() == [2, 4, 0, 2, 0]
    for gear, rpm_per_mps in enumerate(RPM_PER_MPS, start=1):
        ghost.samples.vehicle.forward_speed_mps[:] = 40.0
        ghost.samples.vehicle.rpm[:] = 40.0 * rpm_per_mps
        assert (car_rows(ghost)[1][:, CAR["gear"]] == gear).all()


def test_a_ghost_without_samples_is_an_error() -> None:
    with pytest.raises(NoSamplesError, match="not read: odd"):
        car_rows(Ghost(notes=["samples not read: odd"]))


def test_a_cubic_path_is_met_exactly_and_past_the_last_sample_the_velocity_holds() -> None:
    """x = t^3, v = 3 t^2 at t = 1 and 2 s: the cubic through both is t^3 itself."""
    rows = rows_of([[1, 0, 0], [8, 0, 0]], [[3, 0, 0], [12, 0, 5]])
    found = interpolate_rows(np.array([1000, 2000]), rows, np.array([1250, 1500, 1900, 2050]))
    np.testing.assert_allclose(found[:3, 0], np.array([1.25, 1.5, 1.9]) ** 3, rtol=1e-6)
    np.testing.assert_allclose(found[3, CAR["position"]], [8.6, 0, 0.25], rtol=1e-6)
    with pytest.raises(NoSamplesError, match="2201 ms"):
        interpolate_rows(np.array([1000, 2000]), rows, np.array([2201]))


def test_nothing_is_invented_across_a_respawn() -> None:
    rows = rows_of([[0, 0, 0], [500, 0, 0]], [[10, 0, 0], [0, 0, 0]])
    found = interpolate_rows(np.array([0, 100]), rows, np.array([49, 51]))
    assert found[:, 0].tolist() == [0, 500]


def test_states_are_those_of_the_nearer_sample_and_rates_are_mixed() -> None:
    """Rotations turn at a steady rate: from none to a quarter turn about y, a quarter of the way is 22.5 degrees."""
    rows = rows_of([[0, 0, 0], [1, 0, 0]], [[10, 0, 0], [10, 0, 0]])
    for name, value in (("material", 16), ("has_contact", 1), ("gear", 3), ("rpm", 8000)):
        rows[1, CAR[name]] = value
    rows[1, CAR["rotation"]] = np.array([[0, 0, 1], [0, 1, 0], [-1, 0, 0]]).reshape(9)
    found = interpolate_rows(np.array([0, 100]), rows, np.array([25, 75]))
    for name, expected in (("material", [0, 16]), ("has_contact", [0, 1]), ("gear", [0, 3]), ("rpm", [2000, 6000])):
        assert found[:, CAR[name]][:, 0].tolist() == expected, name
    forward = found[0, CAR["rotation"]].reshape(3, 3)[:, 2]
    np.testing.assert_allclose(forward, [np.sin(np.pi / 8), 0, np.cos(np.pi / 8)], atol=1e-6)
