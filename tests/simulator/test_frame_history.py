"""The frames that a car sees at once."""

import numpy as np

from rulka.simulator.frame_history import FrameHistory


def put(history: FrameHistory, *greys: int, moved: bool = True, first: tuple[bool, ...] = (False, False)) -> list:
    history.newest[:] = np.array(greys, np.uint8)[:, None, None]
    history.add(has_moved=moved, is_first=np.array(first))
    return history.seen[:, :, 0, 0].tolist()


def test_the_newest_frame_comes_last_and_the_first_of_a_race_stands_for_those_before_it() -> None:
    history = FrameHistory(2, (3, 2, 4))
    assert put(history, 1, 10, first=(True, True)) == [[1, 1, 1], [10, 10, 10]]
    assert put(history, 2, 20) == [[1, 1, 2], [10, 10, 20]]
    assert put(history, 3, 30) == [[1, 2, 3], [10, 20, 30]]
    assert put(history, 4, 40, first=(False, True)) == [[2, 3, 4], [40, 40, 40]]
    assert put(history, 5, 50) == [[3, 4, 5], [40, 40, 50]]


def test_frames_of_a_car_that_has_not_moved_replace_the_newest() -> None:
    history = FrameHistory(2, (2, 1, 1))
    put(history, 1, 10, first=(True, True))
    put(history, 2, 20)
    assert put(history, 3, 30, moved=False) == [[1, 3], [10, 30]]


def test_one_frame_is_all_there_is() -> None:
    history = FrameHistory(2, (1, 1, 1))
    assert put(history, 1, 2) == [[1], [2]]
    assert put(history, 3, 4) == [[3], [4]]
