from __future__ import annotations

import pytest

from rulka.reference.medals import Medals, medal_won, medals_of


def test_by_hand():
    # By the rule: 24540 * 1.06 = 26012.4, * 1.2 = 29448, * 1.5 = 36810.
    assert medals_of(24540) == Medals(24540, 27000, 30000, 37000)


def test_a_whole_second_gets_one_more():
    assert medals_of(50000) == Medals(50000, 54000, 61000, 76000)


@pytest.mark.parametrize(
    ("time", "won"),
    [
        (9999, "author"),
        (10000, "author"),
        (10001, "gold"),
        (11000, "gold"),
        (11001, "silver"),
        (13001, "bronze"),
        (16001, None),
    ],
)
def test_medal_won(time: int, won: str | None):
    assert medals_of(10000) == Medals(10000, 11000, 13000, 16000)
    assert medal_won(time, medals_of(10000)) == won
