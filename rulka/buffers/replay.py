"""Replay: a ring of the agent's own experience and one of demonstrations, and the batches sampled from them.

From a ring to a batch it is two steps. `Source.sample` draws rows and follows each for some decisions (`Transitions`).
The algorithm computes what these are worth, and `Source.batch` reads the observations before and after them (`Batch`).
Sampling uses torchrl's `ReplayBuffer` with our samplers and a ring as its storage. Its own prioritised samplers do not
load with torch 2.13, and its writers handle single items, where a block is many consecutive rows of one collector.

Importing torchrl takes 3 s of CPU time and some 95 MB: only off-policy learners import this module.
Dimensions: B batch, T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats, E image features,
K actions of a decision, A choices for each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data import ImmutableDatasetWriter, ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.data.replay_buffers.storages import Storage

from rulka.buffers.demonstrations import demonstration_ring
from rulka.buffers.experience import BlockSpec, ExperienceBlock, LazyPieces, StoredExperience
from rulka.buffers.held_out import RaceSplit
from rulka.buffers.priorities import DrawnRows, Priorities
from rulka.buffers.ring import BlockRing, Derive, observation_index, on_device, place_of_ring
from rulka.buffers.transitions import Transitions, find_transitions

_LOGGER = logging.getLogger(__name__)
PartT = TypeVar("PartT")
DrawRows = Callable[[int], DrawnRows]
"""Draws that many rows from a ring."""

FEATURES, GUIDE = "features", "guide"
"""Derived columns: features [E] of the image, log-probabilities [K, A] of the cloned policy."""


class Batch(NamedTuple):
    """Transitions of one or several decisions, from the ring to the loss; on the learner's device, but for `row`.

    Attributes:
        image: [B, L, H, W] uint8 before the transition; features [B, E] of it if the ring stores them.
        floats: [B, F] float32, raw.
        action: [B, K] int64; float32 if decisions are continuous.
        reward: [B] float32, discounted over the decisions of the transition, with shaping.
        discount: [B] float32 factor of the next observation's value; 0 if nothing follows.
        next_image: as `image`, after the transition.
        next_floats: [B, F] float32, raw.
        next_guide: [B, K, A] float32 log-probabilities of the cloned policy there; [B, 0] if the ring stores none.
        importance: [B] float32 importance weights; 1 if sampling is uniform.
        row: [B] int64 in the ring; IQN marks demonstrations, whose ring is another, by -1.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_image: Tensor
    next_floats: Tensor
    next_guide: Tensor
    importance: Tensor
    row: Tensor


class TransitionStorage(Storage):
    """A ring as a torchrl storage of transitions, indexed by their first rows; its length counts rows."""

    def __init__(self, ring: BlockRing, max_steps: int, *, past_exploring: bool) -> None:
        super().__init__(ring.num_slots * ring.spec.num_env_steps)
        self.ring, self._max_steps, self._past_exploring = ring, max_steps, past_exploring

    def get(self, index: Tensor) -> Transitions:  # pyright: ignore[reportIncompatibleMethodOverride] - torchrl: int
        """Returns the transitions that begin in rows [B], see `find_transitions`."""
        return find_transitions(self.ring.arrays, index.numpy(), self._max_steps, past_exploring=self._past_exploring)

    def __len__(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride] - torchrl left out its type
        """Returns the number of decisions stored, resets included."""
        return self.ring.num_rows


