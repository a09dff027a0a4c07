"""The action table: how a decision of an agent sets the controls of the car.

Twelve actions, {none, left, right} x {gas, coast, brake, gas and brake}, each held for a fixed number of
10 ms ticks. Index 0 is plain "forward", as in Linesight's `inputs_list`. A decision is one action, or a chunk of
several consecutive ones, of equal length or at given offsets; an agent may take each several times in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from rulka.contracts.section import Section, key

Ticks = Annotated[int, Field(ge=1, le=100)]
"""Ticks of 10 ms each: an action lasts at most a second."""
Times = Annotated[int, Field(ge=1, le=100)]
"""Actions of a decision, or repeats of it."""
Held = Ticks | Annotated[tuple[Ticks, ...], Field(min_length=2, max_length=100, strict=False)]
"""Ticks for which each action of a decision is held: one number if all are equal."""


class _EitherWay:
    """One error message for a wrong `Parts`, instead of one for each of both forms."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [handler.generate_schema(form) for form in get_args(source)],
            custom_error_type="parts",
            custom_error_message="must be a number of actions from 1 to 100, or a list of their offsets in ms",
        )


Parts = Annotated[Times | Annotated[tuple[int, ...], Field(min_length=1, max_length=100, strict=False)], _EitherWay()]
"""Division of a decision into actions: the number of equal parts, or the offsets in ms at which actions begin."""


class ActionParams(Section):
    """Duration of a decision."""

    ticks_per_action: Ticks = key(5, "Duration of a decision before action_repeat, in ticks of 10 ms; 5 in the game.")


TICK_MS = 10
"""Length of one physics tick in milliseconds, in the game and in the simulator."""

PRESSED = 0x4E00 / 0x10000
"""An analog pedal above this (0.305 of full) counts as a pressed key.

Said to be the game's own threshold, by people who read its program; not measured here. In no recording at hand does a
pedal rest between this and full.
"""

FORWARD = 0
"""Index of the action that only accelerates; stands for the actions before the start."""


class Controls(NamedTuple):
    """Keyboard state of one action."""

    accelerate: bool
    brake: bool
    left: bool
    right: bool


@dataclass(frozen=True)
class Choices:
    """Discrete decisions: one of A choices, in each of K places.

    Attributes:
        num_choices: A, the same in every place; positive.
        num_places: K; positive.
    """

    num_choices: int
    num_places: int = 1

    @property
    def decision_shape(self) -> tuple[int, ...]:
        """Shape of a decision's indices: () for one place, [K] for several."""
        return () if self.num_places == 1 else (self.num_places,)

    @property
    def space(self) -> ActionSpace:
        """Itself, for a common interface with `ActionTable`."""
        return self

    @property
    def num_outputs(self) -> int:
        """Network outputs: one per choice and place."""
        return self.num_choices * self.num_places


@dataclass(frozen=True)
class Intervals:
    """Continuous decisions: D numbers, each within its own interval.

    Attributes:
        low: [D] lower bounds.
        high: [D] upper bounds; larger.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def decision_shape(self) -> tuple[int, ...]:
        """[D]."""
        return (len(self.low),)

    @property
    def space(self) -> ActionSpace:
        """Itself, for a common interface with `ActionTable`."""
        return self

    @property
    def num_outputs(self) -> int:
        """Policy outputs: two per number, for location and spread."""
        return 2 * len(self.low)


ActionSpace = Choices | Intervals

STEER_GAS_BRAKE = Intervals((-1.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""Steering (positive right), gas and brake."""


