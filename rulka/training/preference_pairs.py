"""Preference pairs from captured races: listed in a file, or the faster of any two races over the same stretch.

A race is cut where it crosses the ends of a stretch, so the two sides of a pair differ in duration; the last stretch of
a track ends at the finish. Both sides begin at the same place but not in the same state: one car may enter faster.
Races of the test split are not used. Those of validation are, because with two recordings of a map only one is in the
training split.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from rulka.agents.preferences.params import DemonstrationPairsParams, FilePairsParams
from rulka.buffers.experience import PreferencePairs
from rulka.contracts.actions import Parts
from rulka.contracts.problems import did_you_mean, problems_of
from rulka.contracts.section import NotNegative, Positive, Section
from rulka.datasets.formats.frames import FrameDataset, FrameRace
from rulka.datasets.formats.races import RaceDataset
from rulka.datasets.formats.split import Split
from rulka.machine.errors import UserError

USED_SPLITS: tuple[Split, ...] = ("train", "validation")
ENTRY_M = 10.0
"""Largest distance from the start of a stretch to a race's first frame in it; a car moves less between two frames."""
LEAST_RACES = 2


class PreferenceError(UserError):
    """A pair is unusable; the message names it and the reason."""


class PairRow(Section):
    """Line of a file of pairs."""

    chosen: str = Field(min_length=1, description="id of the race that is preferred")
    rejected: str = Field(min_length=1, description="id of the other one")
    from_m: NotNegative = Field(description="metres along the track at which both stretches begin")
    to_m: Positive | None = Field(description="and at which they end; null goes to the end of each race")

    @model_validator(mode="after")
    def _check(self) -> PairRow:
        if self.chosen == self.rejected:
            raise ValueError(f"chosen and rejected are the same race, {self.chosen}")
        if self.to_m is not None and self.to_m <= self.from_m:
            raise ValueError(f"the stretch ends at {self.to_m:g} m, where it has not begun: from_m is {self.from_m:g}")
        return self


class _Stretch(NamedTuple):
    """Frames `first` to `end` (exclusive) of a race, indexed within its split, and their duration."""

    race_id: str
    split: Split
    first: int
    end: int
    seconds: float


@dataclass(frozen=True)
class _Captured:
    """A captured race: its frames, track length and race time."""

    entry: FrameRace
    time_ms: NDArray[np.int32]
    along_m: NDArray[np.float32]
    length_m: float
    race_time_ms: int | None

    def stretch(self, from_m: float, to_m: float | None) -> _Stretch:
        """Returns the frames between two distances; `to_m` None is the race's end, whether it finished or not.

        Raises:
            PreferenceError: if the race does not cover them.
        """
        race_id, along_m = self.entry.race_id, self.along_m
        first = int(np.argmax(along_m >= from_m)) if (along_m >= from_m).any() else -1
        if first < 0:
            raise PreferenceError(f"race {race_id} gets to {along_m.max():.1f} m and never to {from_m:g} m")
        if along_m[first] > from_m + ENTRY_M:
            message = f"race {race_id} is first seen at {along_m[first]:.1f} m: it did not drive on from {from_m:g} m"
            raise PreferenceError(message)
        end, end_ms = self._end(first, to_m)
        if to_m is not None and end == first:
            raise PreferenceError(f"race {race_id} makes no decision between {from_m:g} m and {to_m:g} m")
        seconds = (end_ms - self._crossing_ms(first, from_m)) / 1000.0
        start = self.entry.start
        return _Stretch(race_id, self.entry.split, start + first, start + end, seconds)

    def _end(self, first: int, to_m: float | None) -> tuple[int, float]:
        """Returns the exclusive end frame of a stretch, and the time at which it ends."""
        num_frames = len(self.along_m)
        last_ms = float(self.time_ms[-1]) if self.race_time_ms is None else float(self.race_time_ms)
        if to_m is None:
            return num_frames, last_ms
        is_behind = self.along_m[first:] >= to_m
        if is_behind.any():
            end = first + int(np.argmax(is_behind))
            return end, self._crossing_ms(end, to_m)
        if self.race_time_ms is not None and to_m <= self.length_m:
            return num_frames, last_ms
        raise PreferenceError(f"race {self.entry.race_id} gets to {self.along_m.max():.1f} m and never to {to_m:g} m")

    def _crossing_ms(self, frame: int, at_m: float) -> float:
        """Returns the time at which the race passed `at_m`, interpolated between `frame` and the one before."""
        if frame == 0:
            return float(self.time_ms[0])
        around = slice(frame - 1, frame + 1)
        return float(np.interp(at_m, self.along_m[around], self.time_ms[around]))