class RowSampler(RandomSampler):
    """A function that draws rows, `draw_rows` or `Priorities.draw`, as a torchrl sampler."""

    def __init__(self, draw: DrawRows) -> None:
        super().__init__()
        self._draw = draw

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws rows [batch_size], and returns them with what else is known of them."""
        del storage
        drawn = self._draw(batch_size)
        return torch.from_numpy(drawn.row), {"drawn": drawn}


class Source:
    """A ring and a way to sample transitions from it.

    Attributes:
        largest_importance: see `DrawnRows.largest`, of the rows drawn last.
    """

    def __init__(
        self, ring: BlockRing, draw: DrawRows, max_steps: int, device: torch.device, *, past_exploring: bool
    ) -> None:
        self.largest_importance = 1.0
        storage = TransitionStorage(ring, max_steps, past_exploring=past_exploring)
        sampler, writer = RowSampler(draw), ImmutableDatasetWriter()
        self._ring, self._device = ring, device
        self._buffer = ReplayBuffer(storage=storage, sampler=sampler, writer=writer, collate_fn=lambda each: each)

    def sample(self, count: int) -> Transitions:
        """Draws transitions.

        Raises:
            ValueError: if there are none.
        """
        # torchrl calls, in this order:
        # 1. `RowSampler.sample(count)`, which draws rows by `draw_rows` or `Priorities.draw`;
        # 2. `TransitionStorage.get(rows)`, which follows them by `find_transitions`.
        transitions, info = self._buffer.sample(count, return_info=True)
        self.largest_importance = info["drawn"].largest
        return transitions._replace(importance=info["drawn"].importance)

    def batch(self, transitions: Transitions, reward: NDArray[np.float32], discount: NDArray[np.float32]) -> Batch:
        """Reads the observations of transitions worth `reward` [B] and `discount` [B] times the next value."""
        ring, before, after = self._ring, transitions.observation, transitions.next_observation
        image = FEATURES if FEATURES in ring.observations else "image"
        columns = on_device(
            (
                ring.gather(image, before),
                ring.gather("floats", before),
                torch.from_numpy(transitions.action),
                torch.from_numpy(reward),
                torch.from_numpy(discount),
                ring.gather(image, after),
                ring.gather("floats", after),
                ring.gather(GUIDE, after) if GUIDE in ring.observations else torch.empty(len(reward), 0),
                torch.from_numpy(transitions.importance),
            ),
            self._device,
        )
        return Batch._make((*columns, torch.from_numpy(transitions.row)))


class Replay:
    """The agent's own experience, some of whose races may be held out, and demonstrations.

    Attributes:
        priorities: of the ring's rows; None before the first block, and if sampling is uniform.
        beta: exponent of the importance weights; 1 fully corrects the sampling bias.
        demonstrations: None if there are none.
    """

    def __init__(
        self,
        num_decisions: int,
        max_steps: int,
        device: torch.device,
        generator: torch.Generator,
        *,
        past_exploring: bool = False,
        priority: tuple[float, float] | None = None,
        split: RaceSplit | None = None,
        always_frozen: bool = False,
    ) -> None:
        """Prepares; the first block allocates the ring.

        Args:
            num_decisions: capacity.
            max_steps: most decisions in a transition.
            device: of the network that learns from it.
            generator: of the draws; in main memory.
            past_exploring: see `find_transitions`.
            priority: alpha and epsilon of `Priorities`; None samples uniformly.
            split: which races are held out; None holds out none.
            always_frozen: True if the encoder never trains: while features are stored, images need not be.
        """
        self._num_decisions, self._max_steps, self._past_exploring = num_decisions, max_steps, past_exploring
        self._device, self._generator = device, generator
        self._priority, self._split, self._always_frozen = priority, split, always_frozen
        self._derived: dict[str, Derive] = {}
        self.beta = 1.0
        self._demonstration_ring: BlockRing | None = None
        self.demonstrations: Source | None = None
        self.clear()

    def clear(self) -> None:
        """Drops all experience except the demonstrations."""
        self._ring: BlockRing | None = None
        self._own: Source | None = None
        self._held_out: Source | None = None
        self.priorities: Priorities | None = None

    @property
    def num_rows(self) -> int:
        """Decisions in the ring, resets and held-out races included."""
        return 0 if self._ring is None else self._ring.num_rows

    @property
    def ring(self) -> BlockRing:
        """The ring; raises ValueError before the first block."""
        return _filled(self._ring)

    @property
    def own(self) -> Source:
        """Transitions to learn from; raises ValueError before the first block."""
        return _filled(self._own)

    @property
    def held_out(self) -> Source:
        """Transitions of held-out races; raises ValueError before the first block."""
        return _filled(self._held_out)

    def insert(self, block: ExperienceBlock, stream: int, num_env_steps: int = 0) -> None:
        """Copies in a block of a stream, after `num_env_steps` decisions of all streams."""
        ring = self._ring or self._allocate(block.spec)
        slot = ring.insert(block, stream, self._split and self._split.split(block, stream, num_env_steps))
        if self.priorities is not None:
            self.priorities.enter(slot)

    def _allocate(self, spec: BlockSpec) -> BlockRing:
        num_slots = max(2, -(-self._num_decisions // spec.num_env_steps))
        with_images = not (self.has_features and self._always_frozen)
        device, remark = place_of_ring(spec, num_slots, self._device, with_images=with_images)
        if remark:
            _LOGGER.warning(remark)
        ring = self._ring = BlockRing(spec, num_slots, device, with_images=with_images, derived=self._derived)
        if self._priority is None:
            self._own = self._source(ring, partial(draw_rows, ring, self._generator))
        else:
            priorities = self.priorities = Priorities(ring, *self._priority)
            self._own = self._source(ring, lambda count: priorities.draw(count, self.beta, self._generator))
        self._held_out = self._source(ring, partial(draw_rows, ring, self._generator, from_held_out=True))
        return ring

    def _source(self, ring: BlockRing, draw: DrawRows) -> Source:
        return Source(ring, draw, self._max_steps, self._device, past_exploring=self._past_exploring)

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Replaces the demonstrations.

        Raises:
            ValueError: if there are none.
        """
        ring = self._demonstration_ring = demonstration_ring(blocks, self._device, self._derived)
        self.demonstrations = self._source(ring, partial(draw_rows, ring, self._generator))

    def sample_states(self, count: int) -> tuple[Tensor, Tensor]:
        """Samples states from the ring, on the device: images [B, L, H, W], or features [B, E], and floats [B, F].

        Raises:
            ValueError: if there are none.
        """
        ring = self.ring
        index = observation_index(ring.arrays, draw_rows(ring, self._generator, count).row)
        seen = ring.gather(FEATURES if self.has_features else "image", index), ring.gather("floats", index)
        image, floats = on_device(seen, self._device)
        return image, floats

    def has_states(self) -> bool:
        """True if there is a state to sample."""
        ring = self._ring
        return ring is not None and not ring.arrays.is_reset[: ring.num_blocks].all()

    def has_held_out(self) -> bool:
        """True if the ring holds a transition of a held-out race."""
        arrays, stored = self.ring.arrays, slice(0, self.ring.num_blocks)
        return bool((arrays.is_held_out[stored] & ~arrays.is_reset[stored]).any())

    # Derived columns: outputs of a frozen network, computed once for each observation instead of at every draw --------

    @property
    def has_features(self) -> bool:
        """True if batches hold features instead of images."""
        return FEATURES in self._derived

    def store_derived(self, name: str, derive: Derive) -> None:
        """Stores a derived column, of what is in the rings too."""
        self._derived[name] = derive
        self._update_derived()

    def drop_derived(self, name: str) -> None:
        """Drops a derived column, because its function is about to change."""
        del self._derived[name]
        self._update_derived()

    def _update_derived(self) -> None:
        for ring in (self._ring, self._demonstration_ring):
            if ring is not None:
                ring.update_derived()

    # Blocks for another process, and checkpoints ----------------------------------------------------------------------

    def numbers(self) -> range:
        """Returns the numbers of the stored blocks, in order of insertion."""
        return range(0) if self._ring is None else self._ring.numbers()

    def copy_states(self, number: int, block: ExperienceBlock) -> None:
        """Copies images, floats and resets of the stored block `number` into `block`."""
        ring = self.ring
        slot, count = number % ring.num_slots, (ring.spec.num_steps + 1) * ring.spec.num_cars
        index = np.arange(slot * count, (slot + 1) * count)
        for name in ("image", "floats"):
            torch.from_numpy(getattr(block, name)).flatten(0, 1).copy_(ring.gather(name, index))
        block.is_reset[...] = ring.arrays.is_reset[slot]

    def experience(self) -> StoredExperience:
        """Returns all but the demonstrations, for a checkpoint."""
        if self._ring is None:
            return StoredExperience({}, {})
        state: dict[str, Any] = {"spec": asdict(self._ring.spec), "ring": self._ring.ring_state()}
        state |= {} if self._split is None else {"split": self._split.state_dict()}
        state |= {} if self.priorities is None else {"priorities": self.priorities.state_dict()}
        return StoredExperience(state, LazyPieces(self._ring.numbers(), self._ring.block_arrays))

    def load_experience(self, experience: StoredExperience) -> None:
        """Resumes from an `experience`; copies it."""
        self.clear()
        if not experience.state:
            return
        ring = self._allocate(BlockSpec(**experience.state["spec"]))
        ring.load_ring(experience.state["ring"], experience.pieces)
        if self._split is not None:
            self._split.load_state_dict(experience.state["split"])
        if self.priorities is not None:
            self.priorities.load_state_dict(experience.state["priorities"])


