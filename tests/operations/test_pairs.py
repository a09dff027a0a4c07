import io
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from rulka.evaluation.results import RaceResult
from rulka.evaluation.statistics import bounded_interval
from rulka.machine.errors import UserError
from rulka.operations.kept import name_of, promotions
from rulka.operations.pairs import (
    Comparison,
    Racer,
    TrackPairs,
    format_comparison,
    lead,
    load_racer,
    provable_lead,
    race_pairs,
    verdict,
)
from rulka.operations.pictures import write_side_by_side
from rulka.operations.promotion import describe, promote
from rulka.operations.tracks import tracks_to_race_on
from rulka.params import Params
from rulka.tracks.params import MainTrackParams
from rulka.tracks.track import TrackError, geometry_hash
from tests.conftest import steady_race
from tests.tasks.test_evaluate import short_track

HELD_OUT = {
    "generated-90001-600-easy": "e9c365d562886caf",
    "generated-90002-600": "ec952e4a5980772c",
    "generated-90003-600-hard": "8023ddfd67530b51",
    "generated-90004-600-expert": "73bb0f5033674450",
}
"""Their shapes: where one changes, the nights before say nothing of the nights after."""


def driven(speed_mps: float, until_m: float | None = None) -> RaceResult:
    """A race on the track of 60 m at constant speed, to its end or to where it stops."""
    return steady_race(short_track(), speed_mps, stop_m=until_m)


def comparison(*tracks: tuple[list[RaceResult], list[RaceResult]]) -> Comparison:
    nobody = Racer("a", lambda *_: np.zeros(1), ())
    pairs = tuple(
        TrackPairs(replace(short_track(), name=f"track {number}"), first, second)
        for number, (first, second) in enumerate(tracks)
    )
    return Comparison(nobody, replace(nobody, name="b"), pairs, 100)


def test_lead_by_hand() -> None:
    # 60 m at 20 m/s take 3 s, in which a car at 15 m/s drives 45 m: 15 of 60 m are left.
    assert lead(driven(20.0), driven(15.0)) == pytest.approx(0.25)
    assert lead(driven(15.0), driven(20.0)) == pytest.approx(-0.25)
    assert lead(driven(15.0), driven(15.0)) == 0.0
    assert lead(driven(10.0), driven(30.0, until_m=59.0)) == 1.0
    assert lead(driven(30.0, until_m=59.0), driven(10.0)) == -1.0
    assert lead(driven(10.0, until_m=30.0), driven(30.0, until_m=45.0)) == pytest.approx(-0.25)
    slow = driven(15.0)
    longer = replace(slow, sample_ms=slow.sample_ms + (slow.sample_ms == slow.sample_ms[-1]) * 40)
    assert lead(driven(20.0), longer) == pytest.approx(0.25)


@pytest.mark.parametrize(("num_pairs", "least"), [(5, 1.0913), (6, 0.8493), (10, 0.4462), (17, 0.2423), (300, 0.0124)])
def test_the_smallest_lead_that_pairs_can_prove(num_pairs: int, least: float) -> None:
    """By hand: 40^(1 / N) - 1. The interval of equal leads agrees, to what its draws of weights leave open."""
    assert provable_lead(num_pairs) == pytest.approx(least, abs=1e-4)
    if least < 0.9:
        assert bounded_interval(np.full(num_pairs, 1.07 * least), -1.0, 1.0).low > 0.0
    assert bounded_interval(np.full(num_pairs, min(1.0, 0.93 * least)), -1.0, 1.0).low < 0.0


