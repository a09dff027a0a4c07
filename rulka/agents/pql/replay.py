"""What the critics and the policy learn from: a ring of blocks, drawn from uniformly.

Transitions hold several decisions and go on past noise, as the paper's do. The policy is shown states alone.
Dimensions: B batch, L frames seen at once, H x W pixels, F floats, E image features.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rulka.actions import Intervals
from rulka.agents.spec import AgentSpec, Experience, Piece
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.buffers.sampler import FEATURES, Batch, BatchMemory, collate_returns, draw_rows, observe
from rulka.buffers.storage import BlockBuffer, Derive, place_of_ring
from rulka.params import PqlParams

_LOGGER = logging.getLogger(__name__)


class States(NamedTuple):
    """What the policy learns from; memory that the next batch overwrites.

    Attributes:
        image: [B, L, H, W] uint8; or features [B, E], floating point, where the ring keeps these.
        floats: [B, F] float32, raw.
    """

    image: Tensor
    floats: Tensor


class PqlReplay:
    """The ring, and the batch that is drawn from it."""

    def __init__(self, spec: AgentSpec[PqlParams], device: torch.device, generator: torch.Generator) -> None:
        params: PqlParams = spec.settings
        self._params = params
        self._device, self._generator = device, generator
        self._image_shape = spec.observation.image_shape
        self._memory = BatchMemory(
            self._image_shape,
            len(spec.normalisation.mean),
            self._params.batch_size,
            spec.actions.decision_shape,
            device,
            is_continuous=isinstance(spec.actions, Intervals),
        )
        self._ring: BlockBuffer | None = None
        self._features: Derive | None = None

    @property
    def batch(self) -> Batch:
        """The last batch; after `draw_states` its images and floats are those states."""
        return self._memory.batch

    @property
    def num_rows(self) -> int:
        """Decisions in the ring, resets included."""
        return 0 if self._ring is None else self._ring.num_rows

    def numbers(self) -> range:
        """Returns the numbers of the stored blocks, in order of insertion."""
        return range(0) if self._ring is None else self._ring.numbers()

    @property
    def has_features(self) -> bool:
        """Whether batches hold features of the images."""
        return self._features is not None

    def keep_features(self, derive: Derive, num_features: int, dtype: torch.dtype) -> None:
        """Has batches hold features [B, E] of the images from now on, which are computed once."""
        self._features = derive
        if self._ring is not None:
            self._ring.keep(FEATURES, derive)
        self._memory.reshape((num_features,), dtype)

    def drop_features(self) -> None:
        """Has batches hold images again."""
        self._features = None
        if self._ring is not None:
            self._ring.drop(FEATURES)
        self._memory.reshape(self._image_shape, torch.uint8)

    def insert(self, block: ExperienceBlock, stream: int) -> None:
        """Copies a block of a stream in."""
        (self._ring or self._reserve(block.spec)).insert(block, stream)

    def draw(self, gamma: float) -> Batch:
        """Draws transitions, with what they were paid at the discount of one decision.

        Raises:
            ValueError: if there is nothing to draw.
        """
        ring, rows = self._filled(), slice(0, self._memory.size)
        self._memory.begin()
        part = self._memory.part(rows, is_on_device=bool(ring.on_device))
        drawn = draw_rows(ring, self._memory.size, self._generator)
        collate_returns(part, ring, drawn, self._params.n_steps, gamma)
        self._memory.send(rows, is_on_device=bool(ring.on_device))
        return self.batch

    def draw_states(self) -> States:
        """Draws states of the ring, over those of the last batch.

        Raises:
            ValueError: if there is nothing to draw.
        """
        ring, rows = self._filled(), slice(0, self._memory.size)
        self._memory.begin()
        part = self._memory.part(rows, is_on_device=bool(ring.on_device))
        drawn = torch.from_numpy(draw_rows(ring, self._memory.size, self._generator))
        # A row is (slot T + step) N + car, an observation (slot (T + 1) + step) N + car.
        index = drawn + drawn // ring.rows_per_slot * ring.spec.num_cars
        observe(ring, index.numpy(), part.image, part.floats)
        self._memory.send(rows, is_on_device=bool(ring.on_device))
        return States(self.batch.image, self.batch.floats)

    def has_states(self) -> bool:
        """Whether there is anything to draw."""
        ring = self._ring
        return ring is not None and not ring.arrays.is_reset[: ring.num_blocks].all()

    def copy_states(self, number: int, block: ExperienceBlock) -> None:
        """Writes what was seen in the block of a number, and which decisions were resets, into another block."""
        ring = self._filled()
        slot, count = number % ring.num_slots, (ring.spec.num_steps + 1) * ring.spec.num_cars
        index = np.arange(slot * count, (slot + 1) * count)
        for name in ("image", "floats"):
            target = torch.from_numpy(getattr(block, name)).flatten(0, 1)
            if ring.on_device:
                drawn = torch.empty_like(target, device=self._device)
                ring.gather(name, index, drawn)
                target.copy_(drawn)
            else:
                ring.gather(name, index, target)
        block.is_reset[...] = ring.arrays.is_reset[slot]

    def clear(self) -> None:
        """Forgets everything."""
        self._ring = None

    def experience(self) -> Experience:
        """Returns the ring; see `rulka.agents.spec.Learner`."""
        if self._ring is None:
            return Experience({}, {})
        return Experience({"spec": asdict(self._ring.spec), "ring": self._ring.ring_state()}, _Pieces(self._ring))

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        self.clear()
        if experience.state:
            ring = self._reserve(BlockSpec(**experience.state["spec"]))
            ring.load_ring(experience.state["ring"], experience.pieces)

    def _reserve(self, spec: BlockSpec) -> BlockBuffer:
        num_slots = max(2, -(-self._params.buffer_steps // spec.num_env_steps))
        place, remark = place_of_ring(spec, num_slots, self._device)
        if remark:
            _LOGGER.warning(remark)
        self._ring = BlockBuffer(spec, num_slots, place)
        if self._features is not None:
            self._ring.keep(FEATURES, self._features)
        return self._ring

    def _filled(self) -> BlockBuffer:
        if self._ring is None:
            message = "nothing was inserted yet"
            raise ValueError(message)
        return self._ring


class _Pieces(Mapping[int, Piece]):
    """The blocks of a ring by number, each read when it is asked for: from a device that is a copy."""

    def __init__(self, ring: BlockBuffer) -> None:
        self._ring = ring

    def __getitem__(self, number: int) -> Piece:
        if number not in self._ring.numbers():
            raise KeyError(number)
        return self._ring.block_arrays(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ring.numbers())

    def __len__(self) -> int:
        return self._ring.num_blocks