@dataclass(frozen=True)
class ActionTable:
    """The discrete actions and how long each is held.

    Attributes:
        controls: one entry per action index.
        ticks_per_action: number of 10 ms ticks for which each action is held, [K] numbers if they differ; positive.
        actions_per_decision: K, consecutive actions of one decision; positive.
        is_analog: True if decisions are continuous instead: steer, gas and brake.
        repeats: how many times a decision is taken in a row, before the next one is requested; positive.
    """

    controls: Annotated[tuple[Controls, ...], Field(min_length=1)]
    ticks_per_action: Held
    actions_per_decision: Times = 1
    is_analog: bool = False
    repeats: Times = 1

    def __post_init__(self) -> None:
        """Raises ValueError unless each of the K actions is held for some ticks."""
        held, count = self.ticks_per_action, self.actions_per_decision
        if isinstance(held, tuple) and len(held) != count:
            raise ValueError(f"ticks_per_action has {len(held)} numbers for {count} actions per decision")

    @property
    def held_ticks(self) -> NDArray[np.int64]:
        """[K] ticks for which each action of a decision is held."""
        return np.broadcast_to(np.array(self.ticks_per_action), self.actions_per_decision).astype(np.int64)

    @property
    def decision_ticks(self) -> int:
        """Ticks of a decision that is taken once."""
        return int(self.held_ticks.sum())

    @property
    def parts(self) -> Parts:
        """K if all actions are equally long, else their offsets in ms; see `action_table`."""
        if isinstance(self.ticks_per_action, int):
            return self.actions_per_decision
        held = self.held_ticks
        return tuple((TICK_MS * (np.cumsum(held) - held)).tolist())

    @property
    def num_actions(self) -> int:
        """Number of discrete actions."""
        return len(self.controls)

    @property
    def duration_ms(self) -> int:
        """Length of one decision in milliseconds."""
        return self.decision_ticks * self.repeats * TICK_MS

    @property
    def taken_once(self) -> ActionTable:
        """The same table without repeats."""
        return replace(self, repeats=1)

    @property
    def decision_shape(self) -> tuple[int, ...]:
        """Shape of a decision: () for an action index, [K] for a chunk of them, [3] for continuous controls."""
        return self.space.decision_shape

    @property
    def space(self) -> ActionSpace:
        """The space of decisions."""
        return STEER_GAS_BRAKE if self.is_analog else Choices(self.num_actions, self.actions_per_decision)

    def keys(self) -> NDArray[np.float32]:
        """Returns [A, 4] accelerate, brake, left, right as 0 or 1, in the order the observation holds them."""
        return np.array(self.controls, dtype=np.float32)

    def analog(self) -> NDArray[np.float32]:
        """Returns [A, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1]."""
        keys = self.keys()
        return np.stack([keys[:, 3] - keys[:, 2], keys[:, 0], keys[:, 1]], axis=1)

    def index_of(self, accelerate: NDArray, brake: NDArray, steer: NDArray, dead_zone: float) -> NDArray[np.int64]:
        """Finds the action nearest to analog or digital controls.

        Args:
            accelerate: [N] gas in [0, 1]; above `PRESSED` counts as pressed.
            brake: [N] brake in [0, 1]; likewise.
            steer: [N] steering in [-1, 1], positive right.
            dead_zone: steering of at most this size counts as none; in [0, 1).

        Returns:
            [N] action indices.
        """
        left, right = steer < -dead_zone, steer > dead_zone
        pressed = np.stack([accelerate > PRESSED, brake > PRESSED, left, right], axis=1)
        return _INDEX_OF_KEYS[pressed @ _KEY_BITS]


_PEDALS = ((True, False), (False, False), (False, True), (True, True))
_DIRECTIONS = ((False, False), (True, False), (False, True))
CONTROLS = tuple(Controls(*pedals, *direction) for pedals in _PEDALS for direction in _DIRECTIONS)
"""The twelve rows of the table, in the order of Linesight's `inputs_list`."""

_KEY_BITS = np.array([1, 2, 4, 8])
_INDEX_OF_KEYS = np.full(16, FORWARD, dtype=np.int64)
_INDEX_OF_KEYS[np.array(CONTROLS) @ _KEY_BITS] = np.arange(len(CONTROLS))


def action_table(
    ticks_per_action: int, actions_per_decision: Parts = 1, *, is_analog: bool = False, repeats: int = 1
) -> ActionTable:
    """Returns the standard twelve actions.

    Args:
        ticks_per_action: 10 ms ticks of a decision that is taken once.
        actions_per_decision: actions that divide these ticks, see `divided`.
        is_analog: True if decisions are continuous.
        repeats: how many times each is taken in a row.

    Raises:
        ValueError: if the ticks cannot be divided so.
    """
    held = divided(ticks_per_action, actions_per_decision)
    return ActionTable(CONTROLS, held[0] if len(set(held)) == 1 else held, len(held), is_analog, repeats)


def num_parts(parts: Parts) -> int:
    """Returns the number of actions in a decision."""
    return parts if isinstance(parts, int) else len(parts)


def divided(ticks: int, parts: Parts) -> tuple[int, ...]:
    """Divides the ticks of a decision among its actions.

    Args:
        ticks: of the decision.
        parts: number of equal parts, or the offset of each action in ms: increasing multiples of 10 from 0.

    Returns:
        The ticks of each action.

    Raises:
        ValueError: if the number does not divide the ticks, or offsets are not as above, or beyond the decision.
    """
    if isinstance(parts, int):
        if parts < 1 or ticks % parts:
            raise ValueError(f"{ticks} ticks cannot be shared evenly by {parts} actions")
        return (ticks // parts,) * parts
    wrong = f"offsets {list(parts)} of actions need to"
    if not parts or parts[0] != 0:
        raise ValueError(f"{wrong} begin at 0 ms, with the decision")
    if odd := [offset for offset in parts if offset % TICK_MS]:
        raise ValueError(f"{wrong} be multiples of {TICK_MS} ms, but {odd[0]} is not")
    for before, after in pairwise(parts):
        if after <= before:
            raise ValueError(f"{wrong} increase, but {after} follows {before}")
    if parts[-1] >= ticks * TICK_MS:
        raise ValueError(f"{wrong} lie within the decision of {ticks * TICK_MS} ms, but {parts[-1]} does not")
    return tuple((after - before) // TICK_MS for before, after in pairwise((*parts, ticks * TICK_MS)))


def shares_of_ticks(held: NDArray[np.int64], num_actions: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns each action's share of time, and the action held longest, from the action of every tick.

    Args:
        held: [D, K] action of every tick of D stretches of time.
        num_actions: A.

    Returns:
        [D, A] share of each action, and [D] the action with the largest share; ties go to the one held earliest.
    """
    shares = (held[:, :, None] == np.arange(num_actions)).mean(axis=1)
    share_held = np.take_along_axis(shares, held, axis=1)
    longest = np.take_along_axis(held, share_held.argmax(axis=1)[:, None], axis=1)[:, 0]
    return shares.astype(np.float32), longest
