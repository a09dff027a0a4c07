"""Two agents race in pairs, both from the same start, on several tracks: who is ahead, by how much, how surely.

Pairs share their start, so what a hard start costs both is in neither's favour. What is compared is the lead: the part
of the track, in [-1, 1], that lies between the two when the first of them is done. It is

    both finished    what the slower one had still to go when the faster one finished
    one finished     all of the track: a race that did not finish counts for nothing beside one that did
    none finished    the difference of their furthest points

and positive where the first agent is ahead. Its mean is over pairs and tracks, each track alike. Where that is 0 in
truth, the interval (`rulka.statistics.bounded_interval`) leaves out 0 on either side in one comparison of forty at
most, for any number of pairs and tracks, and for races that go wrong too rarely to be seen in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from pandas import DataFrame

from rulka.actions import action_table
from rulka.agents.load import load_policy
from rulka.artifacts import ArtifactError
from rulka.device import CPU
from rulka.errors import UserError, counted
from rulka.evaluation.contest import Driver, race_all, trained_tracks
from rulka.evaluation.guests import find_guest, is_guest
from rulka.evaluation.race import EvaluationRaces, Policy
from rulka.evaluation.results import RaceResult, finish_times_s
from rulka.params import Params, with_given
from rulka.registry.kept import find_agent, format_seconds, name_of
from rulka.statistics import Interval, bounded_interval
from rulka.tracks.track import Track


class PairError(UserError):
    """Two agents cannot be compared as was asked."""


@dataclass(frozen=True)
class Racer:
    """One of the two.

    Attributes:
        name: of the agent.
        policy: what it does.
        trained_on: UIDs of the tracks that it was trained on.
    """

    name: str
    policy: Policy
    trained_on: tuple[str, ...]


@dataclass(frozen=True)
class TrackPairs:
    """The pairs of one track: race k of both began at the same start."""

    track: Track
    first: list[RaceResult]
    second: list[RaceResult]

    @property
    def leads(self) -> NDArray[np.float64]:
        """[R] the first agent's leads."""
        return np.array([lead(ours, theirs) for ours, theirs in zip(self.first, self.second, strict=True)])

    def interval(self, seed: int) -> Interval:
        """Of their mean."""
        return bounded_interval(self.leads, -1.0, 1.0, seed)


@dataclass(frozen=True)
class Comparison:
    """All pairs of two agents; see the module for what a lead is.

    Attributes:
        first: the one whose leads count as positive.
        second: the other one.
        tracks: one entry each, all with as many pairs.
        seed: of the first start on each track.
    """

    first: Racer
    second: Racer
    tracks: tuple[TrackPairs, ...]
    seed: int

    @property
    def leads(self) -> NDArray[np.float64]:
        """[R T] leads of all pairs, track after track."""
        return np.concatenate([pairs.leads for pairs in self.tracks])

    @property
    def lead(self) -> float:
        """The mean lead."""
        return float(self.leads.mean())

    @property
    def interval(self) -> Interval:
        """Of the mean lead."""
        return bounded_interval(self.leads, -1.0, 1.0, self.seed)

    @property
    def num_pairs(self) -> int:
        """On all tracks together."""
        return self.leads.size

    @property
    def winner(self) -> Racer | None:
        """Who is ahead by more than chance explains; None where it may be chance."""
        interval = self.interval
        if interval.low <= 0.0 <= interval.high:
            return None
        return self.first if interval.low > 0.0 else self.second

    def to_json(self) -> dict[str, Any]:
        """Returns the result without the races."""
        winner = self.winner
        return {
            "first": self.first.name,
            "second": self.second.name,
            "seed": self.seed,
            "pairs": self.num_pairs,
            "lead": round(self.lead, 5),
            "lead_interval": _rounded(self.interval),
            "winner": winner.name if winner else None,
            "tracks": [self._track(pairs) for pairs in self.tracks],
        }

    def _track(self, pairs: TrackPairs) -> dict[str, Any]:
        track = pairs.track
        both_s = [
            (ours.time_s - theirs.time_s)
            for ours, theirs in zip(pairs.first, pairs.second, strict=True)
            if ours.time_s is not None and theirs.time_s is not None
        ]
        return {
            "uid": track.uid,
            "name": track.name,
            "length_m": track.length_m,
            "first": _races_of(self.first, track, pairs.first),
            "second": _races_of(self.second, track, pairs.second),
            "finished_by_both": len(both_s),
            "gain_s": round(-float(np.mean(both_s)), 4) if both_s else None,
            "lead": round(float(pairs.leads.mean()), 5),
            "lead_interval": _rounded(pairs.interval(self.seed)),
        }


def _races_of(racer: Racer, track: Track, races: Sequence[RaceResult]) -> dict[str, Any]:
    times_s = finish_times_s(list(races))
    return {
        "trained_on": track.uid in racer.trained_on,
        "races": len(races),
        "finished": len(times_s),
        "best_time_s": min(times_s, default=None),
        "median_time_s": float(np.median(times_s)) if times_s else None,
    }


def pace_of(races: Sequence[RaceResult]) -> NDArray[np.float64]:
    """Returns [R] the track's length over the time of each race in m/s, 0 for one that did not finish."""
    return np.array([0.0 if result.time_s is None else result.track.length_m / result.time_s for result in races])


def _rounded(interval: Interval) -> list[float]:
    return [round(end, 5) for end in interval]


