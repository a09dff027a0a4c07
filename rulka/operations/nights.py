"""Nightly evaluation: the promoted and the latest agent race from the night's own starts, compared with earlier nights.

    data/nights/history.csv     appended to each night, see `COLUMNS`; existing rows never change
    data/nights/records/        <uid>.mp4, the fastest race of all nights on a track, once it has beaten another

The metric is the pace: the track's length over the race's time, 0 for an unfinished race, as a mean over races and
tracks with equal weights. Its 95 % interval is for other starts on the same tracks.

A night is *below* earlier nights if it is slower and the 95 % interval of the difference, which includes the
uncertainty of both, excludes 0. One night in thirty is below by chance, so a night is *worse* only if the previous one
was below too, or if it is so far below that chance explains one night in a thousand, as in control charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch

from rulka.evaluation.results import RaceResult, best_race, finish_times_s
from rulka.evaluation.statistics import stratified_interval
from rulka.machine.device import CPU
from rulka.machine.errors import UserError
from rulka.operations.history import ALL_TRACKS, RECORDS_FOLDER, NightRow, append_history, read_history
from rulka.operations.kept import LATEST, PROMOTED, find_agent, name_of, promoted_name
from rulka.operations.pairs import Comparison, Racer, load_racer, provable_lead, race_pairs, verdict
from rulka.operations.promotion import describe, promote
from rulka.operations.tracks import tracks_to_race_on
from rulka.params import Params, with_given
from rulka.stages.folders import NIGHTS
from rulka.stages.outputs import new_file
from rulka.tracks.track import Track
from rulka.video.hud import HudTexts
from rulka.video.race_video import VideoRace, write_video

FIRST_NIGHT = date(2020, 1, 1)
SEEDS_A_NIGHT = 10_000
"""Maximum of `evaluate.num_races`: race k starts from seed + k, and no two nights may share a start."""
NIGHTS_BEFORE = 7
"""Number of earlier nights whose mean a night is compared with: a single one would be as uncertain as the night."""
FEWEST_RACES = 10
"""Minimum races of each agent on each track: the spread is measured within tracks, with fewer races too roughly."""
FEWEST_PAIRS = 17
"""Minimum pairs on all tracks together: fewer cannot prove a lead of a quarter of the track, see `provable_lead`."""
FAR_BELOW = 1.58
"""In half-widths of a 95 % interval: a thousandth of a normal distribution lies further on one side."""


@dataclass(frozen=True)
class Night:
    """Result of a night.

    Attributes:
        rows: rows added to the history.
        compared: the latest agent against the promoted one, in the form of `rulka agents compare --json`.
        promoted: message about the promotion; empty without one.
        records: names of the tracks with a new record.
        below: roles that are below earlier nights, whether worse or not.
    """

    rows: tuple[NightRow, ...]
    compared: dict[str, Any]
    promoted: str
    records: tuple[str, ...]
    below: tuple[str, ...]

    @property
    def worse(self) -> tuple[NightRow, ...]:
        """Rows that are worse than earlier nights."""
        return tuple(row for row in self.rows if row.is_worse)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON, with `worse` and `below` as roles and the summary as `text`."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "compared": self.compared,
            "promoted": self.promoted,
            "records": list(self.records),
            "worse": [row.role for row in self.worse],
            "below": list(self.below),
            "text": self.describe(),
        }

    def describe(self) -> str:
        """Returns the summary of the night as text."""
        together = [row for row in self.rows if row.track == ALL_TRACKS]
        lines = [f"night of {together[0].night}, seed {together[0].seed}"]
        lines += [_line(row, is_below=row.role in self.below) for row in together]
        if self.compared["first"] != self.compared["second"]:
            lines.append(verdict(self.compared))
        lines += [self.promoted] if self.promoted else []
        lines += [f"new record: {', '.join(self.records)}"] if self.records else []
        return "\n".join(lines)


def _line(row: NightRow, *, is_below: bool) -> str:
    is_first = row.before_mps is None
    before = "the first night on these tracks" if is_first else f"{row.before_mps:.2f} in the nights before"
    mark = "WORSE: " if row.is_worse else "below, and WORSE if the next night is, too: " if is_below else ""
    return (
        f"{mark}{row.role} {row.agent}: {row.finished} of {row.races} races finished, "
        f"{row.pace_mps:.2f} m/s ({row.pace_low_mps:.2f} to {row.pace_high_mps:.2f}; {before})"
    )


def seed_of(night: date) -> int:
    """Returns the seed of a night's races: unique to the night, and the same if the night is repeated."""
    return (night - FIRST_NIGHT).days * SEEDS_A_NIGHT


