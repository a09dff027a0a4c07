"""Replay buffer: a ring of experience, and the batches that IQN and PQL sample from it.

Sampling uses torchrl's `ReplayBuffer`: its sampler draws rows (`UniformRows`, `PrioritisedRows`), its storage follows
each row for some decisions (`Transitions`), and its collate function gathers the observations before and after
(`Drawn`). The algorithm computes the returns. `Replay.insert` writes blocks into the ring: torchrl's writers handle
single items, and a block is many consecutive rows of one collector.
torchrl's own prioritised samplers do not load with torch 2.13; `PrioritisedRows` behaves like them.

Importing torchrl takes 3 s of CPU time and some 95 MB: only off-policy learners import this module.
Dimensions: B batch, T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats, E image features,
K actions of a decision, A choices for each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrl.data import ImmutableDatasetWriter, ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.data.replay_buffers.storages import Storage

from rulka.buffers.experience import BlockSpec, Experience, ExperienceBlock, new_block
from rulka.buffers.priorities import Priorities
from rulka.buffers.ring import BlockRing, Derive, Returns, Transitions, find_transitions, on_device, place_of_ring
from rulka.machine.device import CPU

_LOGGER = logging.getLogger(__name__)

FEATURES, GUIDE = "features", "guide"
"""Outputs stored with observations: features [E] of the image, log-probabilities [K, A] of the cloned policy."""
PIECE_STEPS = 64
"""Decisions in one stored piece of a demonstration; the unused rest of a race's last piece is marked as reset."""


# Batches --------------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """Sampled transitions as stored; images and floats are on the ring's device, all else in main memory.

    Attributes:
        found: start, end, rewards and actions of the transitions.
        image: [B, L, H, W] uint8; or features [B, E] of the images, if the ring stores `FEATURES`.
        floats: [B, F] float32, raw.
        next_image: as `image`, after the transition.
        next_floats: [B, F] float32, raw.
        next_guide: [B, K, A] float32 log-probabilities of the cloned policy there, if the ring stores `GUIDE`; else
            [B, 0].
        row: [B] int64 first row of each transition in the ring.
        weight: [B] float32 importance weights; 1 if sampling is uniform.
    """

    found: Transitions
    image: Tensor
    floats: Tensor
    next_image: Tensor
    next_floats: Tensor
    next_guide: Tensor
    row: Tensor
    weight: Tensor


class Batch(NamedTuple):
    """Transitions to learn from, on the device.

    Attributes:
        image: [B, L, H, W] uint8; or features [B, E] of the images, if the ring stores `FEATURES`.
        floats: [B, F] float32, raw.
        action: [B, K] int64; float32 if decisions are continuous.
        n_step_return: [B] float32, rewards discounted over the decisions of the transition, with shaping.
        bootstrap_discount: [B] float32 factor of the value of the next observation; 0 if nothing follows.
        next_image: as `image`.
        next_floats: [B, F] float32, raw.
        weight: [B] float32 importance weights; 1 if sampling is uniform.
        next_guide: [B, K, A] float32 log-probabilities of the cloned policy at the next observation, if the ring
            stores `GUIDE`; else [B, 0].
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    n_step_return: Tensor
    bootstrap_discount: Tensor
    next_image: Tensor
    next_floats: Tensor
    weight: Tensor
    next_guide: Tensor


def make_batch(drawn: Drawn, returns: Returns, device: torch.device) -> Batch:
    """Returns transitions with their returns as a batch on a device."""
    batch = Batch(
        image=drawn.image,
        floats=drawn.floats,
        action=torch.from_numpy(drawn.found.action),
        n_step_return=torch.from_numpy(returns.reward),
        bootstrap_discount=torch.from_numpy(returns.discount),
        next_image=drawn.next_image,
        next_floats=drawn.next_floats,
        weight=drawn.weight,
        next_guide=drawn.next_guide,
    )
    return Batch(*on_device(batch, device))