def test_what_wins_and_what_does_not() -> None:
    sure = ([driven(20.0)] * 10, [driven(15.0)] * 10)
    found = comparison(sure, sure)
    assert found.lead == pytest.approx(0.25)
    # By hand: beside 20 equal pairs, the weight w of one more has the density 20 (1 - w)^19.
    weight = 1.0 - 0.025 ** (1.0 / 20.0)
    by_hand = 0.25 - 1.25 * weight, 0.25 + 0.75 * weight
    assert found.interval == pytest.approx(by_hand, abs=0.02)
    assert found.winner is found.first
    assert comparison(*[(sure[1], sure[0])] * 2).to_json()["winner"] == "b"
    mixed = ([driven(20.0)] * 5 + [driven(15.0)] * 5, [driven(15.0)] * 5 + [driven(20.0)] * 5)
    found = comparison(mixed)
    assert found.interval.low < 0.0 < found.interval.high
    assert found.winner is None
    assert verdict(found.to_json()).startswith("Nobody wins: this may be chance. 10 pairs")
    found = comparison(([driven(20.0)] * 9, [driven(15.0)] * 9))
    assert found.winner is None, "one of nine may be lost, and nobody has seen it"
    assert verdict(found.to_json()).startswith("Nobody wins: this may be chance. 9 pairs")
    assert verdict(found.to_json()).endswith("So many pairs prove no lead below 51 %; more do: `--races`.")
    few = comparison(([driven(20.0)] * 5, [driven(15.0, until_m=9.0)] * 5))
    assert verdict(few.to_json()).endswith("So many pairs prove nothing; more do: `--races`.")
    found = comparison(*[([driven(20.0)], [driven(15.0)])] * 20)
    assert found.winner is found.first
    assert comparison(([driven(20.0)] * 5, [driven(15.0, until_m=9.0)] * 5)).winner is None
    found = comparison(([driven(20.0)] * 9, [driven(15.0, until_m=9.0)] * 9))
    assert found.winner is found.first
    found = comparison(([driven(20.0), driven(20.0)], [driven(15.0), driven(15.0, until_m=9.0)]))
    [track] = found.to_json()["tracks"]
    assert (track["finished_by_both"], track["gain_s"]) == (1, 1.0)
    assert (track["first"]["finished"], track["second"]["finished"]) == (2, 1)
    assert "+1.00 s" in format_comparison(found.to_json())


@pytest.mark.parametrize("kind", ["near", "both", "by track", "rare falls"])
@pytest.mark.parametrize(
    ("pairs", "tracks", "count"),
    [
        *[(*shape, 400) for shape in ((1, 10), (2, 5), (13, 1))],
        *[pytest.param(*shape, 2000, marks=pytest.mark.slow) for shape in ((1, 10), (10, 1), (20, 4))],
    ],
)
def test_equal_agents_win_as_often_as_the_page_says(pairs: int, tracks: int, count: int, kind: str) -> None:
    """Of agents without a lead in truth either wins one comparison in forty at most."""
    rng = np.random.default_rng(0)
    shape = count, tracks, pairs
    near, finishing = rng.normal(0.0, 0.02, shape), rng.choice((-1.0, 1.0), shape)
    leads = {
        "near": near,
        "both": np.where(rng.random(shape) < 0.2, finishing, near),
        # Equal on the whole: one is better on every second track, and the other on those between.
        "by track": near + 0.05 * np.where(np.arange(tracks) % 2, -1.0, 1.0)[:, None] * (tracks % 2 == 0),
        # Ahead, but for races that are lost: 5 of a hundred.
        "rare falls": np.where(rng.random(shape) < 0.05, -1.0, 0.05 / 0.95),
    }[kind]
    nobody = Racer("a", lambda *_: np.zeros(1), ())
    second = replace(nobody, name="b")
    won = {"a": 0, "b": 0, None: 0}
    for seed, each in enumerate(leads):
        drawn: Any = tuple(SimpleNamespace(leads=of_track) for of_track in each)
        winner = Comparison(nobody, second, drawn, seed).winner
        won[winner.name if winner else None] += 1
    chance = 3.0 * math.sqrt(1 / 40 * 39 / 40 / count)
    assert max(won["a"], won["b"]) <= count * (1 / 40 + chance)


def test_both_begin_at_the_same_starts(racers: tuple[Racer, Racer], params: Params) -> None:
    found = race_pairs(*racers, params, [short_track()], num_races=3, seed=7)
    [pairs] = found.tracks
    assert [race.seed for race in pairs.first] == [race.seed for race in pairs.second] == [7, 8, 9]
    for ours, theirs in zip(pairs.first, pairs.second, strict=True):
        np.testing.assert_array_equal(ours.cars[0], theirs.cars[0])
    assert all(race.is_finished for race in pairs.first)
    assert found.lead == 1.0
    again = race_pairs(*racers, params, [short_track()], num_races=3, seed=7)
    assert again.to_json() == found.to_json()
    stream = io.StringIO()
    found = race_pairs(racers[0], racers[0], params, [short_track()], num_races=2, stream=stream)
    assert "2/2 races" in stream.getvalue()
    assert found.lead == 0.0
    for wrong, said in (
        ({"num_races": 0}, r"num_races: must be greater than or equal to 1 \(got 0\)"),
        ({"num_races": 10_001}, r"num_races: must be less than or equal to 10000 \(got 10001\)"),
        ({"seed": -1}, r"seed: must be greater than or equal to 0 \(got -1\)"),
        ({"seed": 2**32}, r"seed: must be less than 4294967296"),
    ):
        with pytest.raises(UserError, match=said):
            race_pairs(*racers, params, [short_track()], **wrong)
    with pytest.raises(UserError, match="the track tiny is named twice"):
        race_pairs(*racers, params, [short_track()] * 2)


