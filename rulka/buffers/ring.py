"""A ring of experience blocks, every frame stored once: what replay draws from.

A block is kept as it came, with its last observation, so a frame costs (T + 1) / T of its size. Where L frames are seen
at once, the newest of each observation is kept, and before them the older ones of the first, which makes (T + L) / T;
they are put together when an observation is drawn, the first frame of a race in the place of those before it. Blocks of
one stream are linked, so that transitions of several decisions run across them. Written in arrival order, the oldest
block is the next to be overwritten.
The output of a frozen network for an observation can be kept beside it (`derived`), so that it is computed once and not
whenever the observation is drawn; or in place of its image, which is several times as large.
Dimensions: S slots, T decisions, N cars, L frames seen at once, H x W pixels, F floats, E image features, A actions, B
of a batch. A *row* is the flat index of a decision, (slot T + step) N + car.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.buffers.experience import BlockSpec, ExperienceBlock, Piece
from rulka.device import CPU, free_bytes, on_host, upload_copy

NO_SLOT = -1

_FIELDS = (
    "image",
    "floats",
    "potential",
    "action",
    "reward",
    "terminated",
    "truncated",
    "is_reset",
    "is_greedy",
)


_SEEN = ("image", "floats")
"""Nearly all of a block, which no compiled code looks at: may lie on a device."""


class RingArrays(NamedTuple):
    """Arrays of all slots, as compiled code takes them; see `ExperienceBlock` for the meaning of the fields.

    Images and floats have no slots where they lie on a device.
    """

    image: NDArray[np.uint8]  # [S, T + L, N, H W]
    floats: NDArray[np.float32]  # [S, T + 1, N, F]
    potential: NDArray[np.float32]  # [S, T + 1, N]
    action: NDArray  # [S, T, N] uint8, [S, T, N, K] for chunks of actions; float32 where decisions are numbers
    reward: NDArray[np.float32]  # [S, T, N], as all that follow
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    is_greedy: NDArray[np.bool_]
    is_held_out: NDArray[np.bool_]  # its race is kept for measuring and never learned from
    next_slot: NDArray[np.int64]  # [S] the block that follows in the same stream, or NO_SLOT


LARGEST_SHARE = 0.5
"""Of a device's free memory that a ring may take: networks, batches and what cuDNN asks for need the rest."""