def draw_rows(
    ring: BlockRing, num_rows: int, generator: torch.Generator, *, from_held_out: bool = False
) -> NDArray[np.int64]:
    """Samples rows [B] of transitions on one side of the split, uniformly with replacement.

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
            message = "the ring holds no transition to draw"
            raise ValueError(message)
        drawn = np.concatenate([drawn, accepted])
    return np.sort(drawn[:num_rows])


# Parts of torchrl's ReplayBuffer --------------------------------------------------------------------------------------


class TransitionStorage(Storage):
    """A ring as a torchrl storage of transitions, indexed by their first rows; its length counts rows."""

    def __init__(self, ring: BlockRing, max_steps: int, *, past_exploring: bool) -> None:
        super().__init__(ring.num_slots * ring.rows_per_slot)
        self.ring, self._max_steps, self._past_exploring = ring, max_steps, past_exploring

    def get(self, index: Tensor) -> Transitions:  # pyright: ignore[reportIncompatibleMethodOverride] - torchrl: int
        """Returns the transitions that begin in rows [B], see `find_transitions`."""
        return find_transitions(self.ring.arrays, index.numpy(), self._max_steps, past_exploring=self._past_exploring)

    def __len__(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride] - torchrl left out its type
        """Returns the number of decisions stored, resets included."""
        return self.ring.num_rows


class UniformRows(RandomSampler):
    """Samples uniformly from the transitions of one side of the split; never draws resets."""

    def __init__(self, generator: torch.Generator, *, from_held_out: bool = False) -> None:
        super().__init__()
        self._generator, self._from_held_out = generator, from_held_out

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws rows [batch_size] of a `TransitionStorage`."""
        assert isinstance(storage, TransitionStorage)
        rows = draw_rows(storage.ring, batch_size, self._generator, from_held_out=self._from_held_out)
        return torch.from_numpy(rows), {}