class CapturedRaces:
    """Frames of all races that can form pairs."""

    def __init__(self, frames_dir: Path, races: RaceDataset, frames_seen: int, parts: Parts) -> None:
        """Opens the frame datasets.

        Args:
            frames_dir: the frame dataset.
            races: the races from which the frames were captured.
            frames_seen: frames per observation.
            parts: actions of a decision, see `FrameDataset`.

        Raises:
            UserError: if the frames were captured from other races.
        """
        self._frames = {split: FrameDataset(frames_dir, split, frames_seen, parts) for split in USED_SPLITS}
        index = next(iter(self._frames.values())).index
        comparable = [race for race in index.races if not race.is_recovery]
        self._splits = {race.race_id: race.split for race in comparable}
        self._main_track, self._tracks = index.main_track, races.tracks
        self._times_ms = {race.race_id: race.race_time_ms for race in races.races}
        gone = [race.race_id for race in comparable if race.race_id not in self._times_ms]
        if gone or self._main_track != races.main_track.uid:
            message = f"the frames show track {self._main_track!r}, the main track is {races.main_track.uid!r}"
            if gone:
                message = f"race {gone[0]} was captured but is not among the races any more"
            raise UserError(message, hint="Run `dvc repro capture` again.")

    def on_main_track(self) -> list[_Captured]:
        """Returns the races on the main track."""
        uids = [race for frames in self._frames.values() for race in frames.on_main_track()]
        return [self._captured(entry) for entry in uids if not entry.is_recovery]

    def of(self, race_id: str) -> _Captured:
        """Returns the race with an id.

        Raises:
            PreferenceError: if it was not captured, or is in the test split.
        """
        split = self._splits.get(race_id)
        if split is None:
            what = "was not captured" if race_id in self._times_ms else "is not known"
            message = f"race {race_id} {what}{did_you_mean(race_id, self._splits)}"
            raise PreferenceError(message, hint="races.parquet of data/races has the ids of all races.")
        if split not in USED_SPLITS:
            message = f"race {race_id} is of the {split} split, which is only measured on"
            raise PreferenceError(message, hint="capture.test_fraction 0 leaves all races to learn from.")
        return self._captured(next(race for race in self._frames[split].races if race.race_id == race_id))

    @property
    def main_length_m(self) -> float:
        """Length of the main track."""
        return self._tracks[self._main_track].length_m

    def pairs(self, pairs: Sequence[tuple[_Stretch, _Stretch]]) -> PreferencePairs:
        """Reads the frames of all stretches, each once even if it is in several pairs."""
        stretches = list(dict.fromkeys(stretch for pair in pairs for stretch in pair))
        place = {stretch: number for number, stretch in enumerate(stretches)}
        parts = [(self._frames[stretch.split], slice(stretch.first, stretch.end)) for stretch in stretches]
        return PreferencePairs(
            image=np.concatenate([frames.frame_stacks(rows) for frames, rows in parts]),
            floats=np.concatenate([frames.floats_seen(rows) for frames, rows in parts]),
            action=np.concatenate([frames.decided(rows).action for frames, rows in parts]),
            num_decisions=np.array([stretch.end - stretch.first for stretch in stretches]),
            pairs=np.array([[place[chosen], place[rejected]] for chosen, rejected in pairs]),
        )

    def _captured(self, entry: FrameRace) -> _Captured:
        frames = self._frames[entry.split]
        shown = slice(entry.start, entry.start + entry.num_frames)
        length_m = self._tracks[entry.map_uid].length_m
        time_ms = self._times_ms[entry.race_id]
        return _Captured(entry, frames.time_ms[shown], frames.along_m[shown], length_m, time_ms)


def pairs_file(source: FilePairsParams) -> Path:
    """Returns the path of the file of pairs.

    Raises:
        PreferenceError: if the file does not exist.
    """
    path = Path(source.path)
    if not path.is_file():
        raise PreferenceError(f"there is no file of pairs {path.as_posix()}", hint="dpo.pairs.path names it.")
    return path


