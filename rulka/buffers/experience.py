"""One block of experience: what a batch of cars saw and did for a fixed number of decisions.

The unit that travels from collectors to learners, for replay and on-policy algorithms alike.
Dimensions: T decisions, N cars, L frames that are seen at once, oldest first, H x W pixels, F floats.

A race that ends at decision t (`terminated` or `truncated`) leaves its true last observation at index t + 1; the
environment is reset by decision t + 1, whose row has `is_reset` set and is no transition (gymnasium's "next step"
autoreset). Observation 0 of a block repeats observation T of the block before it by the same collector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


@dataclass(frozen=True)
class BlockSpec:
    """Shape of a block; blocks of one run all have the same.

    `decision_shape` is that of one decision: none for an action, [K] for K of them, or for K numbers if `continuous`.
    """

    num_steps: int
    num_cars: int
    height: int
    width: int
    num_floats: int
    decision_shape: tuple[int, ...] = ()
    continuous: bool = False
    frames: int = 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[L, H, W] of what a car sees."""
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
            "action": ((*steps, *self.decision_shape), np.float32 if self.continuous else np.uint8),
            "reward": (steps, np.float32),
            "terminated": (steps, np.bool_),
            "truncated": (steps, np.bool_),
            "is_reset": (steps, np.bool_),
            "is_greedy": (steps, np.bool_),
            "log_prob": (steps, np.float32),
            "value": (steps, np.float32),
        }

    @property
    def num_bytes(self) -> int:
        """Bytes that one block takes, every array aligned to a cache line."""
        return sum(_aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize) for shape, dtype in self.layout().values())


@dataclass(frozen=True)
class ExperienceBlock:
    """Arrays of one block, all views of the same memory.

    Attributes:
        image: [T + 1, N, L, H, W] uint8.
        floats: [T + 1, N, F] float32, unnormalised.
        potential: [T + 1, N] float32 shaping potential of each observation, in reward units.
        action: [T, N] uint8 index into the action table; [T, N, K] where decisions are chunks of K actions, and of
            float32 where they are K numbers.
        reward: [T, N] float32 reward for the decision, without shaping.
        terminated: [T, N] the race ended for good: finished or off the track.
        truncated: [T, N] the race was cut by a limit; its last observation still has a value.
        is_reset: [T, N] the decision was swallowed by a reset and is no transition.
        is_greedy: [T, N] the behaviour policy would have chosen this action without exploring; of a chunk, all of them.
        log_prob: [T, N] log-probability of the action under the policy that acted; 0 where it has none.
        value: [T, N] that policy's estimate of the state; 0 where it has none.
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
    value: NDArray[np.float32]

    @property
    def num_transitions(self) -> int:
        """Decisions that are transitions, resets not counted."""
        return int(self.is_reset.size - np.count_nonzero(self.is_reset))


def block_in(memory: memoryview | bytearray, spec: BlockSpec) -> ExperienceBlock:
    """Lays a block over memory of at least `spec.num_bytes` bytes, without copying or clearing it."""
    arrays, offset = {}, 0
    for name, (shape, dtype) in spec.layout().items():
        arrays[name] = np.ndarray(shape, dtype, buffer=memory, offset=offset)
        offset += _aligned(arrays[name].nbytes)
    return ExperienceBlock(spec, **arrays)


def new_block(spec: BlockSpec) -> ExperienceBlock:
    """Returns a block in memory of its own, zeroed."""
    return block_in(bytearray(spec.num_bytes), spec)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