def race_night(
    night: date,
    params: Params,
    tracks: Sequence[str],
    *,
    num_races: int | None = None,
    device: torch.device = CPU,
    stream: TextIO | None = None,
) -> Night:
    """Races both agents, appends to the history, films records, and promotes the latest agent if it wins.

    If no agent is promoted yet, promotes the latest one without a race.

    Args:
        night: date, which determines the starts.
        params: settings of the races.
        tracks: names, see `rulka.operations.tracks.tracks_to_race_on`.
        num_races: races of each agent on each track; None takes `evaluate.num_races`.
        device: device of the networks.
        stream: stream for progress; None is standard output.

    Raises:
        UserError: if there are too few races, or an agent, a track or the history is missing or damaged.
    """
    asked = with_given(params.evaluate, num_races=num_races).num_races
    if asked < FEWEST_RACES:
        message = f"{asked} races of each agent on each track are too few for a night: it takes {FEWEST_RACES} at least"
        raise UserError(message, hint="Give `--races`, or raise evaluate.num_races in params.yaml.")
    latest = find_agent(LATEST)
    past = read_history()
    where = tracks_to_race_on(tracks, params)
    if (pairs := asked * len(where)) < FEWEST_PAIRS:
        lead = f"{100 * provable_lead(pairs):.0f} % of the track"
        message = f"{pairs} pairs are too few for a night: they prove no lead below {lead}"
        raise UserError(f"{message}, it takes {FEWEST_PAIRS} pairs", hint="Give `--races`, or more tracks.")
    said = describe(promote(latest, _nobody)) if promoted_name() is None else ""
    names = {role: name_of(find_agent(role)) for role in (LATEST, PROMOTED)}
    first, second = (load_racer(name, find_agent(role), params, device) for role, name in names.items())
    found = race_pairs(first, second, params, where, num_races=num_races, seed=seed_of(night), stream=stream)
    rows = rows_of(found, night, past)
    records = _film_records(found, past, params, stream)
    append_history(rows)
    if found.winner is found.first and names[LATEST] != names[PROMOTED]:
        said = describe(promote(latest, lambda _: found))
    below = tuple(row.role for row in rows if row.track == ALL_TRACKS and judge(row, past).is_below)
    return Night(tuple(rows), found.to_json(), said, tuple(track.name for track in records), below)


def _nobody(before: str) -> Comparison:
    raise UserError(f"{before} was promoted meanwhile", hint="Run it again.")


def rows_of(found: Comparison, night: date, past: Sequence[NightRow]) -> list[NightRow]:
    """Returns a row for each role and track, and one for all tracks, compared with earlier nights."""
    raced_at = datetime.now(UTC).isoformat(timespec="seconds")
    rows = []
    for role, racer, side in ((PROMOTED, found.second, "second"), (LATEST, found.first, "first")):
        races: list[list[RaceResult]] = [getattr(pairs, side) for pairs in found.tracks]
        named = [(pairs.track.uid, pairs.track.name, [each]) for pairs, each in zip(found.tracks, races, strict=True)]
        uids = sorted(uid for uid, _, _ in named)
        named.append((f"all-{sha256(' '.join(uids).encode()).hexdigest()[:8]}", ALL_TRACKS, races))
        for uid, name, those in named:
            is_together = name == ALL_TRACKS
            pace = np.array([[result.pace_mps for result in each] for each in those]).T
            interval = stratified_interval(pace)
            times_s = [] if is_together else finish_times_s(those[0])
            row = NightRow(
                night=night.isoformat(),
                raced_at=raced_at,
                seed=found.seed,
                role=role,
                agent=racer.name,
                uid=uid,
                track=name,
                trained_on=all(each in racer.trained_on for each in (uids if is_together else [uid])),
                races=pace.size,
                finished=int((pace > 0.0).sum()),
                best_time_s=min(times_s, default=None),
                median_time_s=round(float(np.median(times_s)), 4) if times_s else None,
                pace_mps=round(float(pace.mean()), 4),
                pace_low_mps=round(interval.low, 4),
                pace_high_mps=round(interval.high, 4),
                before_mps=None,
                is_worse=False,
            )
            verdict = judge(row, past)
            rows.append(replace(row, before_mps=verdict.before_mps, is_worse=is_together and verdict.is_worse))
    return rows