class PrioritisedRows(RandomSampler):
    """Samples transitions by priority; see `rulka.buffers.priorities`.

    Attributes:
        priorities: of every row.
        beta: exponent of the importance weights; 1 fully corrects the sampling bias.
        largest_importance: see `DrawnRows.largest`, of the rows drawn last.
    """

    def __init__(self, priorities: Priorities, generator: torch.Generator) -> None:
        super().__init__()
        self.priorities, self._generator, self.beta = priorities, generator, 1.0
        self.largest_importance = 1.0

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws rows [batch_size]; `_weight` in the second value holds their importance weights."""
        del storage
        drawn = self.priorities.draw(batch_size, self.beta, self._generator)
        self.largest_importance = drawn.largest
        return torch.from_numpy(drawn.row), {"_weight": torch.from_numpy(drawn.weight)}


# The replay of a learner ----------------------------------------------------------------------------------------------


class Replay:
    """A ring of the agent's own experience with held-out races, and demonstrations; each is sampled separately.

    Attributes:
        sampler: prioritised sampler of the ring; None before the first block, and if sampling is uniform.
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
        self._derive: dict[str, Derive] = {}
        self._demonstrations: BlockRing | None = None
        self.clear()

    def clear(self) -> None:
        """Drops all experience except the demonstrations."""
        self._ring: BlockRing | None = None
        self.sampler: PrioritisedRows | None = None

    @property
    def num_rows(self) -> int:
        """Decisions in the ring, resets and held-out races included."""
        return 0 if self._ring is None else self._ring.num_rows

    @property
    def ring(self) -> BlockRing:
        """The ring.

        Raises:
            ValueError: if nothing was inserted yet.
        """
        if self._ring is None:
            message = "nothing was inserted yet"
            raise ValueError(message)
        return self._ring

    @property
    def has_features(self) -> bool:
        """True if batches hold features instead of images."""
        return FEATURES in self._derive

    def keep(self, name: str, derive: Derive) -> None:
        """Stores the output of a function with every observation; see `BlockRing.keep`."""
        self._derive[name] = derive
        for ring in self._rings():
            ring.keep(name, derive)

    def drop(self, name: str) -> None:
        """Drops the output that `keep` stores under a name."""
        del self._derive[name]
        for ring in self._rings():
            ring.drop(name)

    def insert(self, block: ExperienceBlock, stream: int, num_env_steps: int = 0) -> None:
        """Copies in a block of a stream, after `num_env_steps` decisions of all streams."""
        ring = self._ring or self._reserve(block.spec)
        slot = ring.insert(block, stream, self._split and self._split.split(block, stream, num_env_steps))
        if self.sampler is not None:
            self.sampler.priorities.enter(slot)

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Replaces the demonstrations.

        Raises:
            ValueError: if there are none.
        """
        self._demonstrations = demonstration_ring(blocks, self._device)
        for name, derive in self._derive.items():
            self._demonstrations.keep(name, derive)
        self._shown = self._buffer(self._demonstrations, UniformRows(self._generator))

    def draw(self, count: int) -> Drawn:
        """Samples transitions that are not held out, by priority if there are priorities.

        Raises:
            ValueError: if there is nothing to draw.
        """
        self.ring  # noqa: B018 - or there is nothing to draw
        return _draw(self._own, count)

    def draw_held_out(self, count: int) -> Drawn:
        """Samples transitions of held-out races.

        Raises:
            ValueError: if there is nothing to draw.
        """
        self.ring  # noqa: B018 - or there is nothing to draw
        return _draw(self._held_out, count)

    def draw_demonstrations(self, count: int) -> Drawn:
        """Samples transitions of demonstrations; requires `has_demonstrations()`."""
        return _draw(self._shown, count)

    def draw_states(self, count: int) -> tuple[Tensor, Tensor]:
        """Samples states from the ring, on the device: images [B, L, H, W], or features [B, E], and floats [B, F].

        Raises:
            ValueError: if there is nothing to draw.
        """
        ring = self.ring
        rows = draw_rows(ring, count, self._generator)
        # A row is (slot T + step) N + car, an observation (slot (T + 1) + step) N + car.
        index = rows + rows // ring.rows_per_slot * ring.spec.num_cars
        seen = ring.gather(FEATURES if self.has_features else "image", index), ring.gather("floats", index)
        image, floats = on_device(seen, self._device)
        return image, floats

    def has_states(self) -> bool:
        """Returns True if there is a state to draw."""
        ring = self._ring
        return ring is not None and not ring.arrays.is_reset[: ring.num_blocks].all()

    def has_demonstrations(self) -> bool:
        """Returns True if there are demonstrations to draw."""
        return self._demonstrations is not None

    def has_held_out(self) -> bool:
        """Returns True if the ring holds a transition of a held-out race."""
        arrays, stored = self.ring.arrays, slice(0, self.ring.num_blocks)
        return bool((arrays.is_held_out[stored] & ~arrays.is_reset[stored]).any())

    def update_priorities(self, rows: Tensor, errors: Tensor) -> None:
        """Sets priorities from the errors [B] of drawn rows [B]; does nothing without priorities."""
        if self.sampler is not None:
            self.sampler.priorities.update(rows.numpy(), errors.numpy())

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

    def experience(self) -> Experience:
        """Returns all but the demonstrations, for a checkpoint."""
        if self._ring is None:
            return Experience({}, {})
        state: dict[str, Any] = {"spec": asdict(self._ring.spec), "ring": self._ring.ring_state()}
        state |= {} if self._split is None else {"split": self._split.state_dict()}
        state |= {} if self.sampler is None else {"priorities": self.sampler.priorities.state_dict()}
        return Experience(state, self._ring.pieces())

    def load_experience(self, experience: Experience) -> None:
        """Resumes from an `experience`; copies it."""
        self.clear()
        if not experience.state:
            return
        ring = self._reserve(BlockSpec(**experience.state["spec"]))
        ring.load_ring(experience.state["ring"], experience.pieces)
        if self._split is not None:
            self._split.load_state_dict(experience.state["split"])
        if self.sampler is not None:
            self.sampler.priorities.load_state_dict(experience.state["priorities"])

    def _reserve(self, spec: BlockSpec) -> BlockRing:
        num_slots = max(2, -(-self._num_decisions // spec.num_env_steps))
        with_images = not (self.has_features and self._always_frozen)
        place, remark = place_of_ring(spec, num_slots, self._device, with_images=with_images)
        if remark:
            _LOGGER.warning(remark)
        ring = self._ring = BlockRing(spec, num_slots, place, with_images=with_images)
        for name, derive in self._derive.items():
            ring.keep(name, derive)
        if self._priority is not None:
            self.sampler = PrioritisedRows(Priorities(ring, *self._priority), self._generator)
        self._own = self._buffer(ring, self.sampler or UniformRows(self._generator))
        self._held_out = self._buffer(ring, UniformRows(self._generator, from_held_out=True))
        return ring

    def _buffer(self, ring: BlockRing, sampler: RandomSampler) -> ReplayBuffer:
        """Returns a torchrl buffer that draws `Drawn` from a ring."""

        def collate(found: Transitions) -> Drawn:
            seen = FEATURES if FEATURES in ring.observations else "image"
            count = len(found.num_steps)
            return Drawn(
                found,
                image=ring.gather(seen, found.observation),
                floats=ring.gather("floats", found.observation),
                next_image=ring.gather(seen, found.next_observation),
                next_floats=ring.gather("floats", found.next_observation),
                next_guide=ring.gather(GUIDE, found.next_observation)
                if GUIDE in ring.observations
                else torch.zeros(count, 0),
                row=torch.empty(0, dtype=torch.int64),
                weight=torch.ones(count),
            )

        storage = TransitionStorage(ring, self._max_steps, past_exploring=self._past_exploring)
        return ReplayBuffer(storage=storage, sampler=sampler, writer=ImmutableDatasetWriter(), collate_fn=collate)

    def _rings(self) -> list[BlockRing]:
        return [ring for ring in (self._ring, self._demonstrations) if ring is not None]


def _draw(buffer: ReplayBuffer, count: int) -> Drawn:
    drawn, info = buffer.sample(count, return_info=True)
    return drawn._replace(row=info["index"], weight=info.get("_weight", drawn.weight))


class RaceSplit:
    """Randomly holds out races: they measure predictions of returns and are never learned from.

    Whole races, not decisions: neighbouring decisions are nearly the same, so learning from one leaks into the next.
    The draws depend only on the seed and the number of decisions so far.
    """

    def __init__(self, share: float, seed: int) -> None:
        """Takes the share of races to hold out, 0 to 1, and the seed of the draws."""
        self.share, self._seed = share, seed
        self._is_held_out: dict[int, NDArray[np.bool_]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the side of each stream's current races."""
        return {"is_held_out": {stream: torch.from_numpy(cars) for stream, cars in self._is_held_out.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        self._is_held_out = {int(stream): cars.numpy() for stream, cars in state["is_held_out"].items()}

    def split(self, block: ExperienceBlock, stream: int, num_env_steps: int) -> NDArray[np.bool_]:
        """Returns the mask [T, N] of a block's decisions in held-out races.

        Args:
            block: the next one of its stream.
            stream: source of the block; a race that continues from the stream's last block stays on its side.
            num_env_steps: decisions of all streams before this block.
        """
        rng = np.random.default_rng((self._seed, num_env_steps))
        now = self._is_held_out.get(stream)
        if now is None or len(now) != block.spec.num_cars:
            now = rng.random(block.spec.num_cars) < self.share
        result = np.empty(block.is_reset.shape, np.bool_)
        drawn = rng.random(block.is_reset.shape) < self.share
        for step in range(block.spec.num_steps):
            now = np.where(block.is_reset[step], drawn[step], now)  # a reset begins the next race
            result[step] = now
        self._is_held_out[stream] = now
        return result


def demonstration_ring(blocks: Sequence[ExperienceBlock], device: torch.device = CPU) -> BlockRing:
    """Stores demonstrations, races of any length, in a ring that is sampled like other experience.

    Args:
        blocks: at least one; lengths and numbers of cars may differ, image shape and floats may not.
        device: of the network that learns from them; it holds the demonstrations if they fit.

    Raises:
        ValueError: if there are no blocks or no transition in them, or their image shapes differ.
    """
    if not any(block.num_transitions for block in blocks):
        message = "there are no demonstrations to store"
        raise ValueError(message)
    spec = replace(blocks[0].spec, num_steps=PIECE_STEPS, num_cars=1)
    num_pieces = sum(block.spec.num_cars * -(-block.spec.num_steps // PIECE_STEPS) for block in blocks)
    num_slots = max(2, num_pieces)
    place, _ = place_of_ring(spec, num_slots, device)
    ring = BlockRing(spec, num_slots, place)
    races = [(block, car) for block in blocks for car in range(block.spec.num_cars)]
    for stream, (block, car) in enumerate(races):
        for piece in _pieces(block, car, spec):
            ring.insert(piece, stream)
    return ring


def _pieces(block: ExperienceBlock, car: int, spec: BlockSpec) -> Iterator[ExperienceBlock]:
    for number, start in enumerate(range(0, block.spec.num_steps, PIECE_STEPS)):
        piece = new_block(spec)
        length = min(PIECE_STEPS, block.spec.num_steps - start)
        for name, (shape, _) in spec.layout().items():
            if shape:
                extra = shape[0] - PIECE_STEPS  # observations have one row more
                getattr(piece, name)[: length + extra, 0] = getattr(block, name)[start : start + length + extra, car]
        piece.is_reset[length:] = True
        piece.number[...] = number
        yield piece
