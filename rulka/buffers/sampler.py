"""Batches for replay learning: their memory, rows drawn uniformly, and what rows become in it.

Dimensions: B batch, L frames seen at once, H x W pixels, F floats, A actions, K actions of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.buffers.mini_race import place_in_mini_races
from rulka.buffers.storage import BlockBuffer
from rulka.buffers.transitions import find_transitions
from rulka.device import CPU, Copies, staging, upload, upload_copy
from rulka.observation import FLOATS

_CLOCK = FLOATS["clock"].start
_SEEN = ("image", "floats", "next_image", "next_floats", "next_guide")

FEATURES, GUIDE = "features", "guide"
"""What buffers may keep beside observations: features [E] of the image, log-probabilities [A] of the cloned policy."""


class Batch(NamedTuple):
    """Transitions to learn from; memory that the next batch overwrites.

    Attributes:
        image: [B, L, H, W] uint8; or features [B, E] of the images, floating point, where the buffers keep `FEATURES`.
            The type tells them apart.
        floats: [B, F] float32, raw, with the clock of the mini-race.
        action: [B] int64; [B, K] chunks of actions, or K numbers, float32.
        reward: [B] float32, discounted over the decisions of the transition, with shaping.
        discount: [B] float32 factor of the value of the next observation; 0 where nothing follows.
        next_image: as `image`.
        next_floats: [B, F] float32, raw, with the clock.
        weight: [B] float32 importance of each transition; 1 where all are drawn alike.
        next_guide: [B, K A] float32 log-probabilities of the cloned policy at the next observation, where the buffers
            keep `GUIDE`; else [B, 0].
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_image: Tensor
    next_floats: Tensor
    weight: Tensor
    next_guide: Tensor


def draw_rows(
    buffer: BlockBuffer, num_rows: int, generator: torch.Generator, *, from_held_out: bool = False
) -> NDArray[np.int64]:
    """Draws rows [B] that are transitions of one side of the split, all equally likely, with repetition.

    They come in rising order, in which memory is read a little faster; a batch has no order.

    Raises:
        ValueError: if the buffer holds no such transition.
    """
    is_reset = buffer.arrays.is_reset.reshape(-1)[: buffer.num_rows]
    is_held_out = buffer.arrays.is_held_out.reshape(-1)[: buffer.num_rows]
    drawn = np.empty(0, np.int64)
    while len(drawn) < num_rows:
        count = num_rows + num_rows // 8 + 8
        candidates = torch.randint(len(is_reset), (count,), generator=generator).numpy() if len(is_reset) else drawn
        accepted = candidates[~is_reset[candidates] & (is_held_out[candidates] == from_held_out)]
        if not len(accepted) and not (~is_reset & (is_held_out == from_held_out)).any():
            message = "the buffer holds no transition to draw"
            raise ValueError(message)
        drawn = np.concatenate([drawn, accepted])
    return np.sort(drawn[:num_rows])


class BatchMemory:
    """The memory that one batch after another is written to, part by part, and its copy on a device.

    Attributes:
        size: B.
        batch: the last batch, on the device.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_floats: int,
        batch_size: int,
        chunk_shape: tuple[int, ...] = (),
        device: torch.device = CPU,
        num_guided: int = 0,
        *,
        is_continuous: bool = False,
    ) -> None:
        self.size = batch_size
        self._host = empty_batch(
            image_shape, num_floats, batch_size, chunk_shape, device, num_guided, is_continuous=is_continuous
        )
        self.batch = upload(self._host, device)
        self._copies, self._device = Copies(device), device

    def reshape(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes place for other images, or for their features, in batches to come.

        Args:
            shape: of one of them.
            dtype: uint8 for images.
        """
        self._copies.wait()
        seen = {name: staging((self.size, *shape), dtype, self._device) for name in ("image", "next_image")}
        self._host = self._host._replace(**seen)
        self.batch = upload(self._host, self._device)

    def begin(self) -> None:
        """Waits until the last batch has left main memory, which is then written over."""
        self._copies.wait()

    def part(self, rows: slice, *, is_on_device: bool) -> Batch:
        """Returns some rows of the batch, to be filled: in main memory, but for images and floats that need not be.

        Args:
            rows: of the batch.
            is_on_device: whether the images and floats are copied from the device itself.
        """
        columns = zip(Batch._fields, self._host, self.batch, strict=True)
        return Batch(*((there if is_on_device and name in _SEEN else here)[rows] for name, here, there in columns))

    def send(self, rows: slice, *, is_on_device: bool) -> None:
        """Copies rows that were filled to the device, but for what is there already."""
        if self.batch is self._host:  # there is no other device
            return
        for name, here, there in zip(Batch._fields, self._host, self.batch, strict=True):
            if not (is_on_device and name in _SEEN):
                there[rows].copy_(here[rows], non_blocking=True)
        self._copies.note()