def place_of_ring(
    spec: BlockSpec, num_slots: int, device: torch.device, *, with_images: bool = True
) -> tuple[torch.device, str]:
    """Returns where the images and floats of a ring shall lie, and one line about it, empty if there is no choice.

    Args:
        spec: shape of every block.
        num_slots: blocks kept.
        device: of the network that learns from them; it is taken where they fit into `LARGEST_SHARE` of what is free.
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
"""Maps images [B, L, H, W] uint8 and raw floats [B, F] to something [B, ...] that is kept of each observation."""


class BlockRing:
    """A ring of experience blocks.

    Attributes:
        spec: shape of every block.
        arrays: what is stored in main memory.
        on_device: images [S, T + L, N, H W] and floats [S, T + 1, N, F] by name, where they lie on a device.
        derived: [S, T + 1, N, ...] outputs kept beside every observation, by name; they lie where the floats do.
        with_images: whether images are stored; without, `keep` has to come before the first block.
        num_inserted: blocks inserted so far, overwritten ones included.
    """

    def __init__(
        self, spec: BlockSpec, num_slots: int, device: torch.device = CPU, *, with_images: bool = True
    ) -> None:
        """Reserves memory, which the system hands out only as it is written; a device hands it out at once.

        Args:
            spec: shape of every block.
            num_slots: blocks kept; at least two, so that one can continue another.
            device: where images and floats lie.
            with_images: whether images are stored.

        Raises:
            ValueError: if `num_slots` is less than two.
        """
        if num_slots < 2:
            message = f"the ring must hold at least two blocks of experience, got room for {num_slots}"
            raise ValueError(message)
        self.spec = spec
        self.num_slots = num_slots
        self.with_images = with_images
        self.num_inserted = 0
        layout = spec.layout()
        layout["image"] = ((spec.num_steps + spec.frames, spec.num_cars, spec.height * spec.width), np.uint8)
        slots = dict.fromkeys(_FIELDS, num_slots) | {"image": num_slots * with_images}
        self.on_device: dict[str, Tensor] = {}
        if device.type != "cpu":
            for name, dtype in zip(_SEEN, (torch.uint8, torch.float32), strict=True):
                self.on_device[name] = torch.empty((slots[name], *layout[name][0]), dtype=dtype, device=device)
                slots[name] = 0
        arrays = {name: np.empty((slots[name], *layout[name][0]), layout[name][1]) for name in _FIELDS}
        is_held_out = np.zeros((num_slots, *layout["is_reset"][0]), np.bool_)
        self.arrays = RingArrays(**arrays, is_held_out=is_held_out, next_slot=np.full(num_slots, NO_SLOT))
        self._newest: dict[int, int] = {}
        self.derived: dict[str, Tensor] = {}
        self._derive: dict[str, Derive] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in the ring."""
        return min(self.num_inserted, self.num_slots)

    @property
    def rows_per_slot(self) -> int:
        """T N: the rows of slot s are those from s T N on."""
        return self.spec.num_steps * self.spec.num_cars

    @property
    def num_rows(self) -> int:
        """Decisions in the ring, resets included; stored rows are 0 to `num_rows` - 1."""
        return self.num_blocks * self.rows_per_slot

    def is_trainable(self, slot: int) -> NDArray[np.bool_]:
        """Returns [T N] which rows of a slot are transitions of races that are not held out."""
        return ~(self.arrays.is_reset[slot] | self.arrays.is_held_out[slot]).reshape(-1)

    def insert(self, block: ExperienceBlock, stream: int, is_held_out: NDArray[np.bool_] | None = None) -> int:
        """Copies a block in, over the oldest one when the ring is full.

        Args:
            block: of this ring's shape.
            stream: who made it. A block continues the last one of its stream if it starts with the observation that
                ended the other; a restarted collector does not, and so begins anew.
            is_held_out: [T, N] decisions of races that are never learned from, see `RaceSplit`; None
                holds out none.

        Returns:
            The slot it was written to.

        Raises:
            ValueError: if the block has another shape.
        """
        if block.spec != self.spec:
            message = f"a block of {block.spec} does not fit a ring of {self.spec}"
            raise ValueError(message)
        slot = self.num_inserted % self.num_slots
        self._newest = {name: newest for name, newest in self._newest.items() if newest != slot}
        before = self._newest.get(stream)
        if before is not None and np.array_equal(self._last_floats(before), block.floats[0]):
            self.arrays.next_slot[before] = slot
        for name in self._stored:
            self._write(name, slot, _each_once(block.image) if name == "image" else getattr(block, name))
        self._derive_slot(slot, None if self.with_images else torch.from_numpy(block.image).flatten(0, 1))
        self.arrays.is_held_out[slot] = False if is_held_out is None else is_held_out
        self.arrays.next_slot[slot] = NO_SLOT
        self._newest[stream] = slot
        self.num_inserted += 1
        return slot

    def keep(self, name: str, derive: Derive) -> None:
        """Keeps what a function makes of every observation from now on, and of those that are stored.

        Args:
            name: of the output.
            derive: maps images [B, L, H, W] uint8 and raw floats [B, F] to [B, ...]; has to stay the same function.

        Raises:
            ValueError: if images of stored blocks would be needed, and there are none.
        """
        self.drop(name)
        self._derive[name] = derive
        self._derive_all()

    def drop(self, name: str) -> None:
        """Drops the output of a name, whose function is about to change."""
        self._derive.pop(name, None)
        self.derived.pop(name, None)

    def ring_state(self) -> dict[str, Any]:
        """Returns the position and the links of the ring: all but the content of its blocks."""
        links = torch.from_numpy(self.arrays.next_slot[: self.num_blocks].copy())
        kept = {} if self.with_images else {name: _name_of(tensor.dtype) for name, tensor in self.derived.items()}
        return {"num_inserted": self.num_inserted, "newest": dict(self._newest), "next_slot": links, "kept": kept}

    def numbers(self) -> range:
        """Returns the numbers of the stored blocks, in order of insertion; the first block ever has number 0."""
        return range(self.num_inserted - self.num_blocks, self.num_inserted)

    def pieces(self) -> Mapping[int, Piece]:
        """Returns the stored blocks by number, each read when it is asked for; see `Experience`."""
        return _Pieces(self)

    def block_arrays(self, number: int) -> dict[str, NDArray]:
        """Returns the arrays of the block of a number: views that the ring may overwrite later, or copies."""
        slot = number % self.num_slots
        read = {name: self._read(name, slot) for name in (*self._stored, "is_held_out")}
        # In the place of the images; numpy knows no bfloat16.
        kept = {} if self.with_images else {name: _bits(tensor[slot]) for name, tensor in self.derived.items()}
        return read | kept

    def load_ring(self, state: Mapping[str, Any], blocks: Mapping[int, Mapping[str, NDArray]]) -> None:
        """Resumes from the `ring_state` and blocks of a ring of the same shape; copies them.

        Raises:
            ValueError: if that ring had another shape or kept something else, or a block is missing.
        """
        self.num_inserted = int(state["num_inserted"])
        derived = {} if self.with_images else self._reserve_derived()
        if set(state["kept"]) != set(derived):
            message = f"stored are {sorted(state['kept']) or 'images'}, wanted are {sorted(derived) or 'images'}"
            raise ValueError(message)
        if set(blocks) != set(self.numbers()):
            message = f"{len(blocks)} stored blocks are not the last {self.num_blocks} of {self.num_inserted}"
            raise ValueError(message)
        for number, arrays in blocks.items():
            for name, target in derived.items():
                target[number % self.num_slots] = torch.from_numpy(arrays[name]).view(_DTYPES[state["kept"][name]])
            for name in (*self._stored, "is_held_out"):
                array = getattr(self.arrays, name)
                if arrays[name].shape != array.shape[1:] or arrays[name].dtype != array.dtype:
                    message = f"stored {name!r} of shape {arrays[name].shape} does not fit blocks of {self.spec}"
                    raise ValueError(message)
                self._write(name, number % self.num_slots, arrays[name])
        self.arrays.next_slot[: self.num_blocks] = state["next_slot"].numpy()
        self._newest = {int(stream): int(slot) for stream, slot in state["newest"].items()}
        if self.with_images:
            self._derive_all()

    def gather(self, name: str, index: NDArray[np.int64]) -> Tensor:
        """Copies a part of observations out of the blocks.

        Args:
            name: "image", "floats" or that of an output kept beside them.
            index: [B] flat indices of observations, as in `rulka.buffers.transitions.Transitions`.

        Returns:
            [B, ...]; on the device where images and floats lie.
        """
        if name == "image" and self.spec.frames > 1:
            index = self._frames_seen(index)
        stored = self.derived.get(name, self.on_device.get(name))
        if stored is None:
            array = getattr(self.arrays, name)
            array = array.reshape(-1, array.shape[-1])
            out = torch.empty(len(index), array.shape[-1], dtype=torch.uint8 if name == "image" else torch.float32)
            np.take(array, index, axis=0, out=out.numpy(), mode="clip")
        else:
            (uploaded,) = upload_copy((torch.from_numpy(index),), stored.device)
            out = stored.flatten(0, 2).index_select(0, uploaded)
        return out.view(-1, *self.spec.image_shape) if name == "image" else out

    def _frames_seen(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the flat indices [B L] of the frames that observations [B] consist of, oldest first."""
        num_steps, num_cars, frames = self.spec.num_steps, self.spec.num_cars, self.spec.frames
        car, step, slot = index % num_cars, index // num_cars % (num_steps + 1), index // (num_cars * (num_steps + 1))
        newest = (slot * (num_steps + frames) + step + frames - 1) * num_cars + car
        seen = np.empty((len(index), frames), np.int64)
        seen[:, -1] = newest
        is_same_race = np.ones(len(index), np.bool_)
        for back in range(1, frames):
            decision = step - back  # what came before the first observation is in the block as it was seen
            is_same_race &= (decision < 0) | ~self.arrays.is_reset[slot, np.maximum(decision, 0), car]
            seen[:, -1 - back] = np.where(is_same_race, newest - back * num_cars, seen[:, -back])
        return seen.reshape(-1)

    @property
    def _stored(self) -> tuple[str, ...]:
        """Which parts of a block are stored."""
        return _FIELDS if self.with_images else tuple(name for name in _FIELDS if name != "image")

    def _derive_all(self) -> None:
        if self._derive and self.num_blocks and not self.with_images:
            message = "the images of what is stored are not"
            raise ValueError(message)
        for slot in range(self.num_blocks):
            self._derive_slot(slot, None)

    def _derive_slot(self, slot: int, image: Tensor | None) -> None:
        """Computes the outputs kept of a block, from its images [(T + 1) N, L, H, W] or from those that are stored."""
        if not self._derive:
            return
        floats = self._floats[slot]
        image = self._images(slot) if image is None else image.to(floats.device)
        for name, derive in self._derive.items():
            made = derive(image, floats.flatten(0, 1)).to(floats.device)
            if name not in self.derived:
                self.derived[name] = self._empty_derived(made)
            self.derived[name][slot] = made.unflatten(0, floats.shape[:2])

    def _images(self, slot: int) -> Tensor:
        """Returns the images [(T + 1) N, L, H, W] of a slot, where they are stored."""
        if self.spec.frames == 1:
            stored = self.on_device["image"] if self.on_device else torch.from_numpy(self.arrays.image)
            return stored[slot].view(-1, *self.spec.image_shape)
        rows = (self.spec.num_steps + 1) * self.spec.num_cars
        return self.gather("image", np.arange(slot * rows, (slot + 1) * rows))

    @property
    def _floats(self) -> Tensor:
        return self.on_device["floats"] if self.on_device else torch.from_numpy(self.arrays.floats)

    def _empty_derived(self, made: Tensor) -> Tensor:
        """Reserves memory for what was made of some observations, and will be of all."""
        shape = (self.num_slots, self.spec.num_steps + 1, self.spec.num_cars, *made.shape[1:])
        return torch.empty(shape, dtype=made.dtype, device=made.device)

    def _reserve_derived(self) -> dict[str, Tensor]:
        """Returns memory for all that is kept, whose shapes and types one observation of nothing tells."""
        floats = torch.zeros(1, self.spec.num_floats, device=self._floats.device)
        image = torch.zeros(1, *self.spec.image_shape, dtype=torch.uint8, device=floats.device)
        made = {name: derive(image, floats).to(floats.device) for name, derive in self._derive.items()}
        self.derived = {name: self._empty_derived(one) for name, one in made.items()}
        return self.derived

    def _write(self, name: str, slot: int, values: NDArray) -> None:
        """Writes one field of a slot."""
        if name not in self.on_device:
            target = getattr(self.arrays, name)[slot]
            target[...] = values.reshape(target.shape)
            return
        target = self.on_device[name][slot]
        (copied,) = upload_copy((torch.from_numpy(values.reshape(target.shape)),), target.device)
        target.copy_(copied)

    def _read(self, name: str, slot: int) -> NDArray:
        if name not in self.on_device:
            return getattr(self.arrays, name)[slot]
        return on_host(self.on_device[name][slot])[0].numpy()

    def _last_floats(self, slot: int) -> NDArray[np.float32]:
        """Returns the floats [N, F] of the observation that a block ends with."""
        if not self.on_device:
            return self.arrays.floats[slot, -1]
        return on_host(self.on_device["floats"][slot, -1])[0].numpy()


class _Pieces(Mapping[int, Piece]):
    def __init__(self, ring: BlockRing) -> None:
        self._ring = ring

    def __getitem__(self, number: int) -> Piece:
        if number not in self._ring.numbers():
            raise KeyError(number)
        return self._ring.block_arrays(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ring.numbers())

    def __len__(self) -> int:
        return self._ring.num_blocks


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _name_of(dtype: torch.dtype) -> str:
    return next(name for name, each in _DTYPES.items() if each == dtype)


def _bits(tensor: Tensor) -> NDArray:
    """Returns numbers as numpy can hold them, which for bfloat16 are their bits as int16."""
    (copied,) = on_host(tensor)
    return (copied.view(torch.int16) if tensor.dtype == torch.bfloat16 else copied).numpy()


def _each_once(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the frames [T + L, N, H, W] that observations [T + 1, N, L, H, W] consist of."""
    if image.shape[2] == 1:
        return image[:, :, 0]
    return np.concatenate([image[0].swapaxes(0, 1)[:-1], image[:, :, -1]])
