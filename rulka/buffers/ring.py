"""A ring buffer of experience blocks that stores every frame once.

A block is stored unchanged, with its last observation, so a frame costs (T + 1) / T of its size. If L frames are seen
at once, the ring stores the newest frame of each observation, preceded by the older ones of the first: (T + L) / T.
Drawing an observation stacks its frames; a race's first frame replaces those before it. Blocks of one stream are
linked, so that transitions of several decisions run across them. Blocks are written in arrival order; the oldest is
overwritten next.
The ring can store the output of a frozen network with each observation, to compute it once instead of at every draw; or
store it instead of the image, which is several times as large.
Two flat int64 indices address a ring of blocks of T decisions by N cars:
- a *row* is a decision, (slot T + step) N + car, with 0 <= step < T;
- an *observation index* is an observation, (slot (T + 1) + step) N + car, with 0 <= step <= T: a block stores its last
  observation as well. `observation_index` maps a row to the observation that its decision was made on.
Dimensions: S slots, T decisions, N cars, L frames seen at once, H x W pixels, F floats, E image features, A actions, B
transitions, K actions of a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.machine.device import CPU, free_bytes, on_host, upload_copy

NO_SLOT = -1

_DECISION_FIELDS = ("potential", "action", "reward", "terminated", "truncated", "is_reset", "is_greedy")
"""Block fields that compiled code reads."""


class RingArrays(NamedTuple):
    """All fields of all slots except observations, for compiled code; see `ExperienceBlock`."""

    potential: NDArray[np.float32]  # [S, T + 1, N]
    action: NDArray  # [S, T, N, K] uint8; float32 if decisions are continuous
    reward: NDArray[np.float32]  # [S, T, N], as the flags below
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    is_greedy: NDArray[np.bool_]
    is_held_out: NDArray[np.bool_]  # in a held-out race, which is never learned from
    next_slot: NDArray[np.int64]  # [S] the block that follows in the same stream, or NO_SLOT


def observation_index(ring: RingArrays, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Maps rows [B] to the indices [B] of the observations that the decisions were made on."""
    _, block_steps, num_cars = ring.reward.shape
    return rows + rows // (block_steps * num_cars) * num_cars


LARGEST_SHARE = 0.5
"""Largest share of a device's free memory for a ring; networks, batches and cuDNN's workspaces need the rest."""


def place_of_ring(
    spec: BlockSpec, num_slots: int, device: torch.device, *, with_images: bool = True
) -> tuple[torch.device, str]:
    """Returns the device for the images and floats of a ring, and one line about it, empty if there is no choice.

    Args:
        spec: shape of every block.
        num_slots: capacity in blocks.
        device: of the network that learns from them; used if they fit into `LARGEST_SHARE` of its free memory.
        with_images: whether the ring has images.
    """
    if device.type == "cpu":
        return CPU, ""
    num_frames = num_slots * (spec.num_steps + spec.frames) * spec.num_cars
    num_rows = num_slots * (spec.num_steps + 1) * spec.num_cars
    needed = with_images * num_frames * spec.height * spec.width + 4 * num_rows * spec.num_floats
    free = free_bytes(device)
    if needed <= LARGEST_SHARE * free:
        return device, f"experience lies on {device}: {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB that were free"
    limit = f"{LARGEST_SHARE:.0%} of the {free / 1e9:.1f} GB that are free on {device}"
    return CPU, f"experience lies in main memory: its {needed / 1e9:.1f} GB are more than {limit}"


Derive = Callable[[Tensor, Tensor], Tensor]
"""Maps images [B, L, H, W] uint8 and raw floats [B, F] to an output [B, ...] that is stored per observation."""


