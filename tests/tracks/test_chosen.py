"""Sets of tracks, as parameters name them."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from rulka.machine.errors import UserError
from rulka.params import reference_params
from rulka.tracks.find import chosen_tracks
from rulka.tracks.generate import generate_track
from rulka.tracks.params import TracksParams
from rulka.tracks.track import TrackError

SETS: TypeAdapter[tuple[TracksParams, ...]] = TypeAdapter(tuple[TracksParams, ...])
SHAPE = {"length_m": 300.0, "width_m": 16.0, "max_slope": 0.1, "gate_spacing_m": 100.0, "difficulty": "easy"}


def read(*sets: dict[str, object]) -> tuple[TracksParams, ...]:
    return SETS.validate_python(sets)


@pytest.fixture(scope="module")
def main():
    return generate_track(**dict(reference_params().track))


def test_all_kinds_together_in_their_order(main) -> None:
    wanted = read(
        {"kind": "campaign", "slugs": ["sidewinder", "copper-oval"]},
        {"kind": "main"},
        {"kind": "generated", "count": 3, "seed": 40, **SHAPE},
    )
    assert sum(some.count for some in wanted) == 6
    found = [track.uid for track in chosen_tracks(wanted, main)]
    assert found[:3] == ["campaign-sidewinder", "campaign-copper-oval", main.uid]
    assert found[3:] == [f"generated-{seed}-300-easy" for seed in (40, 41, 42)]


def test_each_turn_has_its_own_generated_tracks(main) -> None:
    wanted = read({"kind": "main"}, {"kind": "generated", "count": 2, "seed": 40, **SHAPE})
    turns = [[track.uid for track in chosen_tracks(wanted, main, turn)] for turn in range(3)]
    assert turns == [[main.uid, *(f"generated-{40 + 2 * turn + n}-300-easy" for n in range(2))] for turn in range(3)]


def test_seeds_that_make_no_track_are_passed_over(main, monkeypatch) -> None:
    tried = []

    def generate(seed, **shape):
        tried.append(seed)
        if seed in (5, 7, 8):
            raise TrackError("no")
        return generate_track(seed, **shape)

    monkeypatch.setattr("rulka.tracks.find.generate_track", generate)
    found = chosen_tracks(read({"kind": "generated", "count": 2, "seed": 5, **SHAPE}), main)
    assert [track.uid for track in found] == ["generated-6-300-easy", "generated-9-300-easy"]
    assert tried == [5, 6, 7, 8, 9]
    monkeypatch.setattr("rulka.tracks.find.generate_track", lambda seed, **_: generate(5))
    with pytest.raises(TrackError, match="no"):
        chosen_tracks(read({"kind": "generated", "count": 2, "seed": 5, **SHAPE}), main)


def test_a_track_that_comes_twice_is_named(main) -> None:
    twice = {"kind": "campaign", "slugs": ["sidewinder"]}
    with pytest.raises(UserError, match="campaign-sidewinder"):
        chosen_tracks(read(twice, twice), main)