def pairs_of_file(path: Path, captured: CapturedRaces) -> PreferencePairs:
    """Reads a file of pairs with one JSON `PairRow` per line; empty lines are skipped.

    Raises:
        PreferenceError: if the file cannot be read or has no pair, or a line is unusable; the message names it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"the file of pairs {path.as_posix()} cannot be read: {error}"
        raise PreferenceError(message, hint="dpo.pairs.path names it.") from error
    pairs: list[tuple[_Stretch, _Stretch]] = []
    seen: dict[tuple[_Stretch, _Stretch], int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            chosen, rejected = _read_pair(line, captured)
            for earlier, what in (((chosen, rejected), "the same pair"), ((rejected, chosen), "the other way round")):
                if earlier in seen:
                    raise PreferenceError(f"line {seen[earlier]} has {what}")
        except PreferenceError as error:
            raise PreferenceError(f"{path.as_posix()}, line {number}: {error}", hint=error.hint) from error
        seen[chosen, rejected] = number
        pairs.append((chosen, rejected))
    if not pairs:
        raise PreferenceError(f"{path.as_posix()} names no pair")
    return captured.pairs(pairs)


def _read_pair(line: str, captured: CapturedRaces) -> tuple[_Stretch, _Stretch]:
    try:
        row = PairRow.model_validate(json.loads(line))
    except json.JSONDecodeError as error:
        raise PreferenceError(f"is no JSON: {error}") from error
    except ValidationError as error:
        raise PreferenceError("; ".join(problems_of(error, PairRow))) from error
    chosen, rejected = captured.of(row.chosen), captured.of(row.rejected)
    if chosen.entry.map_uid != rejected.entry.map_uid:
        message = f"race {row.chosen} was driven on {chosen.entry.map_uid}, race {row.rejected} on "
        message += f"{rejected.entry.map_uid}: pairs are of one track"
        raise PreferenceError(message)
    return chosen.stretch(row.from_m, row.to_m), rejected.stretch(row.from_m, row.to_m)


def pairs_of_demonstrations(params: DemonstrationPairsParams, captured: CapturedRaces, seed: int) -> PreferencePairs:
    """Pairs races on the main track over stretches of equal length; the faster one over a stretch is preferred.

    Args:
        params: stretch length, minimum gain in time, and maximum number of pairs.
        captured: the races.
        seed: for subsampling if there are too many pairs.

    Raises:
        PreferenceError: if there are too few races, or none is faster than another.
    """
    races = captured.on_main_track()
    if len(races) < LEAST_RACES:
        message = f"pairs of demonstrations need two races on the main track, and there are {len(races)}"
        raise PreferenceError(message, hint="Races of the test split do not count: see capture.test_fraction.")
    num_stretches = max(1, round(captured.main_length_m / params.stretch_m))
    ends = np.linspace(0.0, captured.main_length_m, num_stretches + 1).tolist()
    pairs: list[tuple[_Stretch, _Stretch]] = []
    for from_m, to_m in pairwise(ends):
        driven = sorted(_driven(races, from_m, to_m), key=lambda stretch: (stretch.seconds, stretch.race_id))
        pairs += [
            (fast, slow) for fast, slow in combinations(driven, 2) if slow.seconds - fast.seconds >= params.min_gain_s
        ]
    if not pairs:
        message = (
            f"of {len(races)} races on the main track, none is {params.min_gain_s:g} s faster than another over any "
        )
        message += f"of {num_stretches} stretches"
        raise PreferenceError(message, hint="Lower dpo.pairs.min_gain_s, or add races.")
    if len(pairs) > params.max_pairs:
        chosen = np.random.default_rng(seed).choice(len(pairs), params.max_pairs, replace=False)
        pairs = [pairs[number] for number in np.sort(chosen).tolist()]
    return captured.pairs(pairs)


def _driven(races: Sequence[_Captured], from_m: float, to_m: float) -> list[_Stretch]:
    """Returns the stretch of every race that covers it completely."""
    stretches = []
    for race in races:
        try:
            stretches.append(race.stretch(from_m, to_m))
        except PreferenceError:  # it began after the start of the stretch, or ended before its end
            continue
    return stretches
