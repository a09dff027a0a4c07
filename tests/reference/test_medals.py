from __future__ import annotations

from dataclasses import replace

from rulka.reference.medals import Medals, medal_won, medals_of
from rulka.tracks.generate import generate_track
from rulka.tracks.track import DRIVEN_SOURCE


def test_by_hand():
    """24540 * 1.06 = 26012.4, * 1.2 = 29448, * 1.5 = 36810; a whole second gets one more."""
    track = generate_track(5, 150.0, 16.0, 0.06, 60.0)
    assert medals_of(track, 24540) == Medals(24540, 27000, 30000, 37000)
    assert medals_of(track, 50000) == Medals(50000, 54000, 61000, 76000)
    medals = medals_of(track, 10000)
    assert medals == Medals(10000, 11000, 13000, 16000)
    won = [medal_won(time, medals) for time in (9999, 10000, 10001, 11000, 11001, 13001, 16001)]
    assert won == ["author", "author", "gold", "gold", "silver", "bronze", None]


def test_a_map_of_the_game_has_its_own_and_no_lap_of_the_simulator_is_its_authors():
    driven = replace(generate_track(5, 150.0, 16.0, 0.06, 60.0), source=f"{DRIVEN_SOURCE} of 3 of 3 recordings")
    assert medals_of(driven, 61970) is None
    known = replace(driven, medals_ms=(52870, 57000, 64000, 80000))
    assert medals_of(known, 61970) == medals_of(known, None) == Medals(52870, 57000, 64000, 80000)
