from __future__ import annotations

from rulka.reference.medals import Medals, medal_won, medals_of


def test_by_hand():
    """24540 * 1.06 = 26012.4, * 1.2 = 29448, * 1.5 = 36810; a whole second gets one more."""
    assert medals_of(24540) == Medals(24540, 27000, 30000, 37000)
    assert medals_of(50000) == Medals(50000, 54000, 61000, 76000)
    assert medals_of(10000) == Medals(10000, 11000, 13000, 16000)
    won = [medal_won(time, medals_of(10000)) for time in (9999, 10000, 10001, 11000, 11001, 13001, 16001)]
    assert won == ["author", "author", "gold", "gold", "silver", "bronze", None]
