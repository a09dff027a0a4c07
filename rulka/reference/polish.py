"""Improves a lap by trial: change a few decisions, drive on with the rest, keep what reaches the finish earlier.

Every trial starts from the saved state before its change, so that only what follows is driven again, and ends as soon
as the car leaves the road or falls behind. Later decisions hold after an earlier change only where that is small, so
that changes come in small and large, and the lap is gone over again and again.

Dimensions: T decisions of the lap, N trials.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rulka.reference.expand import Actions, Expander, Floats, OnSpent

NUM_TRIALS = 512
"""Trials at one place of the lap."""
MAX_WINDOW = 24
"""Decisions that one change may span: 1.2 s."""
CHECK_EVERY = 8
"""Trials that have fallen behind are given up every so many decisions."""
MAX_BEHIND_S = 0.15
"""A trial further behind the lap than this is given up."""


@dataclass(frozen=True)
class Lap:
    """A lap that reaches the finish.

    Attributes:
        actions: [T] decisions.
        states: [T, S] saved state before each.
        along_m: [T + 1] metres at each decision and after the last, never falling.
        finish_ms: time at the finish.
        arrival: speed at the finish, m/s, which decides between equal times.
    """

    actions: Actions
    states: Floats
    along_m: Floats
    finish_ms: int
    arrival: float


def drive_lap(expander: Expander, actions: Actions) -> Lap | None:
    """Drives decisions [T] from the start; None where they do not reach the finish. Those beyond it are cut."""
    states, along, state = [], [0.0], expander.start
    for decision, action in enumerate(actions):
        states.append(state[0])
        child = expander.expand(state, np.array([action]))
        state = child.states
        along.append(float(child.along_m[0]))
        if child.finish_ms[0]:
            done = decision + 1
            speed = float(child.speed_mps[0])
            path = np.maximum.accumulate(np.array(along))
            return Lap(np.array(actions[:done]), np.array(states), path, int(child.finish_ms[0]), speed)
        if not child.is_running[0]:
            return None
    return None


def polish(
    expander: Expander,
    lap: Lap,
    num_actions: int,
    budget: int,
    generator: np.random.Generator,
    on_spent: OnSpent,
) -> Lap:
    """Improves a lap until a budget of simulated decisions is spent.

    Args:
        expander: steps the cars.
        lap: what to start from.
        num_actions: actions to choose from.
        budget: decisions that may be simulated here.
        generator: source of all changes.
        on_spent: called after each round with the decisions simulated for it and the lap time in ms.

    Returns:
        A lap at least as fast.
    """
    end = expander.spent + budget
    while expander.spent < end:
        before = expander.spent
        place = int(generator.integers(len(lap.actions)))
        trials = mutate(lap.actions, place, num_actions, generator)
        best = _race(expander, lap, trials, place)
        if best is not None:
            found = drive_lap(expander, best)
            if found is not None and (found.finish_ms, -found.arrival) < (lap.finish_ms, -lap.arrival):
                lap = found
        on_spent(expander.spent - before, lap.finish_ms)
    return lap


def mutate(actions: Actions, place: int, num_actions: int, generator: np.random.Generator) -> Actions:
    """Returns [NUM_TRIALS, T] copies of a lap, each changed somewhere from `place` on for at most MAX_WINDOW.

    A change replaces a stretch by one action, moves a stretch earlier or later, turns it round in a circle, or strews
    single actions; a quarter of the trials get a second one.
    """
    trials = np.tile(actions, (NUM_TRIALS, 1))
    for is_changed in (np.ones(NUM_TRIALS, np.bool_), generator.uniform(size=NUM_TRIALS) < 0.25):
        first = np.minimum(place + generator.integers(MAX_WINDOW, size=NUM_TRIALS), len(actions) - 1)
        length = np.minimum(generator.geometric(0.25, NUM_TRIALS), MAX_WINDOW) * is_changed
        _change(trials, first, length, num_actions, generator)
    return trials


def _change(
    trials: Actions,
    first: Actions,
    length: Actions,
    num_actions: int,
    generator: np.random.Generator,
) -> None:
    """Changes `length` [N] decisions of each trial from `first` [N] on, each trial in a way of its own."""
    columns = np.arange(first.min(), min(int((first + length).max()), trials.shape[1]))
    offset = columns - first[:, None]
    inside = (offset >= 0) & (offset < length[:, None])
    kind = generator.integers(0, 4, (len(trials), 1))
    shift = generator.choice((-2, -1, 1, 2), (len(trials), 1))
    turned = first[:, None] + (offset - shift) % np.maximum(length, 1)[:, None]
    source = np.where(kind == 1, columns - shift, turned).clip(0, trials.shape[1] - 1)
    moved = np.take_along_axis(trials, source, axis=1)
    fresh = generator.integers(num_actions, size=inside.shape)
    one = np.broadcast_to(generator.integers(num_actions, size=(len(trials), 1)), inside.shape)
    changed = np.select([kind == 0, kind == 3], [one, fresh], moved)
    strewn = (kind != 3) | (generator.uniform(size=inside.shape) < 0.5)
    trials[:, columns] = np.where(inside & strewn, changed, trials[:, columns])


def _race(expander: Expander, lap: Lap, trials: Actions, place: int) -> Actions | None:
    """Returns the actions of the trial that reaches the finish first, None where no trial gets there in time."""
    states = np.tile(lap.states[place], (len(trials), 1))
    num_decisions = len(lap.actions)
    for decision in range(place, num_decisions):
        children = expander.expand(states, trials[:, decision])
        finished = np.flatnonzero(children.finish_ms)
        if len(finished):
            order = np.lexsort((-children.speed_mps[finished], children.finish_ms[finished]))
            return trials[finished[order[0]]]
        alive = children.is_running
        if decision % CHECK_EVERY == 0:
            behind = (lap.along_m[decision + 1] - children.along_m) / np.maximum(children.speed_mps, 5.0)
            alive = alive & (behind < MAX_BEHIND_S)
        if not alive.any():
            return None
        states, trials = children.states[alive], trials[alive]
    return None
