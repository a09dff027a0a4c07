"""An entry of the board: a file with the inputs of 400 races, their results, and a card of the driver.

The file, `*.board.npz`, holds plain arrays; nothing in it is unpickled. T tracks, S starts on each, A different
controls, K actions in a decision:

    head          `Head` as JSON, in bytes: version, card, and the rules of the board
    starts        [T, S, 2] float32 metres left of the line and heading in radians
    controls      [A, 3] float32 steer, gas and brake
    decisions     [T, S] number of decisions of each race
    actions       [sum of decisions, K] rows of `controls`
    times_ms      [T, S] race times; 0 for a race that did not finish
    ends          [T, S] CRC-32 of the car's state at the end of each race

Times and ends say nothing that the inputs do not: `verify` drives all races and compares.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from rulka.board.rules import MAX_TICKS, cars_at_start, rules
from rulka.contracts.actions import CONTROLS, ActionTable, Held
from rulka.contracts.section import Count, NotNegative, Section, Seed, key
from rulka.contracts.stored import checked, read_arrays
from rulka.machine.errors import UserError
from rulka.stages.outputs import new_file

SUFFIX = ".board.npz"
SCHEMA_VERSION = 1
MAX_BYTES, MAX_UNPACKED_BYTES = 300_000, 2**24
MAX_CONTROLS = 65_536
MAX_CHUNK = 100
"""Most actions of a decision, as for agents."""
_FORMS = {
    "head": ("u1", 1),
    "starts": ("f4", 3),
    "controls": ("f4", 2),
    "decisions": ("i8", 2),
    "actions": ("u2", 2),
    "times_ms": ("i8", 2),
    "ends": ("u4", 2),
}
_HINT = "Take the file from where it came from, or enter the agent again with this version."

Text = Annotated[str, StringConstraints(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f|]+$")]
_Words = Annotated[tuple[str, ...], Field(max_length=100, strict=False)]
Sees = Literal["everything", "no waypoints", "images alone"]


class EntryError(UserError):
    """A file is no entry of this board: damaged, too large, or of other races than the board's."""


class ResultError(EntryError):
    """The inputs of an entry do not drive the result that it states."""


class Card(Section):
    """What the people who enter a driver say of it; nothing of this can be verified."""

    name: Text = key(..., "Name of the driver; entries that differ in the seed alone share it.")
    who: Text = key("unknown", "Who enters it.")
    algorithm: Text = key("unknown", "The algorithm that trained it.")
    decisions: Count | None = key(None, "Decisions in training; null if unknown.")
    cpu_seconds: NotNegative | None = key(None, "CPU seconds of training; null if unknown.")
    trained_on: Annotated[tuple[Text, ...], Field(max_length=1000, strict=False)] = key((), "UIDs of training tracks.")
    seed: Seed = key(0, "Seed of the training.")
    sees: Sees = key("everything", "What it sees.")


class Head(Section):
    """What a file says besides its arrays; see `rulka.board.rules.Rules`."""

    schema_version: int = key(SCHEMA_VERSION, "Version of the layout.")
    card: Card = key(..., "The card.")
    ticks_per_action: Held = key(..., "Ticks of 10 ms that an action lasts; of each in a decision if they differ.")
    uids: _Words = key(..., "UIDs of the tracks.")
    shapes: _Words = key(..., "Hashes of the tracks.")
    physics: str = key(..., "Hash of the physics.")
    code: str = key(..., "Hash of what the code does.")


@dataclass(frozen=True)
class Entry:
    """The content of a file, see the module."""

    card: Card
    ticks_per_action: Held
    controls: NDArray[np.float32]
    decisions: NDArray[np.int64]
    actions: NDArray[np.uint16]
    times_ms: NDArray[np.int64]
    ends: NDArray[np.uint32]

    @property
    def lap_shares(self) -> NDArray[np.float64]:
        """[T, S] reference lap's time over race time, 0 for a race that did not finish."""
        reference_ms = rules().reference_ms[:, None]
        return np.where(self.times_ms > 0, reference_ms / np.maximum(self.times_ms, 1), 0.0)


# Driving ------------------------------------------------------------------------------------------------------------


