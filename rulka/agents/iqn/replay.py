"""The experience of an IQN learner: its own ring, its priorities, races held out, and demonstrations.

Each is a `ReplayBuffer` of torchrl with the parts of `rulka.buffers.torchrl_parts` inside; all write into the memory of
one batch. How a transition gets into it: `IqnReplay.draw` asks each source to fill its rows; torchrl's buffer has the
sampler draw rows of the ring, and the collate (`rulka.buffers.sampler.collate`) follow each for some decisions
(`transitions`), lay a mini-race over it (`mini_race`) and copy what was seen. Dimensions: B batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data import ReplayBuffer

from rulka.agents.spec import AgentError, AgentSpec, Experience, Piece
from rulka.buffers.demonstrations import demonstration_buffer
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.buffers.held_out import RaceSplit
from rulka.buffers.mini_race import ClockRule
from rulka.buffers.prioritised import Priorities
from rulka.buffers.sampler import FEATURES, Batch, BatchMemory
from rulka.buffers.storage import BlockBuffer, Derive, place_of_ring
from rulka.buffers.torchrl_parts import (
    BlockStorage,
    BlockWriter,
    MiniRaceCollate,
    PrioritisedRows,
    StreamedBlock,
    UniformRows,
)
from rulka.params import IqnParams
from rulka.schedule import Moment

_LOGGER = logging.getLogger(__name__)


class _Source:
    """A replay buffer, and how its transitions get into a part of the batch.

    Attributes:
        blocks: what is stored.
        sampler: which rows are drawn.
        buffer: of torchrl.
        index: rows that were drawn last.
        clock: [B] decisions since the mini-race of each of these began.
    """

    def __init__(self, storage: BlockStorage, sampler: UniformRows, collate: MiniRaceCollate) -> None:
        self.blocks, self.sampler = storage.blocks, sampler
        self._storage, self._collate, self._memory = storage, collate, collate.memory
        self.buffer = ReplayBuffer(
            storage=storage,
            sampler=sampler,
            writer=BlockWriter(),
            collate_fn=collate,
            generator=collate.generator,
        )
        self.index, self.clock = torch.zeros(0, dtype=torch.int64), collate.clock

    def fill(self, rows: slice, gamma: float) -> None:
        """Draws as many transitions as `rows` of the batch hold; `gamma` is the discount of one decision."""
        self._collate.rows, self._collate.gamma = rows, gamma
        part, info = self.buffer.sample(rows.stop - rows.start, return_info=True)
        if "_weight" in info:
            part.weight.copy_(info["_weight"])
        self.index, self.clock = info["index"], self._collate.clock
        self._memory.send(rows, is_on_device=self._storage.is_on_device)


class IqnReplay:
    """Where batches come from; how often is the learner's to decide.

    Attributes:
        num_own: transitions of our own in the last batch, demonstrations not counted.
    """

    def __init__(self, spec: AgentSpec[IqnParams], seed: int, device: torch.device, generator: torch.Generator) -> None:
        params: IqnParams = spec.settings
        self._params, self._device, self._generator = params, device, generator
        self._split = RaceSplit(params.held_out_share, seed)
        self._horizon = params.mini_race_decisions(spec.decision_ms)
        self._rule = ClockRule(self._horizon, params.oversample_long_term, params.oversample_max_term)
        self._image_shape, num_floats = spec.observation.image_shape, len(spec.normalisation.mean)
        num_guided = spec.choices.num_outputs if params.has_limits else 0
        self._memory = BatchMemory(
            self._image_shape, num_floats, params.batch_size, spec.choices.decision_shape, device, num_guided
        )
        self._own: _Source | None = None
        self._held_out: _Source | None = None
        self._demonstrations: _Source | None = None
        self._priorities: Priorities | None = None
        self._kept: dict[str, Derive] = {}
        self.num_own = 0

    @property
    def batch(self) -> Batch:
        """The last batch."""
        return self._memory.batch

    @property
    def largest_importance(self) -> float:
        """(n P)^-beta of the transition of the last batch for which it was largest, n that of the own buffer left out.

        Prioritised replay alone.
        """
        sampler = self._filled(self._own).sampler
        assert isinstance(sampler, PrioritisedRows)
        return sampler.largest_importance

    @property
    def num_rows(self) -> int:
        """Decisions in the ring, resets and held-out races included."""
        return 0 if self._own is None else len(self._own.buffer)

    def keep(self, name: str, derive: Derive) -> None:
        """Keeps what a function makes of every observation beside it; see `BlockBuffer.keep`."""
        self._kept[name] = derive
        for blocks in self._buffers():
            blocks.keep(name, derive)

    def keep_features(self, derive: Derive, num_features: int, dtype: torch.dtype) -> None:
        """Has batches hold features [B, E] of the images from now on, which are computed once."""
        self.keep(FEATURES, derive)
        self._memory.reshape((num_features,), dtype)

    def drop_features(self) -> None:
        """Has batches hold images again."""
        del self._kept[FEATURES]
        for blocks in self._buffers():
            blocks.drop(FEATURES)
        self._memory.reshape(self._image_shape, torch.uint8)

    @property
    def has_features(self) -> bool:
        """Whether batches hold features of the images."""
        return FEATURES in self._kept

    def insert(self, block: ExperienceBlock, stream: int, num_env_steps: int) -> None:
        """Copies a block in; `num_env_steps` decisions came before it."""
        own = self._own or self._reserve(block.spec)
        is_held_out = self._split.split(block, stream, num_env_steps) if self._params.held_out_share else None
        own.buffer.extend([StreamedBlock(block, stream, is_held_out)])

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Replaces the demonstrations.

        Raises:
            AgentError: if they show something else than the agent sees.
            ValueError: if there are none.
        """
        expected = (*self._image_shape, self.batch.floats.shape[1])
        for block in blocks:
            found = (*block.spec.image_shape, block.spec.num_floats)
            if found != expected:
                message = f"demonstrations have (frames, height, width, floats) {found}, the agent sees {expected}"
                raise AgentError(message, hint="Capture the demonstrations again with the present parameters.")
        storage = BlockStorage(demonstration_buffer(blocks, self._device))
        for name, derive in self._kept.items():
            storage.blocks.keep(name, derive)
        self._demonstrations = self._source(storage, UniformRows())

    def draw(self, moment: Moment) -> Batch:
        """Draws a batch to learn from, with the settings of a moment of the run.

        Raises:
            ValueError: if there is nothing to draw.
        """
        params, own = self._params, self._filled(self._own)
        share = 0.0 if self._demonstrations is None else params.demonstration_share.at(moment)
        num_demonstrated = round(params.batch_size * share)
        self.num_own = params.batch_size - num_demonstrated
        if params.prioritised is not None and isinstance(own.sampler, PrioritisedRows):
            own.sampler.beta = params.prioritised.beta.at(moment)
        gamma = params.gamma.at(moment)
        self._memory.begin()
        own.fill(slice(0, self.num_own), gamma)
        if self._demonstrations is not None and num_demonstrated:
            self._demonstrations.fill(slice(self.num_own, params.batch_size), gamma)
        return self.batch

    def note_errors(self, error: Tensor) -> None:
        """Sets priorities from the errors [B] of the batch drawn last, which may still be being computed.

        Only where its mini-race has more than `min_actions_left` decisions left: near its end little is left to gain,
        and a small error there says nothing of the same transition earlier in a mini-race. What is not a number ends
        the run elsewhere, with the weights that led to it.
        """
        if self._own is None or self._params.prioritised is None:
            return
        errors = error[: self.num_own].cpu()
        is_early = self._own.clock < self._horizon - self._params.prioritised.min_actions_left
        counts = torch.from_numpy(is_early) & errors.isfinite()
        self._own.buffer.update_priority(self._own.index[counts], errors[counts])

    def has_held_out(self) -> bool:
        """Whether the ring holds a transition of a race that is held out."""
        blocks = self._filled(self._own).blocks
        stored = slice(0, blocks.num_blocks)
        return bool((blocks.arrays.is_held_out[stored] & ~blocks.arrays.is_reset[stored]).any())

    def draw_held_out(self, moment: Moment) -> Batch:
        """Draws a batch of transitions of the races that are held out.

        Raises:
            ValueError: if there is none.
        """
        self._memory.begin()
        self._filled(self._held_out).fill(slice(0, self._params.batch_size), self._params.gamma.at(moment))
        return self.batch

    def priorities(self) -> NDArray[np.float64]:
        """Priority of each row of the ring, 0 where none was measured yet; nothing without prioritised replay."""
        return np.zeros(0) if self._priorities is None else self._priorities.measured

    def clear(self) -> None:
        """Forgets all experience but the demonstrations."""
        self._own = self._held_out = self._priorities = None

    def experience(self) -> Experience:
        """Returns all but the demonstrations; see `rulka.agents.spec.Learner`."""
        if self._own is None:
            return Experience({}, {})
        ring = self._own.blocks
        state: dict[str, Any] = {
            "spec": asdict(ring.spec),
            "ring": ring.ring_state(),
            "split": self._split.state_dict(),
        }
        if self._priorities is not None:
            state["priorities"] = self._priorities.state_dict()
        return Experience(state, _Pieces(ring))

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        self.clear()
        if not experience.state:
            return
        own = self._reserve(BlockSpec(**experience.state["spec"]))
        own.blocks.load_ring(experience.state["ring"], experience.pieces)
        self._split.load_state_dict(experience.state["split"])
        if self._priorities is not None:
            self._priorities.load_state_dict(experience.state["priorities"])

    def _reserve(self, spec: BlockSpec) -> _Source:
        """Makes the ring, and its priorities where there are any."""
        rows = spec.num_steps * spec.num_cars
        num_slots = max(2, -(-self._params.buffer_steps // rows))
        # An encoder that never learns makes the same of every image, whenever it is asked.
        with_images = not self.has_features or any(self._params.rate_of.encoder.values)
        place, remark = place_of_ring(spec, num_slots, self._device, with_images=with_images)
        if remark:
            _LOGGER.warning(remark)
        storage = BlockStorage(BlockBuffer(spec, num_slots, place, with_images=with_images))
        for name, derive in self._kept.items():
            storage.blocks.keep(name, derive)
        sampler = UniformRows()
        if self._params.prioritised is not None:
            settings = self._params.prioritised
            self._priorities = Priorities(storage.blocks, settings.alpha, settings.epsilon)
            sampler = PrioritisedRows(storage, self._priorities)
        self._held_out = self._source(storage, UniformRows(from_held_out=True))
        self._own = self._source(storage, sampler)
        return self._own

    def _buffers(self) -> list[BlockBuffer]:
        return [source.blocks for source in (self._own, self._demonstrations) if source is not None]

    def _source(self, storage: BlockStorage, sampler: UniformRows) -> _Source:
        collate = MiniRaceCollate(storage, self._memory, self._rule, self._params.n_steps, self._generator)
        return _Source(storage, sampler, collate)

    @staticmethod
    def _filled(source: _Source | None) -> _Source:
        if source is None:
            message = "nothing was inserted yet"
            raise ValueError(message)
        return source


class _Pieces(Mapping[int, Piece]):
    """The blocks of a ring by number, each read when it is asked for: from a device that is a copy."""

    def __init__(self, buffer: BlockBuffer) -> None:
        self._buffer = buffer

    def __getitem__(self, number: int) -> Piece:
        if number not in self._buffer.numbers():
            raise KeyError(number)
        return self._buffer.block_arrays(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._buffer.numbers())

    def __len__(self) -> int:
        return self._buffer.num_blocks
