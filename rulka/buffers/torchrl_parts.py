"""Our storage, samplers and collate function as parts of torchrl's `ReplayBuffer`; import it where torchrl is there.

What is added are blocks of experience with the stream that made each, what is sampled are transitions placed in
mini-races. An *index* is a row of the `BlockBuffer`, so every frame is stored once. torchrl's own prioritised samplers
do not load beside torch 2.13; `PrioritisedRows` behaves like them: importance weights are `info["_weight"]`.

    storage = BlockStorage(spec, num_slots=64)
    buffer = ReplayBuffer(
        storage=storage,
        sampler=PrioritisedRows(storage, alpha=0.6, beta=0.4, epsilon=0.002),
        writer=BlockWriter(),
        collate_fn=MiniRaceCollate(storage, rule, max_steps=3, discount=0.99),
        batch_size=512,
    )
    buffer.extend([(block, stream)])
    batch, info = buffer.sample(return_info=True)
    buffer.update_priority(info["index"], errors)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import Writer

from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.buffers.mini_race import ClockRule, draw_clocks
from rulka.buffers.prioritised import Priorities
from rulka.buffers.sampler import Batch, collate, draw_rows, empty_batch
from rulka.buffers.storage import BlockBuffer

StreamedBlock = tuple[ExperienceBlock, int]
"""A block, and who made it."""

_STATE_FILE = "state.pt"


class BlockStorage(Storage):
    """A ring of blocks; its length counts decisions, resets included.

    Attributes:
        blocks: what is stored.
    """

    def __init__(self, spec: BlockSpec, num_slots: int) -> None:
        self.blocks = BlockBuffer(spec, num_slots)
        super().__init__(num_slots * self.blocks.rows_per_slot)

    def set(self, cursor: int, data: StreamedBlock, *, set_cursor: bool = True) -> None:
        """Writes a block where the ring stands, whatever the cursor."""
        del cursor, set_cursor
        self.write(data)

    def write(self, data: StreamedBlock) -> Tensor:
        """Writes a block where the ring stands and returns its rows [T N]."""
        block, stream = data
        slot = self.blocks.insert(block, stream)
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
    """Draws all transitions alike; resets and held-out races never."""

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws rows [batch_size] of a `BlockStorage`."""
        assert isinstance(storage, BlockStorage)
        return torch.from_numpy(draw_rows(storage.blocks, batch_size, self._rng or torch.default_generator)), {}

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
    """

    def __init__(self, storage: BlockStorage, alpha: float, beta: float, epsilon: float) -> None:
        self._storage, self.beta = storage, beta
        self.priorities = Priorities(storage.blocks, alpha, epsilon)

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
    """Reads rows as transitions of up to `max_steps` decisions and places each in a mini-race, drawn anew."""

    def __init__(
        self,
        storage: BlockStorage,
        rule: ClockRule,
        max_steps: int,
        discount: float,
        generator: torch.Generator | None = None,
    ) -> None:
        self._storage, self._rule = storage, rule
        self._max_steps, self._discount = max_steps, discount
        self._generator = generator or torch.default_generator

    def __call__(self, rows: NDArray[np.int64]) -> Batch:
        """Returns a batch [B] in memory of its own; its importance weights are all 1."""
        spec = self._storage.blocks.spec
        batch = empty_batch((spec.height, spec.width), spec.num_floats, len(rows), spec.block_shape)
        uniform = torch.rand(len(rows), generator=self._generator, dtype=torch.float64).numpy()
        clock = draw_clocks(uniform, self._rule)
        collate(batch, self._storage.blocks, rows, clock, self._max_steps, self._discount, self._rule.horizon)
        return batch


def _save(path: Path, state: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    torch.save(state, path / _STATE_FILE)


def _load(path: Path) -> dict[str, Any]:
    return torch.load(path / _STATE_FILE, weights_only=True)