def lead(ours: RaceResult, theirs: RaceResult) -> float:
    """Returns the part of the track that ours is ahead when the first of the two is done; see the module."""
    length_m = ours.track.length_m
    if ours.time_ms is None and theirs.time_ms is None:
        return float(np.clip((ours.progress_m - theirs.progress_m) / length_m, -1.0, 1.0))
    if ours.time_ms is None or theirs.time_ms is None:
        return 1.0 if theirs.time_ms is None else -1.0
    if ours.time_ms == theirs.time_ms:
        return 0.0
    slower, faster_ms, sign = (
        (theirs, ours.time_ms, 1.0) if ours.time_ms < theirs.time_ms else (ours, theirs.time_ms, -1.0)
    )
    # The last sample lies behind the finish, up to a decision later.
    times_ms = np.append(slower.sample_ms[:-1], slower.time_ms or 0)
    along_m = np.append(np.maximum.accumulate(slower.along_m)[:-1], length_m)
    reached_m = float(np.interp(faster_ms, times_ms, along_m))
    return sign * float(np.clip(1.0 - reached_m / length_m, 0.0, 1.0))


def load_racer(name: str, folder: Path, params: Params, device: torch.device = CPU) -> Racer:
    """Loads an agent for races by the parameters. What it sees is its own matter; its decisions have to last as long.

    Raises:
        PairError: if it is damaged, or was made for other observations or actions than there are now.
    """
    try:
        policy = load_policy(folder, actions=action_table(params.actions.ticks_per_action), device=device)
        return Racer(name, policy, tuple(trained_tracks(folder)))
    except ArtifactError as error:
        message = f"{name} cannot race: {error}"
        hint = (
            "Only agents whose decisions and observations mean the same race each other; see `actions` in params.yaml."
        )
        raise PairError(message, hint=hint) from error


def racer_of(name: str, params: Params, device: torch.device = CPU) -> Racer:
    """Returns an agent by its name, see `find_agent`, or a function, MODULE:FUNCTION.

    Raises:
        UserError: if there is none, or an agent is damaged or made for other observations or actions.
    """
    if is_guest(name):
        return Racer(name, find_guest(name), ())
    folder = find_agent(name)
    return load_racer(name_of(folder), folder, params, device)


def race_pairs(
    first: Racer,
    second: Racer,
    params: Params,
    tracks: Sequence[Track],
    *,
    num_races: int | None = None,
    seed: int | None = None,
    stream: TextIO | None = None,
) -> Comparison:
    """Lets two agents race from the same starts; the same agent races once.

    Args:
        first: whose leads are positive.
        second: the other.
        params: how races go.
        tracks: where, each once.
        num_races: pairs on each track; None takes `evaluate.num_races`.
        seed: of the first start on each track, the next takes the next; None takes `evaluate.seed`.
        stream: where progress is shown; standard output when None.

    Raises:
        UserError: if there are no such races, or a track is named twice.
    """
    evaluate = with_given(params.evaluate, num_races=num_races, seed=seed)
    _check_once(tracks)
    racers = [first] if first.name == second.name else [first, second]
    done: list[TrackPairs] = []
    for track in tracks:
        races = EvaluationRaces.of(
            track, params.observation, params.actions, params.simulator, evaluate, params.race_end
        )
        results = [_raced(racer, races, stream) for racer in racers]
        done.append(TrackPairs(track, results[0], results[-1]))
    return Comparison(first, second, tuple(done), evaluate.seed)


def _raced(racer: Racer, races: EvaluationRaces, stream: TextIO | None) -> list[RaceResult]:
    """Returns the races of one of the two."""
    driver = Driver(racer.name, racer.name, racer.policy)
    return race_all([driver], races, [], stream=stream, label=f"compare on {races.track.name}").contestants[0].races


def _check_once(tracks: Sequence[Track]) -> None:
    uids = [track.uid for track in tracks]
    if twice := sorted({uid for uid in uids if uids.count(uid) > 1}):
        message = f"the track {twice[0]} is named twice"
        raise PairError(message, hint="Name each track once.")


HEAD = ("track", "trained on", "finished", "median", "gain", "lead", "95 % interval")


def format_comparison(found: dict[str, Any]) -> str:
    """Returns what `Comparison.to_json` gave as text for people: a row for each track, and who wins."""
    table = DataFrame([_row(entry) for entry in found["tracks"]], columns=HEAD).to_string(index=False)
    return "\n".join([f"{found['first']} against {found['second']}", "", table, "", verdict(found)])


def verdict(found: dict[str, Any]) -> str:
    """Returns in one sentence what was compared and what came of it."""
    names = ", ".join(entry["name"] for entry in found["tracks"])
    compared = (
        f"{counted(found['pairs'], 'pair')} of races from the same starts, from seed {found['seed']}, on {names}: "
        f"mean lead of {found['first']} {100 * found['lead']:+z.2f} % of the track, "
        f"95 % interval {_percent(found['lead_interval'])}"
    )
    if winner := found["winner"]:
        won = [entry["first" if winner == found["first"] else "second"] for entry in found["tracks"]]
        if not any(races["finished"] for races in won):
            compared += "; it finished none of them"
        if not any(races["trained_on"] for races in won):
            compared += "; it was trained on none of these tracks"
        return f"{winner} wins. {compared}."
    return f"Nobody wins: this may be chance. {compared}. More pairs narrow that: `--races`."


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    first, second = entry["first"], entry["second"]
    gain_s = entry["gain_s"]
    return (
        entry["name"],
        f"{_yes(first['trained_on'])} / {_yes(second['trained_on'])}",
        f"{first['finished']} / {second['finished']} of {first['races']}",
        f"{format_seconds(first['median_time_s'])} / {format_seconds(second['median_time_s'])}",
        "-" if gain_s is None else f"{gain_s:+z.2f} s",
        f"{100 * entry['lead']:+z.2f} %",
        _percent(entry["lead_interval"]),
    )


def _percent(interval: list[float]) -> str:
    return " to ".join(f"{100 * end:+z.2f}" for end in interval)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
