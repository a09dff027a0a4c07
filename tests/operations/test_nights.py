import io
import json
import shutil
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from rulka.evaluation.statistics import stratified_interval
from rulka.machine.errors import UserError
from rulka.operations import nights as module
from rulka.operations.history import ALL_TRACKS, COLUMNS, NightRow, read_history
from rulka.operations.kept import Promotion, keep_promoted, name_of, promoted_name
from rulka.operations.nights import (
    FEWEST_PAIRS,
    SEEDS_A_NIGHT,
    Night,
    Verdict,
    judge,
    race_night,
    rows_of,
    seed_of,
)
from rulka.operations.pairs import provable_lead
from rulka.operations.tracks import tracks_to_race_on
from rulka.params import Params
from tests.cli.conftest import call
from tests.operations.test_pairs import comparison, driven

MONDAY, TUESDAY = date(2026, 11, 23), date(2026, 11, 24)
HISTORY = Path("data/nights/history.csv")


def raced(night: date, params: Params, num_races: int = FEWEST_PAIRS) -> Night:
    return race_night(night, params, ("main",), num_races=num_races, stream=io.StringIO())


@cache
def first_rows() -> tuple[NightRow, ...]:
    """The rows of `two_tracks` on Monday, with no night before it."""
    return tuple(rows_of(two_tracks(), MONDAY, []))


def past(*paces: float, role: str = "promoted") -> list[NightRow]:
    """Nights from 2026-11-01 on, on both tracks of `two_tracks`, with these paces."""
    paced = [replace(first_rows()[2], role=role, pace_mps=mps, pace_low_mps=mps, pace_high_mps=mps) for mps in paces]
    return [replace(row, night=date(2026, 11, day).isoformat()) for day, row in enumerate(paced, 1)]


def night_of(number: int, paces: NDArray[np.float64]) -> NightRow:
    """A night with these paces [R, T] of its races."""
    mean, interval = float(paces.mean()), stratified_interval(paces)
    night = date.fromordinal(TUESDAY.toordinal() + number).isoformat()
    low, high = interval
    return replace(first_rows()[2], night=night, pace_mps=mean, pace_low_mps=low, pace_high_mps=high)


def judged(
    rng: np.random.Generator, num_nights: int, *, races: int, tracks: int = 1, dnf: float = 0.0, drop_mps: float = 0.0
) -> list[Verdict]:
    """What is said of the nights of an agent that drives about 20 m/s and loses `drop_mps` in the last two nights."""
    rows: list[NightRow] = []
    found = []
    for number in range(num_nights):
        mean = np.linspace(15.0, 25.0, tracks) if tracks > 1 else 20.0
        mean = mean - (drop_mps if number >= num_nights - 2 else 0.0)
        row = night_of(number, rng.normal(mean, 1.0, (races, tracks)) * (rng.random((races, tracks)) >= dnf))
        found.append(judge(row, rows))
        rows.append(row)
    return found


def two_tracks():
    """The first agent drives 20 m/s, the second 15 m/s and finishes half of its races on the second track."""
    unfinished = driven(15.0, until_m=30.0)
    return comparison(
        ([driven(20.0)] * 10, [driven(15.0)] * 10), ([driven(20.0)] * 10, [driven(15.0)] * 5 + [unfinished] * 5)
    )


def test_paces_and_what_is_below() -> None:
    rows = first_rows()
    assert [(row.role, row.track) for row in rows] == [
        (role, track) for role in ("promoted", "latest") for track in ("track 0", "track 1", ALL_TRACKS)
    ]
    promoted = rows[2]
    assert (promoted.races, promoted.finished) == (20, 15)
    assert promoted.pace_mps == pytest.approx((15.0 + 7.5) / 2)
    assert promoted.pace_low_mps < promoted.pace_mps < promoted.pace_high_mps < 15.0
    assert (promoted.before_mps, promoted.is_worse) == (None, False)
    assert rows[5].pace_low_mps == rows[5].pace_high_mps == 20.0
    row = first_rows()[2]
    assert judge(row, past(row.pace_high_mps + 0.001)).is_below
    assert not judge(row, past(row.pace_high_mps)).is_below
    assert not judge(row, past(row.pace_high_mps + 0.001, role="latest")).is_below
    # The nights before are uncertain, too: by hand, 3-4-5.
    half_width = row.pace_high_mps - row.pace_mps
    mean = row.pace_mps + 1.25 * half_width
    before = [replace(past(mean)[0], pace_high_mps=mean + 0.75 * half_width)]
    assert not judge(row, before).is_below
    four = [replace(before[0], night=f"2026-11-0{day}") for day in range(1, 5)]
    assert judge(row, four).is_below, "the mean of four is known twice as well"