class BlockRing:
    """A ring of experience blocks.

    Attributes:
        spec: shape of every block.
        arrays: all but the observations, in main memory.
        observations: stored ones by name, on one device: `floats` [S, T + 1, N, F], `image` [S, T + L, N, H W] if
            images are stored, and derived columns [S, T + 1, N, ...].
        with_images: True if images are stored.
        num_inserted: blocks inserted so far, overwritten ones included.
    """

    def __init__(
        self,
        spec: BlockSpec,
        num_slots: int,
        device: torch.device = CPU,
        *,
        with_images: bool = True,
        derived: Mapping[str, Derive] | None = None,
    ) -> None:
        """Allocates memory; the system commits main memory only as it is written, a device commits it at once.

        Args:
            spec: shape of every block.
            num_slots: capacity in blocks; at least two, so that one can continue another.
            device: of the observations.
            with_images: whether images are stored.
            derived: functions of the derived columns by name; the owner calls `update_derived` after changing them.

        Raises:
            ValueError: if `num_slots` is less than two.
        """
        if num_slots < 2:
            raise ValueError(f"the ring must hold at least two blocks of experience, got room for {num_slots}")
        self.spec = spec
        self.num_slots = num_slots
        self.with_images = with_images
        self.num_inserted = 0
        layout = spec.layout()
        decided = {name: np.empty((num_slots, *layout[name][0]), layout[name][1]) for name in _DECISION_FIELDS}
        is_held_out = np.zeros(decided["is_reset"].shape, np.bool_)
        self.arrays = RingArrays(**decided, is_held_out=is_held_out, next_slot=np.full(num_slots, NO_SLOT))
        self.observations = {
            "floats": torch.empty((num_slots, *layout["floats"][0]), dtype=torch.float32, device=device)
        }
        if with_images:
            shape = num_slots, spec.num_steps + spec.frames, spec.num_cars, spec.height * spec.width
            self.observations["image"] = torch.empty(shape, dtype=torch.uint8, device=device)
        self._newest: dict[int, int] = {}
        self._numbers: dict[int, int] = {}  # of each stream's last block
        self._derived: Mapping[str, Derive] = {} if derived is None else derived

    @property
    def num_blocks(self) -> int:
        """Blocks in the ring."""
        return min(self.num_inserted, self.num_slots)

    @property
    def num_rows(self) -> int:
        """Decisions in the ring, resets included; stored rows are 0 to `num_rows` - 1."""
        return self.num_blocks * self.spec.num_env_steps

    def insert(self, block: ExperienceBlock, stream: int, is_held_out: NDArray[np.bool_] | None = None) -> int:
        """Copies a block in, over the oldest one if the ring is full.

        Args:
            block: of this ring's shape.
            stream: its source. A block continues the last one of its stream if its number is the next one.
            is_held_out: [T, N] mask of decisions in held-out races, see `RaceSplit`; None holds out none.

        Returns:
            The slot it was written to.

        Raises:
            ValueError: if the block has another shape.
        """
        if block.spec != self.spec:
            raise ValueError(f"a block of {block.spec} does not fit a ring of {self.spec}")
        slot = self.num_inserted % self.num_slots
        self._newest = {name: newest for name, newest in self._newest.items() if newest != slot}
        before, number = self._newest.get(stream), int(block.number)
        if before is not None and number == self._numbers[stream] + 1:
            self.arrays.next_slot[before] = slot
        self._numbers[stream] = number
        for name in _DECISION_FIELDS:
            getattr(self.arrays, name)[slot] = getattr(block, name)
        self._store_observations("floats", slot, torch.from_numpy(block.floats))
        if self.with_images:
            self._store_observations("image", slot, torch.from_numpy(_each_once(block.image)).flatten(2))
        self._derive_slot(slot, None if self.with_images else torch.from_numpy(block.image).flatten(0, 1))
        self.arrays.is_held_out[slot] = False if is_held_out is None else is_held_out
        self.arrays.next_slot[slot] = NO_SLOT
        self._newest[stream] = slot
        self.num_inserted += 1
        return slot

    def update_derived(self) -> None:
        """Computes missing derived columns of all stored observations, and drops columns that are no longer wanted.

        Raises:
            ValueError: if there are stored blocks without images.
        """
        for name in self.observations.keys() - {"floats", "image", *self._derived}:
            del self.observations[name]
        if self._derived.keys() <= self.observations.keys():
            return
        if self.num_blocks and not self.with_images:
            raise ValueError("the images of what is stored are not")
        for slot in range(self.num_blocks):
            self._derive_slot(slot, None)

    def gather(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Copies one field of some observations out of the blocks.

        Args:
            name: "image", "floats" or a derived column.
            index: [B] observation indices.

        Returns:
            [B, ...], on the device of the observations.
        """
        if name == "image" and self.spec.frames > 1:
            index = self._frames_seen(index)
        stored = self.observations[name]
        (uploaded,) = upload_copy((torch.from_numpy(index),), stored.device)
        out = stored.flatten(0, 2).index_select(0, uploaded)
        return out.view(-1, *self.spec.image_shape) if name == "image" else out

    def _frames_seen(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the flat indices [B L] among stored frames of what observations [B] see, oldest first."""
        num_steps, num_cars, frames = self.spec.num_steps, self.spec.num_cars, self.spec.frames
        car, step, slot = index % num_cars, index // num_cars % (num_steps + 1), index // (num_cars * (num_steps + 1))
        newest = (slot * (num_steps + frames) + step + frames - 1) * num_cars + car
        seen = np.empty((len(index), frames), np.int64)
        seen[:, -1] = newest
        is_same_race = np.ones(len(index), np.bool_)
        for back in range(1, frames):
            decision = step - back  # a block stores the frames before its first observation as seen
            is_same_race &= (decision < 0) | ~self.arrays.is_reset[slot, np.maximum(decision, 0), car]
            seen[:, -1 - back] = np.where(is_same_race, newest - back * num_cars, seen[:, -back])
        return seen.reshape(-1)

    def _derive_slot(self, slot: int, image: Tensor | None) -> None:
        """Computes a block's derived columns from its images [(T + 1) N, L, H, W]; None uses the stored images."""
        if not self._derived:
            return
        floats = self.observations["floats"][slot]
        num_rows = (self.spec.num_steps + 1) * self.spec.num_cars
        if image is None:
            image = self.gather("image", np.arange(slot * num_rows, (slot + 1) * num_rows))
        for name, derive in self._derived.items():
            made = derive(image.to(floats.device), floats.flatten(0, 1)).to(floats.device)
            self._store_observations(name, slot, made.unflatten(0, floats.shape[:2]))

    def _store_observations(self, name: str, slot: int, values: Tensor) -> None:
        """Writes one field of a slot's observations; the first call allocates it for all slots."""
        device = self.observations["floats"].device
        if name not in self.observations:
            self.observations[name] = torch.empty((self.num_slots, *values.shape), dtype=values.dtype, device=device)
        self.observations[name][slot] = on_device((values,), device)[0]

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def numbers(self) -> range:
        """Returns the numbers of the stored blocks, in order of insertion; the first block ever has number 0."""
        return range(self.num_inserted - self.num_blocks, self.num_inserted)

    def ring_state(self) -> dict[str, Any]:
        """Returns the position and the links of the ring: everything but the content of its blocks."""
        links = torch.from_numpy(self.arrays.next_slot[: self.num_blocks].copy())
        derived = {
            name: str(self.observations[name].dtype).removeprefix("torch.") for name in self._stored_without_images()
        }
        state = {"num_inserted": self.num_inserted, "newest": dict(self._newest), "numbers": dict(self._numbers)}
        return state | {"next_slot": links, "derived": derived}

    def block_arrays(self, number: int) -> dict[str, NDArray]:
        """Returns the arrays of block `number`: views that the ring may overwrite later, or copies."""
        slot = number % self.num_slots
        decided = {name: getattr(self.arrays, name)[slot] for name in (*_DECISION_FIELDS, "is_held_out")}
        seen = ("floats", "image") if self.with_images else ("floats", *self._stored_without_images())
        return decided | {name: _bits(self.observations[name][slot]) for name in seen}

    def load_ring(self, state: Mapping[str, Any], blocks: Mapping[int, Mapping[str, NDArray]]) -> None:
        """Resumes from the `ring_state` and blocks of a ring of the same shape; copies them.

        Raises:
            ValueError: if that ring stored other outputs, or a block is missing.
        """
        self.num_inserted = int(state["num_inserted"])
        wanted = [] if self.with_images else sorted(self._derived)
        if sorted(state["derived"]) != wanted:
            raise ValueError(f"stored are {sorted(state['derived']) or 'images'}, wanted are {wanted or 'images'}")
        if set(blocks) != set(self.numbers()):
            raise ValueError(f"{len(blocks)} stored blocks are not the last {self.num_blocks} of {self.num_inserted}")
        for number, arrays in blocks.items():
            slot = number % self.num_slots
            for name in (*_DECISION_FIELDS, "is_held_out"):
                getattr(self.arrays, name)[slot] = arrays[name]
            for name in ("floats", "image") if self.with_images else ("floats",):
                self._store_observations(name, slot, torch.from_numpy(arrays[name]))
            for name, dtype in state["derived"].items():
                self._store_observations(name, slot, torch.from_numpy(arrays[name]).view(_DTYPES[dtype]))
        self.arrays.next_slot[: self.num_blocks] = state["next_slot"].numpy()
        self._newest = {int(stream): int(slot) for stream, slot in state["newest"].items()}
        self._numbers = {int(stream): int(number) for stream, number in state["numbers"].items()}
        if self.with_images:
            self.update_derived()

    def _stored_without_images(self) -> list[str]:
        """Returns the names of the derived columns that are stored instead of images."""
        return [] if self.with_images else [name for name in self._derived if name in self.observations]


def on_device(columns: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """Returns tensors on a device; those already there are passed on."""
    if device.type == "cpu":
        return list(columns)
    return [upload_copy((each,), device)[0] if each.device.type == "cpu" else each for each in columns]


def _each_once(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the distinct frames [T + L, N, H, W] of observations [T + 1, N, L, H, W]."""
    if image.shape[2] == 1:
        return image[:, :, 0]
    return np.concatenate([image[0].swapaxes(0, 1)[:-1], image[:, :, -1]])


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _bits(tensor: Tensor) -> NDArray:
    """Returns a tensor as a numpy array; bfloat16 as its bits in int16."""
    (copied,) = on_host(tensor)
    return (copied.view(torch.int16) if tensor.dtype == torch.bfloat16 else copied).numpy()
