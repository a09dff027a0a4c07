"""Our storage, samplers and collate function as parts of torchrl's `ReplayBuffer`; IQN's replay is made of them.

What is added are blocks of experience with the stream that made each, what is sampled are transitions placed in
mini-races. An *index* is a row of the `BlockBuffer`, so every frame is stored once. torchrl's own prioritised samplers
do not load beside torch 2.13; `PrioritisedRows` behaves like them: importance weights are `info["_weight"]`.

    storage = BlockStorage(BlockBuffer(spec, num_slots=64))
    memory = BatchMemory((frames, height, width), num_floats, batch_size=512)
    buffer = ReplayBuffer(
        storage=storage,
        sampler=PrioritisedRows(storage, Priorities(storage.blocks, alpha=0.6, epsilon=0.002)),
        writer=BlockWriter(),
        collate_fn=MiniRaceCollate(storage, memory, rule, max_steps=3, generator=generator),
        batch_size=512,
        generator=generator,
    )
    buffer.extend([StreamedBlock(block, stream)])
    batch, info = buffer.sample(return_info=True)
    buffer.update_priority(info["index"], errors)

Importing torchrl takes 3 s of processor time and some 95 MB: only what learns imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import Writer

from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.mini_race import ClockRule, draw_clocks
from rulka.buffers.prioritised import Priorities
from rulka.buffers.sampler import Batch, BatchMemory, collate, draw_rows
from rulka.buffers.storage import BlockBuffer


class StreamedBlock(NamedTuple):
    """What is added to a buffer.

    Attributes:
        block: experience.
        stream: who made it.
        is_held_out: [T, N] bool decisions of races that are never learned from; None holds out none.
    """

    block: ExperienceBlock
    stream: int
    is_held_out: NDArray[np.bool_] | None = None


_STATE_FILE = "state.pt"


class BlockStorage(Storage):
    """A ring of blocks; its length counts decisions, resets included.

    Attributes:
        blocks: what is stored.
    """

    def __init__(self, blocks: BlockBuffer) -> None:
        self.blocks = blocks
        super().__init__(blocks.num_slots * blocks.rows_per_slot)

    @property
    def is_on_device(self) -> bool:
        """Whether images and floats lie on a device."""
        return bool(self.blocks.on_device)

    def set(self, cursor: int, data: StreamedBlock, *, set_cursor: bool = True) -> None:
        """Writes a block where the ring stands, whatever the cursor."""
        del cursor, set_cursor
        self.write(data)

    def write(self, data: StreamedBlock) -> Tensor:
        """Writes a block where the ring stands and returns its rows [T N]."""
        slot = self.blocks.insert(*data)
        self._bump_mutation_revision()
        count = self.blocks.rows_per_slot
        return torch.arange(slot * count, (slot + 1) * count)

    def get(self, index: int | Tensor) -> NDArray[np.int64]:
        """Returns rows as they are: `MiniRaceCollate` reads what they point to."""
        return torch.as_tensor(index).numpy()

    def __len__(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride] - torchrl left out its type
        """Returns the decisions stored."""
        return self.blocks.num_rows

    def state_dict(self) -> dict[str, Any]:
        """Returns all that is stored."""
        return self.blocks.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self.blocks.load_state_dict(state_dict)

    def dumps(self, path: Path) -> None:
        """Writes all that is stored into a folder."""
        _save(path, self.state_dict())

    def loads(self, path: Path) -> None:
        """Reads what `dumps` wrote."""
        self.load_state_dict(_load(path))

    def _empty(self) -> None:
        self.blocks.clear()


class BlockWriter(Writer):
    """Writes blocks in their order of arrival."""

    _write_count = 0

    def add(self, data: StreamedBlock) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - as torchrl's
        """Writes one block and returns its rows [T N]."""
        assert isinstance(self._storage, BlockStorage)
        index = self._storage.write(data)
        self._write_count += len(index)
        return index

    def extend(self, data: Sequence[StreamedBlock]) -> Tensor:
        """Writes blocks and returns the rows of all of them."""
        return torch.cat([self.add(block) for block in data])

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of rows written."""
        return {"write_count": self._write_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._write_count = int(state_dict["write_count"])

    def dumps(self, path: Path) -> None:
        """Writes the state into a folder."""
        _save(path, self.state_dict())

    def loads(self, path: Path) -> None:
        """Reads what `dumps` wrote."""
        self.load_state_dict(_load(path))

    def _empty(self, empty_write_count: bool = True) -> None:
        self._write_count = 0 if empty_write_count else self._write_count


class UniformRows(Sampler):
    """Draws all transitions with the same probability, and never resets.

    Attributes:
        from_held_out: draws from the races that are held out, and only from them; otherwise never from these.
    """

    def __init__(self, *, from_held_out: bool = False) -> None:
        super().__init__()
        self.from_held_out = from_held_out

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws rows [batch_size] of a `BlockStorage`."""
        assert isinstance(storage, BlockStorage)
        generator = self._rng or torch.default_generator
        rows = draw_rows(storage.blocks, batch_size, generator, from_held_out=self.from_held_out)
        return torch.from_numpy(rows), {}

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: there is no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing."""

    def dumps(self, path: Path) -> None:
        """Writes the state into a folder."""
        _save(path, self.state_dict())

    def loads(self, path: Path) -> None:
        """Reads what `dumps` wrote."""
        self.load_state_dict(_load(path))

    def _empty(self) -> None:
        pass


class PrioritisedRows(UniformRows):
    """Draws transitions by priority, see `rulka.buffers.prioritised`.

    Attributes:
        priorities: of every row.
        beta: how far the importance weights undo the preference; 1 wholly.
        largest_importance: see `DrawnRows.largest`, of the rows drawn last.
    """

    def __init__(self, storage: BlockStorage, priorities: Priorities, beta: float = 1.0) -> None:
        super().__init__()
        self._storage, self.priorities, self.beta = storage, priorities, beta
        self.largest_importance = 1.0

    @property
    def default_priority(self) -> float:
        """Priority of new transitions."""
        return self.priorities.largest

    def add(self, index: int | Tensor) -> None:
        """Gives new transitions the largest priority; `index` are rows of whole slots."""
        for slot in torch.unique(torch.as_tensor(index) // self._storage.blocks.rows_per_slot).tolist():
            self.priorities.enter(slot)

    def extend(self, index: Tensor) -> None:
        """The same for several blocks."""
        self.add(index)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws rows [batch_size]; `_weight` of the second value are their importance weights."""
        del storage
        drawn = self.priorities.draw(batch_size, self.beta, self._rng or torch.default_generator)
        self.largest_importance = drawn.largest
        return torch.from_numpy(drawn.row), {"_weight": torch.from_numpy(drawn.weight)}

    def update_priority(self, index: int | Tensor, priority: float | Tensor, *, storage: Storage | None = None) -> None:
        """Sets priorities from errors [B] of either sign, of rows [B] that were sampled."""
        del storage
        errors = torch.as_tensor(priority, dtype=torch.float32).reshape(-1)
        rows = torch.as_tensor(index).reshape(-1)
        self.priorities.update(rows.numpy(), errors.expand(len(rows)).numpy())

    def state_dict(self) -> dict[str, Any]:
        """Returns the priorities."""
        return self.priorities.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self.priorities.load_state_dict(state_dict)

    def _empty(self) -> None:
        self.priorities.clear()


class MiniRaceCollate:
    """Reads rows as transitions of up to `max_steps` decisions and places each in a mini-race, drawn anew.

    Attributes:
        memory: where batches are written to.
        generator: source of the clocks.
        rows: of the batch in memory that the next call fills; other buffers may fill the rest.
        gamma: discount of one decision, for the next batch.
        clock: [B] int64 decisions since the mini-race of each transition of the last batch began.
    """

    def __init__(
        self,
        storage: BlockStorage,
        memory: BatchMemory,
        rule: ClockRule,
        max_steps: int,
        generator: torch.Generator,
    ) -> None:
        """Prepares.

        Args:
            storage: where the rows lie.
            memory: where batches are written to.
            rule: how the clocks of mini-races are drawn.
            max_steps: most decisions in a transition.
            generator: source of the clocks.
        """
        self._storage, self.memory = storage, memory
        self._rule, self._max_steps, self.generator = rule, max_steps, generator
        self.rows, self.gamma = slice(0, memory.size), 1.0
        self.clock = np.zeros(0, np.int64)

    def __call__(self, rows: NDArray[np.int64]) -> Batch:
        """Returns its part of the batch; importance weights are all 1 until somebody writes them."""
        part = self.memory.part(self.rows, is_on_device=self._storage.is_on_device)
        part.weight.fill_(1.0)
        uniform = torch.rand(len(rows), generator=self.generator, dtype=torch.float64).numpy()
        self.clock = draw_clocks(uniform, self._rule)
        collate(part, self._storage.blocks, rows, self.clock, self._max_steps, self.gamma, self._rule.horizon)
        return part


def _save(path: Path, state: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    torch.save(state, path / _STATE_FILE)


def _load(path: Path) -> dict[str, Any]:
    return torch.load(path / _STATE_FILE, weights_only=True)