def test_worse_is_below_twice_in_a_row_or_far_below() -> None:
    row = first_rows()[2]
    half_width = row.pace_high_mps - row.pace_mps
    just, far = row.pace_mps + 1.2 * half_width, row.pace_mps + 1.6 * half_width
    assert not judge(row, past(just)).is_worse
    assert judge(row, past(far)).is_worse
    assert rows_of(two_tracks(), MONDAY, past(far))[2].is_worse
    assert not any(each.is_worse for each in rows_of(two_tracks(), MONDAY, past(far))[:2]), "of single tracks"
    sunday = replace(row, night="2026-11-22")
    twice = judge(row, [*past(just), sunday])
    assert twice.is_worse
    assert twice.before_mps == pytest.approx(just, abs=1e-4), "the night that was below is no measure"
    good = replace(past(just)[0], night="2026-11-22")
    assert not judge(row, [*past(just), replace(row, night="2026-11-21"), good]).is_worse


def test_what_is_slower_for_good_becomes_the_measure() -> None:
    row = first_rows()[2]
    rows = past(*[row.pace_mps + 10.0] * 7)
    found = []
    for day in range(8, 20):
        night = replace(row, night=f"2026-11-{day:02}")
        found.append(judge(night, rows).is_worse)
        rows.append(night)
    assert found[:3] == [True] * 3
    assert found[-1] is False


@pytest.mark.parametrize(
    ("races", "tracks", "dnf", "count"),
    [
        *[(*each, 400) for each in ((10, 1, 0.05), (10, 1, 0.9), (20, 11, 0.1))],
        *[pytest.param(*each, 1600, marks=pytest.mark.slow) for each in ((10, 4, 0.9), (20, 1, 0.0), (20, 15, 0.3))],
    ],
)
def test_an_equal_agent_is_seldom_marked_by_chance(races: int, tracks: int, dnf: float, count: int) -> None:
    """Ten nights each, from the fewest races that a night takes; nobody may finish in some."""
    rng = np.random.default_rng(0)
    found = [judged(rng, 11, races=races, tracks=tracks, dnf=dnf)[1:] for _ in range(count)]
    marked = [verdict.is_worse for series in found for verdict in series]
    assert np.mean(marked) <= 1 / 200
    below = [verdict.is_below for series in found for verdict in series]
    assert np.mean(below) > np.mean(marked)


