"""Paired comparison: two agents race from the same starts on several tracks.

Pairs share their start, so a hard start favours neither agent. The metric is the lead: the fraction of the track, in
[-1, 1], between the two when the first of them is done. It is

    both finished    the distance left for the slower one when the faster one finished
    one finished     the whole track: an unfinished race counts for nothing beside a finished one
    none finished    the difference of their furthest points

and positive if the first agent is ahead. Its mean is over pairs and tracks, with equal weight per track. If the true
mean is 0, the interval (`rulka.evaluation.statistics.bounded_interval`) excludes 0 on either side in at most one
comparison of forty, for any number of pairs and tracks, even if failed races are too rare to occur among them.
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

from rulka.agents.load import load_policy
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import ArtifactError
from rulka.evaluation.contest import Driver, race_all, trained_tracks
from rulka.evaluation.external_policy import find_guest, is_guest
from rulka.evaluation.race import EvaluationRaces, Policy
from rulka.evaluation.results import RaceResult, finish_times_s
from rulka.evaluation.statistics import Interval, bounded_interval
from rulka.machine.device import CPU
from rulka.machine.errors import UserError, counted
from rulka.operations.kept import find_agent, format_seconds, name_of
from rulka.params import Params, with_given
from rulka.tracks.track import Track


@dataclass(frozen=True)
class Racer:
    """One of the two agents.

    Attributes:
        name: name of the agent.
        policy: its policy.
        trained_on: UIDs of the tracks that it was trained on.
    """

    name: str
    policy: Policy
    trained_on: tuple[str, ...]


@dataclass(frozen=True)
class TrackPairs:
    """The pairs of one track: race k of both has the same start."""

    track: Track
    first: list[RaceResult]
    second: list[RaceResult]

    @property
    def leads(self) -> NDArray[np.float64]:
        """[R] the first agent's leads."""
        return np.array([lead(ours, theirs) for ours, theirs in zip(self.first, self.second, strict=True)])

    def interval(self, seed: int) -> Interval:
        """Returns the interval of the mean lead."""
        return bounded_interval(self.leads, -1.0, 1.0, seed)


@dataclass(frozen=True)
class Comparison:
    """All pairs of two agents; the module defines the lead.

    Attributes:
        first: the agent whose leads count as positive.
        second: the other agent.
        tracks: one entry per track, all with the same number of pairs.
        seed: seed of the first start on each track.
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
        """Interval of the mean lead."""
        return bounded_interval(self.leads, -1.0, 1.0, self.seed)

    @property
    def num_pairs(self) -> int:
        """Number of pairs on all tracks."""
        return self.leads.size

    @property
    def winner(self) -> Racer | None:
        """The agent that is significantly ahead; None if neither is."""
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


def _rounded(interval: Interval) -> list[float]:
    return [round(end, 5) for end in interval]


def lead(ours: RaceResult, theirs: RaceResult) -> float:
    """Returns the lead of `ours` over `theirs`, as a fraction of the track; see the module."""
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
    # The last sample is after the finish, by up to one decision.
    times_ms = np.append(slower.sample_ms[:-1], slower.time_ms or 0)
    along_m = np.append(np.maximum.accumulate(slower.along_m)[:-1], length_m)
    reached_m = float(np.interp(faster_ms, times_ms, along_m))
    return sign * float(np.clip(1.0 - reached_m / length_m, 0.0, 1.0))


def load_racer(name: str, folder: Path, params: Params, device: torch.device = CPU) -> Racer:
    """Loads an agent to race under the parameters. Its image may differ; its decisions must last as long.

    Raises:
        UserError: if it is damaged, or was made for other actions, or for floats of another version.
    """
    try:
        policy = load_policy(folder, actions=action_table(params.actions.ticks_per_action), device=device)
        return Racer(name, policy, tuple(trained_tracks(folder)))
    except ArtifactError as error:
        message = f"{name} cannot race: {error}"
        hint = (
            "Only agents whose decisions and observations mean the same race each other; see `actions` in params.yaml."
        )
        raise UserError(message, hint=hint) from error


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
    """Races two agents from the same starts; an agent compared with itself races only once.

    Args:
        first: the agent whose leads are positive.
        second: the other agent.
        params: settings of the races.
        tracks: distinct tracks.
        num_races: pairs on each track; None takes `evaluate.num_races`.
        seed: seed of the first start on each track, later starts count up; None takes `evaluate.seed`.
        stream: stream for progress; None is standard output.

    Raises:
        UserError: if an argument is out of range, or a track is named twice.
    """
    evaluate = with_given(params.evaluate, num_races=num_races, seed=seed)
    uids = [track.uid for track in tracks]
    if twice := sorted({uid for uid in uids if uids.count(uid) > 1}):
        raise UserError(f"the track {twice[0]} is named twice", hint="Name each track once.")
    racers = [first] if first.name == second.name else [first, second]
    drivers = [Driver(racer.name, racer.name, racer.policy) for racer in racers]
    done: list[TrackPairs] = []
    for track in tracks:
        races = EvaluationRaces.of(track, params, evaluate)
        raced = race_all(drivers, races, [], stream=stream, label=f"compare on {track.name}").contestants
        done.append(TrackPairs(track, raced[0].races, raced[-1].races))
    return Comparison(first, second, tuple(done), evaluate.seed)


HEAD = ("track", "trained on", "finished", "median", "gain", "lead", "95 % interval")


def format_comparison(found: dict[str, Any]) -> str:
    """Formats the result of `Comparison.to_json` as text: a row for each track, and the winner."""
    table = DataFrame([_row(entry) for entry in found["tracks"]], columns=HEAD).to_string(index=False)
    return "\n".join([f"{found['first']} against {found['second']}", "", table, "", verdict(found)])


def verdict(found: dict[str, Any]) -> str:
    """Returns a one-line summary of the comparison and its result."""
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
    least = provable_lead(found["pairs"])
    proven = f"no lead below {100 * least:.0f} %" if least < 1.0 else "nothing"
    return f"Nobody wins: this may be chance. {compared}. So many pairs prove {proven}; more do: `--races`."


def provable_lead(num_pairs: int) -> float:
    """Returns the smallest lead that excludes 0 if all pairs have it; from 1 on none does, as with fewer than 6 pairs.

    `bounded_interval` gives one more pair, lost by the whole track, a weight w distributed as Beta(1, num_pairs): the
    lower end of equal leads v is v - w (1 + v) at the 97.5 % quantile of w, 1 - 0.025^(1 / num_pairs).
    """
    return 0.025 ** (-1.0 / num_pairs) - 1.0


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