def test_agents_of_other_contracts(project: Path, params: Params) -> None:
    actions = params.actions.model_copy(update={"ticks_per_action": 3})
    with pytest.raises(UserError, match=r"^quick cannot race: .*actions.ticks_per_action is 5, expected 3"):
        load_racer("quick", Path("data/agent"), params.model_copy(update={"actions": actions}))
    seen = params.observation.model_copy(update={"withheld": ("image",)})
    racer = load_racer("quick", Path("data/agent"), params.model_copy(update={"observation": seen}))
    found = race_pairs(racer, racer, params, [short_track()], num_races=1)
    assert found.tracks[0].first[0].is_finished


def test_names_stand_for_one_or_for_many(project: Path, params: Params) -> None:
    assert [track.uid for track in tracks_to_race_on((), params)] == ["tiny"]
    evaluate = params.evaluate.model_copy(update={"tracks": (MainTrackParams(kind="main"),)})
    assert len(tracks_to_race_on((), params.model_copy(update={"evaluate": evaluate}))) == 1
    found = tracks_to_race_on(("main", "campaign"), params)
    assert [track.uid for track in found[:2]] == ["tiny", "campaign-copper-oval"]
    assert len(found) == 11
    held_out = tracks_to_race_on(("held-out",), params)
    assert {track.uid: geometry_hash(track) for track in held_out} == HELD_OUT
    with pytest.raises(TrackError, match="no track 'monza'"):
        tracks_to_race_on(("monza",), params)


def test_both_cars_are_shown_until_both_are_done(racers: tuple[Racer, Racer], params: Params, tmp_path: Path) -> None:
    found = race_pairs(*racers, params, [short_track()], num_races=1)
    said = write_side_by_side(tmp_path / "a.mp4", found, params, io.StringIO())
    assert said == "tiny, start 100: the pair in the middle of all leads there"
    longest_ms = max(race.duration_ms for race in (found.tracks[0].first[0], found.tracks[0].second[0]))
    with av.open(str(tmp_path / "a.mp4")) as video:
        frames = list(video.decode(video=0))
    assert (frames[0].width, frames[0].height) == (320, 90)
    assert len(frames) == round((longest_ms / 1000 + 2.2) * params.evaluate.video_fps)


def test_the_first_is_promoted_and_others_must_win(project: Path, racers: tuple[Racer, Racer], params: Params) -> None:
    quick, slow = Path("data/agent"), Path("slow")
    asked: list[str] = []

    def compare(folder: Path, num_races: int):
        def race(before: str) -> Comparison:
            asked.append(before)
            ours = replace(racers[0 if folder == quick else 1], name=name_of(folder))
            theirs = replace(racers[1 if folder == quick else 0], name=before)
            return race_pairs(ours, theirs, params, [short_track()], num_races=num_races, stream=io.StringIO())

        return race

    first = promote(slow, compare(slow, 10))
    assert asked == []
    assert describe(first) == f"{name_of(slow)} is promoted. It is the first, and was compared with nobody."
    with pytest.raises(UserError, match=r"is not promoted.*stays.*this may be chance"):
        promote(quick, compare(quick, 5))
    assert [each.name for each in promotions()] == [name_of(slow)]
    second = promote(quick, compare(quick, 10))
    assert asked == [name_of(slow)] * 2
    assert second.over == name_of(slow)
    said = describe(second)
    assert said.startswith(
        f"{name_of(quick)} is promoted over {name_of(slow)}. {name_of(quick)} wins. 10 pairs of races"
    )
    assert "from seed 100, on tiny" in said
    won = compare(quick, 10)(name_of(slow)).to_json()
    fallen = [entry | {"first": entry["first"] | {"finished": 0, "trained_on": False}} for entry in won["tracks"]]
    assert won["winner"] == won["first"]
    assert verdict(won | {"tracks": fallen}).endswith(
        "; it finished none of them; it was trained on none of these tracks."
    )
    with pytest.raises(UserError, match="is the promoted agent already"):
        promote(quick, compare(quick, 10))
    with pytest.raises(UserError, match=f"{name_of(slow)} is not promoted, {name_of(quick)} stays"):
        promote(slow, compare(slow, 10))