def test_nights_before_count_once_the_last_seven() -> None:
    rows = rows_of(two_tracks(), MONDAY, past(0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    assert rows[2].before_mps == 4.0
    first, second = past(10.0, 20.0)
    again = replace(first, pace_mps=12.0)
    assert rows_of(two_tracks(), MONDAY, [first, second, again])[2].before_mps == 16.0
    assert rows_of(two_tracks(), date(2026, 11, 2), [first, second])[2].before_mps == 10.0


def test_nights_share_no_start(project: Path, params: Params) -> None:
    for night in (date(2020, 1, 1), MONDAY, date(2060, 12, 31)):
        following = date.fromordinal(night.toordinal() + 1)
        assert seed_of(following) - seed_of(night) == SEEDS_A_NIGHT
        values = params.evaluate.model_dump()
        type(params.evaluate).model_validate(values | {"seed": seed_of(night), "num_races": SEEDS_A_NIGHT})


def test_the_first_night_promotes_the_only_agent_and_the_next_is_appended(params: Params) -> None:
    night = raced(MONDAY, params)
    assert promoted_name() == name_of(Path("data/agent"))
    assert "It is the first" in night.promoted
    assert night.records == ()
    assert not list(HISTORY.parent.glob("*.mp4"))
    assert [row.seed for row in night.rows] == [seed_of(MONDAY)] * 4
    assert "the first night" in night.describe()
    assert "WORSE" not in night.describe()
    before = HISTORY.read_text()
    tuesday = raced(TUESDAY, params)
    after = HISTORY.read_text()
    assert after.startswith(before)
    assert after.splitlines()[0] == ",".join(COLUMNS)
    assert tuple(read_history()) == (*night.rows, *tuesday.rows)
    assert tuesday.rows[-1].before_mps == night.rows[-1].pace_mps


def test_a_latest_agent_that_wins_is_promoted_and_one_that_does_not_is_not(params: Params) -> None:
    slow, quick = Path("slow"), Path("data/agent")
    keep_promoted(slow, Promotion(name_of(slow), "2026-11-01T00:00:00+00:00", None, None))
    with pytest.raises(UserError, match="9 races of each agent on each track are too few for a night: it takes 10"):
        raced(MONDAY, params, num_races=9)
    with pytest.raises(UserError, match=r"16 pairs .* prove no lead below 26 % of the track, it takes 17 pairs"):
        raced(MONDAY, params, num_races=16)
    assert provable_lead(FEWEST_PAIRS) < 0.25 < provable_lead(FEWEST_PAIRS - 1)
    assert not HISTORY.exists()
    won = raced(TUESDAY, params)
    assert promoted_name() == name_of(quick)
    assert f"is promoted over {name_of(slow)}" in won.describe()


def test_a_latest_agent_that_got_worse_is_marked(params: Params) -> None:
    raced(MONDAY, params)
    shutil.rmtree("data/agent")
    shutil.copytree("slow", "data/agent")
    night = raced(TUESDAY, params)
    assert [row.role for row in night.worse] == ["latest"]
    assert night.to_json()["worse"] == ["latest"]
    assert f"WORSE: latest {name_of(Path('slow'))}: 0 of 17 races finished" in night.describe()
    assert promoted_name() != name_of(Path("slow"))


def test_a_record_is_filmed_where_it_beats_the_nights_before(params: Params) -> None:
    monday = raced(MONDAY, params)
    [uid] = [track.uid for track in tracks_to_race_on(("main",), params)]
    file = HISTORY.parent / "records" / f"{uid}.mp4"
    best_s = monday.rows[0].best_time_s
    assert best_s is not None
    text = HISTORY.read_text()
    HISTORY.write_text(text.replace(f",{best_s},", f",{best_s + 10.0},"))
    assert raced(TUESDAY, params).records == ("tiny",)
    with av.open(str(file)) as video:
        assert sum(1 for _ in video.decode(video=0)) > 5
    changed = file.stat().st_mtime_ns
    assert raced(TUESDAY, params).records == ()
    assert file.stat().st_mtime_ns == changed


def test_a_damaged_history_is_named_before_anybody_races(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    raced(MONDAY, params)
    text = HISTORY.read_text()
    monkeypatch.setattr(module, "race_pairs", lambda *_, **__: pytest.fail("it raced"))
    HISTORY.write_text(text + "2026-11-23,now\n")
    with pytest.raises(UserError, match=r"history.csv, line 6, is damaged") as caught:
        raced(TUESDAY, params)
    assert "dvc checkout data/nights.dvc" in caught.value.hint
    HISTORY.write_text("night\n")
    with pytest.raises(UserError, match="does not begin with the columns night, raced_at"):
        raced(TUESDAY, params)


def test_nights_go_to_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand and in the flow alike, which calls this command."""

    def race_night(*_: Any, **__: Any) -> Any:
        for path in ("data/nights/history.csv", "data/agents/promotions.jsonl"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("{}\n")
        return SimpleNamespace(to_json=dict, describe=str)

    monkeypatch.setattr("rulka.operations.nights.race_night", race_night)
    monkeypatch.setattr("rulka.params.read_params", lambda: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))

    assert call("night") == 0
    assert "there is no .dvc here, so that data/nights and data/agents has no versions" in capsys.readouterr().err
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    assert call("night --json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {}, "what the flow reads"
    assert "`git add data/agents.dvc data/nights.dvc && git commit` keeps this version" in said.err
    assert Path("data/agents.dvc").is_file()
    assert Path("data/nights.dvc").is_file()
    Path("dvc.yaml").write_text("stages: {}}")
    assert call("night --date 2026-11-23") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the night of 2026-11-23 is noted, but DVC has not taken in data/nights and ")
    assert "`dvc add data/nights data/agents`." in said