class Verdict(NamedTuple):
    """Comparison of a night with earlier nights.

    Attributes:
        before_mps: mean pace of the earlier nights; None if there are none.
        is_below: True if the night is slower and the interval of the difference excludes 0.
        is_worse: True if it is below and the previous night was too, or it is far below.
    """

    before_mps: float | None
    is_below: bool
    is_worse: bool


def judge(row: NightRow, past: Sequence[NightRow]) -> Verdict:
    """Compares a night with earlier ones in the same role on the same tracks.

    A night that is below is left out of the baseline of the next night, where it would hide a regression. Later nights
    include it, so that a permanent slowdown becomes the baseline within about a week. The last run of a repeated night
    counts.
    """
    same = {each.night: each for each in past if (each.role, each.uid) == (row.role, row.uid)}
    nights = [*(same[night] for night in sorted(same) if night < row.night), row]
    verdict = Verdict(None, is_below=False, is_worse=False)
    for k, night in enumerate(nights):
        before = nights[: k - 1] if verdict.is_below else nights[:k]
        verdict = _compared(night, before[-NIGHTS_BEFORE:], was_below=verdict.is_below)
    return verdict


def _compared(night: NightRow, before: Sequence[NightRow], *, was_below: bool) -> Verdict:
    if not before:
        return Verdict(None, is_below=False, is_worse=False)
    mean = round(float(np.mean([each.pace_mps for each in before])), 4)
    # The squared half-width is averaged over these nights, since a night without finishes has zero width. Nights are
    # independent, so squares add up, and the mean of k nights has 1/k of the square of one.
    squares = [(each.pace_high_mps - each.pace_mps) ** 2 for each in (*before, night)]
    half_width = float(np.sqrt(np.mean(squares) * (1.0 + 1.0 / len(before))))
    less_mps = mean - night.pace_mps
    is_below = round(less_mps - half_width, 4) > 0.0
    is_far_below = is_below and less_mps > FAR_BELOW * half_width
    return Verdict(mean, is_below=is_below, is_worse=is_far_below or (is_below and was_below))


def _film_records(found: Comparison, past: Sequence[NightRow], params: Params, stream: TextIO | None) -> list[Track]:
    """Films the best race on each track if it beats all earlier nights; returns these tracks."""
    tracks = []
    for pairs in found.tracks:
        uid = pairs.track.uid
        known = min((row.best_time_s for row in past if row.uid == uid and row.best_time_s is not None), default=None)
        best = best_race([*pairs.first, *pairs.second])
        if known is None or best is None or best.time_s is None or best.time_s >= known:
            continue
        racer: Racer = found.first if any(best is each for each in pairs.first) else found.second
        texts = HudTexts(f"{racer.name[:18]}  {best.time_s:.2f} s", f"{pairs.track.name[:28]}, start {best.seed}", "")
        shown = VideoRace(best, (), texts)
        observation = getattr(racer.policy, "observation", params.observation)
        (NIGHTS / RECORDS_FOLDER).mkdir(parents=True, exist_ok=True)
        with new_file(NIGHTS / RECORDS_FOLDER / f"{uid}.mp4") as beside:
            write_video(beside, shown, params.simulator.camera, observation, params.evaluate, stream)
        tracks.append(pairs.track)
    return tracks