def empty_batch(
    image_shape: tuple[int, int, int],
    num_floats: int,
    batch_size: int,
    chunk_shape: tuple[int, ...] = (),
    device: torch.device = CPU,
    num_guided: int = 0,
    *,
    is_continuous: bool = False,
) -> Batch:
    """Reserves main memory for a batch.

    Args:
        image_shape: (L, H, W).
        num_floats: F.
        batch_size: B.
        chunk_shape: [K] where decisions are chunks of K actions.
        device: where the batch will be copied.
        num_guided: K A where the likelihoods of actions are part of it, else 0.
        is_continuous: whether decisions are K numbers.
    """

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return staging(shape, dtype, device)

    return Batch(
        image=empty(batch_size, *image_shape, dtype=torch.uint8),
        floats=empty(batch_size, num_floats),
        action=empty(batch_size, *chunk_shape, dtype=torch.float32 if is_continuous else torch.int64),
        reward=empty(batch_size),
        discount=empty(batch_size),
        next_image=empty(batch_size, *image_shape, dtype=torch.uint8),
        next_floats=empty(batch_size, num_floats),
        weight=empty(batch_size).fill_(1.0),
        next_guide=empty(batch_size, num_guided),
    )


def collate(
    part: Batch,
    buffer: BlockBuffer,
    rows: NDArray[np.int64],
    clock: NDArray[np.int64],
    max_steps: int,
    gamma: float,
    horizon: int,
) -> None:
    """Fills all of a batch [B] but its weights.

    Args:
        part: overwritten; its images and floats lie where those of the buffer do, all else in main memory.
        buffer: where the transitions lie.
        rows: [B] that are transitions.
        clock: [B] decisions since the mini-race of each began.
        max_steps: most decisions in a transition.
        gamma: discount of one decision.
        horizon: decisions in a mini-race.
    """
    found = find_transitions(buffer.arrays, rows, max_steps)
    race = place_in_mini_races(found, clock, gamma, horizon)
    observe(buffer, found.observation, part.image, part.floats)
    observe(buffer, found.next_observation, part.next_image, part.next_floats)
    _set_clock(part.floats, race.clock)
    _set_clock(part.next_floats, race.next_clock)
    if part.next_guide.shape[1]:
        buffer.gather(GUIDE, found.next_observation, part.next_guide)
    part.action.numpy()[:] = found.action
    part.reward.numpy()[:] = race.reward
    part.discount.numpy()[:] = race.discount


def collate_returns(part: Batch, buffer: BlockBuffer, rows: NDArray[np.int64], max_steps: int, gamma: float) -> None:
    """Fills all of a batch [B] but its weights, without mini-races: values look ahead as far as `gamma` lets them.

    Transitions go on past decisions that were not greedy. What is paid is discounted, with shaping gamma phi(s') -
    phi(s); a race that ended for good has no value and no potential, one that a limit has cut has both.

    Args:
        part: overwritten; its images and floats lie where those of the buffer do, all else in main memory.
        buffer: where the transitions lie.
        rows: [B] that are transitions.
        max_steps: most decisions in a transition.
        gamma: discount of one decision.
    """
    found = find_transitions(buffer.arrays, rows, max_steps, past_exploring=True)
    observe(buffer, found.observation, part.image, part.floats)
    observe(buffer, found.next_observation, part.next_image, part.next_floats)
    discount = np.where(found.is_terminal, 0.0, gamma ** found.num_steps.astype(np.float64))
    paid = found.reward @ gamma ** np.arange(max_steps, dtype=np.float64)
    part.action.numpy()[:] = found.action
    part.reward.numpy()[:] = paid + discount * found.next_potential - found.potential
    part.discount.numpy()[:] = discount


def observe(buffer: BlockBuffer, index: NDArray[np.int64], image: Tensor, floats: Tensor) -> None:
    """Writes observations [B] into images, or the features that are kept of them, and floats of a batch."""
    buffer.gather(FEATURES if image.is_floating_point() else "image", index, image)
    buffer.gather("floats", index, floats)


def _set_clock(floats: Tensor, clock: NDArray[np.float32]) -> None:
    """Writes the clocks of mini-races [B] into floats [B, F]."""
    if floats.device.type == "cpu":
        floats.numpy()[:, _CLOCK] = clock
    else:
        (times,) = upload_copy((torch.from_numpy(clock),), floats.device)
        floats[:, _CLOCK].copy_(times)