def draw_rows(ring: BlockRing, generator: torch.Generator, num_rows: int, *, from_held_out: bool = False) -> DrawnRows:
    """Samples rows of transitions on one side of the split, uniformly with replacement; their importance is 1.

    They are sorted, which reads memory a little faster; the order in a batch does not matter.

    Raises:
        ValueError: if the ring holds no such transition.
    """
    is_reset = ring.arrays.is_reset.reshape(-1)[: ring.num_rows]
    is_held_out = ring.arrays.is_held_out.reshape(-1)[: ring.num_rows]
    drawn = np.empty(0, np.int64)
    while len(drawn) < num_rows:
        count = num_rows + num_rows // 8 + 8
        candidates = torch.randint(len(is_reset), (count,), generator=generator).numpy() if len(is_reset) else drawn
        accepted = candidates[~is_reset[candidates] & (is_held_out[candidates] == from_held_out)]
        if not len(accepted) and not (~is_reset & (is_held_out == from_held_out)).any():
            raise ValueError("the ring holds no transition to draw")
        drawn = np.concatenate([drawn, accepted])
    return DrawnRows(np.sort(drawn[:num_rows]), np.ones(num_rows, np.float32), largest=1.0)


def _filled(part: PartT | None) -> PartT:
    if part is None:
        raise ValueError("nothing was inserted yet")
    return part