def drive(entry: Entry) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Drives the inputs of all races; returns their `times_ms` and `ends`."""
    times_ms, ends = np.zeros(entry.decisions.shape, np.int64), np.zeros(entry.decisions.shape, np.uint32)
    end = np.cumsum(entry.decisions).reshape(entry.decisions.shape)
    chunk = entry.actions.shape[1]
    table = ActionTable(CONTROLS, entry.ticks_per_action, chunk)
    for track, races in enumerate(rules().races):
        cars, num = cars_at_start(races, table), entry.decisions[track]
        for step in range(num.max()):
            # A car whose inputs are over holds the last ones until the others are done; that does not count.
            chosen = entry.actions[end[track] - np.maximum(num - step, 1)]
            cars.step_controls(entry.controls[chosen if chunk > 1 else chosen[:, 0]])
            is_over = num == step + 1
            if is_over.any():
                times_ms[track, is_over] = (cars.gate_time_ms[:, -1] * cars.is_finished)[is_over]
                states = cars.save()
                ends[track, is_over] = [zlib.crc32(state.tobytes()) for state in states[is_over]]
    return times_ms, ends


def verify(path: Path) -> Entry:
    """Reads an entry and drives all its races.

    Raises:
        EntryError: if the file is not an entry of this board.
        ResultError: if a race has another result; the message names it.
    """
    entry = read_entry(path)
    times_ms, ends = drive(entry)
    wrong = np.argwhere((times_ms != entry.times_ms) | (ends != entry.ends))
    if len(wrong):
        track, start = map(int, wrong[0])
        found, said = int(times_ms[track, start]), int(entry.times_ms[track, start])
        what = f"race {start} on {rules().uids[track]} ends {_in_words(found)}"
        stated = "not where the file says" if found == said else f"the file says {_in_words(said)}"
        raise ResultError(f"{path} is not what its inputs drive: {what}, {stated} ({len(wrong)} of {ends.size} races)")
    return entry


def _in_words(time_ms: int) -> str:
    return f"after {time_ms} ms" if time_ms else "before the finish"


# The file -----------------------------------------------------------------------------------------------------------


def write_entry(entry: Entry, path: Path) -> None:
    """Writes an entry.

    Raises:
        EntryError: if the file would be too large.
        UserError: if it cannot be written.
    """
    board = rules()
    shared = {name: getattr(board, name) for name in ("uids", "shapes", "physics", "code")}
    head = Head(card=entry.card, ticks_per_action=entry.ticks_per_action, **shared).model_dump_json()
    fields = {"head": np.frombuffer(head.encode(), np.uint8), "starts": board.starts}
    fields |= {name: getattr(entry, name) for name in _FORMS if name not in fields}
    with new_file(path) as beside:
        np.savez_compressed(beside, allow_pickle=False, **fields)
        if (size := beside.stat().st_size) > MAX_BYTES:
            message = f"the entry would be {size:,} bytes, {MAX_BYTES:,} is the most"
            raise EntryError(message, hint="Let decisions last longer, or steer in fewer steps.")


def read_entry(path: Path) -> Entry:
    """Reads an entry without driving it.

    Raises:
        EntryError: if the file is missing, damaged, too large, or of other races than the board's.
    """
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise EntryError(f"{path} has {path.stat().st_size:,} bytes, an entry has at most {MAX_BYTES:,}", hint=_HINT)
    fields = read_arrays(path, "entry", _FORMS, MAX_UNPACKED_BYTES, error=EntryError, hint=_HINT)
    if wrong := set(_FORMS) ^ set(fields):
        raise EntryError(f"{path} does not hold the fields of an entry: {sorted(wrong)}", hint=_HINT)
    head = checked(fields.pop("head").tobytes(), Head, str(path), EntryError, _HINT)
    problem = next(_problems(head, fields), None)
    if problem is not None:
        raise EntryError(f"{path} is no entry of this board: {problem}", hint=_HINT)
    del fields["starts"]
    return Entry(head.card, head.ticks_per_action, **fields)


def _problems(head: Head, fields: Mapping[str, NDArray]) -> Iterator[str]:
    """Yields what is wrong with an entry; a check may need those before it."""
    board, shape = rules(), rules().starts.shape[:2]
    for name, expected in {"schema_version": SCHEMA_VERSION, "physics": board.physics, "code": board.code}.items():
        if getattr(head, name) != expected:
            yield f"its {name} is {getattr(head, name)!r:.80}, here it is {expected!r}"
    if head.uids != board.uids:
        other = [uid for uid in head.uids if head.uids.count(uid) > 1 or uid not in board.uids] or ["the order"]
        yield f"its tracks are not those of the board: {other[0]!r:.80}, or {len(head.uids)} instead of {shape[0]}"
    if other := [uid for uid, own, now in zip(head.uids, head.shapes, board.shapes, strict=False) if own != now]:
        yield f"its {other[0]} is another track under the same name"
    if head.shapes != board.shapes or not np.array_equal(fields["starts"], board.starts):
        yield "its starts, or hashes of tracks, are not those of the board"
    for name in ("decisions", "times_ms", "ends"):
        if fields[name].shape != shape:
            yield f"its {name} have the shape {fields[name].shape}, expected {shape[0]} tracks x {shape[1]} starts"
    yield from _problems_of_inputs(head.ticks_per_action, fields)


def _problems_of_inputs(held: Held, fields: Mapping[str, NDArray]) -> Iterator[str]:
    controls, actions, decisions = fields["controls"], fields["actions"], fields["decisions"]
    is_table = 1 <= len(controls) <= MAX_CONTROLS and controls.shape[1] == 3
    if not is_table or not (np.abs(controls) <= 1.0).all() or (controls[:, 1:] < 0.0).any():  # also True for NaN
        yield f"its controls are not 1 to {MAX_CONTROLS:,} rows of steer in [-1, 1], gas and brake in [0, 1]"
    if not 1 <= actions.shape[1] <= MAX_CHUNK or not (actions < len(controls)).all():
        yield f"its decisions are not 1 to {MAX_CHUNK} rows of its controls"
    if isinstance(held, tuple) and len(held) != actions.shape[1]:
        yield f"its ticks_per_action has {len(held)} numbers for decisions of {actions.shape[1]} actions"
    most = MAX_TICKS // (sum(held) if isinstance(held, tuple) else held * actions.shape[1])
    wrong = np.argwhere((decisions < 1) | (decisions > most))
    if len(wrong):
        track, start = wrong[0]
        yield f"race {start} on {rules().uids[track]} has {decisions[track, start]} decisions, of 1 to {most}"
    if decisions.sum() != len(actions):
        yield f"its races have {decisions.sum():,} decisions, and it holds {len(actions):,}"
