"""A block of experience: observations and actions of a batch of cars over a fixed number of decisions.

Collectors send blocks to learners, off-policy and on-policy alike. The module also has the other forms of experience
that learners accept and return.
Dimensions: T decisions, N cars, L frames seen at once, oldest first, H x W pixels, F floats, K
actions of a decision, or numbers of a continuous one; of preferences M decisions, S stretches, P pairs.

A race that ends at decision t (`terminated` or `truncated`) leaves its true last observation at index t + 1; decision
t + 1 resets the environment: its row has `is_reset` set and is not a transition (gymnasium's "next step" autoreset).
Observation 0 of a block repeats observation T of the same collector's previous block, if the two numbers are
consecutive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


@dataclass(frozen=True)
class BlockSpec:
    """Shape of a block; the same for all blocks of a run. `decision_size` is K."""

    num_steps: int
    num_cars: int
    height: int
    width: int
    num_floats: int
    decision_size: int = 1
    continuous: bool = False
    frames: int = 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape [L, H, W] of the image of one observation."""
        return self.frames, self.height, self.width

    @property
    def num_env_steps(self) -> int:
        """Decisions in a block, of all cars together."""
        return self.num_steps * self.num_cars

    def layout(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """Returns shape and dtype of every array of a block, in storage order."""
        steps, cars = (self.num_steps, self.num_cars), (self.num_steps + 1, self.num_cars)
        return {
            "image": ((*cars, *self.image_shape), np.uint8),
            "floats": ((*cars, self.num_floats), np.float32),
            "potential": (cars, np.float32),
            "action": ((*steps, self.decision_size), np.float32 if self.continuous else np.uint8),
            "reward": (steps, np.float32),
            "terminated": (steps, np.bool_),
            "truncated": (steps, np.bool_),
            "is_reset": (steps, np.bool_),
            "is_greedy": (steps, np.bool_),
            "log_prob": (steps, np.float32),
            "number": ((), np.int64),
        }

    @property
    def num_bytes(self) -> int:
        """Bytes that one block takes, every array aligned to a cache line."""
        return sum(aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize) for shape, dtype in self.layout().values())


@dataclass(frozen=True)
class ExperienceBlock:
    """Arrays of one block, all views of the same memory.

    Attributes:
        image: [T + 1, N, L, H, W] uint8.
        floats: [T + 1, N, F] float32, unnormalised.
        potential: [T + 1, N] float32 shaping potential of each observation, in reward units.
        action: [T, N, K] uint8 indices into the action table; float32 if decisions are continuous.
        reward: [T, N] float32 reward for the decision, without shaping.
        terminated: [T, N] terminal: finished or off the track.
        truncated: [T, N] a limit cut the race; its last observation still has a value.
        is_reset: [T, N] an autoreset step: the action was ignored, so this is not a transition.
        is_greedy: [T, N] all K actions are the greedy ones of the policy that acted.
        log_prob: [T, N] log-probability of the action under the policy that acted; 0 if it has no probabilities.
        number: one more than the number of the block that this one continues.
    """

    spec: BlockSpec
    image: NDArray[np.uint8]
    floats: NDArray[np.float32]
    potential: NDArray[np.float32]
    action: NDArray
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    is_greedy: NDArray[np.bool_]
    log_prob: NDArray[np.float32]
    number: NDArray[np.int64]

    @property
    def num_transitions(self) -> int:
        """Number of transitions: decisions without resets."""
        return int(self.is_reset.size - np.count_nonzero(self.is_reset))


def block_in(memory: memoryview | bytearray, spec: BlockSpec) -> ExperienceBlock:
    """Lays a block over memory of at least `spec.num_bytes` bytes, without copying or clearing it."""
    arrays, offset = {}, 0
    for name, (shape, dtype) in spec.layout().items():
        arrays[name] = np.ndarray(shape, dtype, buffer=memory, offset=offset)
        offset += aligned(arrays[name].nbytes)
    return ExperienceBlock(spec, **arrays)


def new_block(spec: BlockSpec) -> ExperienceBlock:
    """Returns a zeroed block in its own memory."""
    return block_in(bytearray(spec.num_bytes), spec)


def as_block(observations: Mapping[str, NDArray], decisions: Mapping[str, NDArray]) -> ExperienceBlock:
    """Builds a block of one car from plain arrays, for demonstrations read from files.

    Args:
        observations: `image` [T + 1, L, H, W], `floats` [T + 1, F], `potential` [T + 1] (optional, 0).
        decisions: `action` [T, K], or [T] if K is 1, `reward` [T], `terminated` [T], `truncated` [T] (optional, false).

    Returns:
        A block whose decisions all count as greedy, so that transitions can span several of them.
    """
    num_steps = len(decisions["action"])
    frames, height, width = observations["image"].shape[-3:]
    size, floats = decisions["action"].size // num_steps, observations["floats"].shape[-1]
    block = new_block(BlockSpec(num_steps, 1, height, width, floats, size, frames=frames))
    for name, values in {**observations, **decisions}.items():
        target = getattr(block, name)
        target[...] = values.reshape(target.shape)
    block.is_greedy[...] = True
    return block


class PreferencePairs(NamedTuple):
    """Preference pairs over stretches of races, stored one after another; a stretch may be in several pairs.

    Attributes:
        image: [M, L, H, W] uint8.
        floats: [M, F] float32 raw.
        action: [M, K] indices of the actions of each decision.
        num_decisions: [S] int64 of each stretch; their sum is M.
        pairs: [P, 2] int64 indices of the preferred stretch and the other one, which begin in the same place.
    """

    image: NDArray[np.uint8]
    floats: NDArray[np.float32]
    action: NDArray
    num_decisions: NDArray[np.int64]
    pairs: NDArray[np.int64]


Piece = Mapping[str, NDArray]
"""An immutable part of a learner's experience: arrays by name."""


class StoredExperience(NamedTuple):
    """A learner's experience as a checkpoint stores it, in parts that are written once and read together.

    Attributes:
        state: mutable part: nested dictionaries and lists of tensors and numbers.
        pieces: immutable parts by number; a number keeps its content as long as the learner lives.
    """

    state: dict[str, Any]
    pieces: Mapping[int, Piece]


class LazyPieces(Mapping[int, Piece]):
    """Pieces by number, read lazily: together they may be large."""

    def __init__(self, numbers: Collection[int], read: Callable[[int], Piece]) -> None:
        self._numbers, self._read = numbers, read

    def __getitem__(self, number: int) -> Piece:
        if number not in self._numbers:
            raise KeyError(number)
        return self._read(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def aligned(num_bytes: int) -> int:
    """Rounds a size up to whole cache lines."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
