"""The frame dataset, `data/frames`: observations and action labels of every race.

    index.json            schema_version, contracts, main_track (UID of the map that agents are trained on), shards,
                          races with their map and split, statistics, the SHA-256 of every file of a shard, and its own;
                          written last
    <shard>/image.npy     uint8 [N, 1, H, W]
    <shard>/floats.npy    float32 [N, 184], unnormalised
    <shard>/action.npy    uint8 [N] index of the action held longest; ties go to the one held first
    <shard>/action_share.npy  float32 [N, A] share of the decision for which each action was held; rows sum to 1
    <shard>/tick_actions.npy  uint8 [N, K] action of every 10 ms tick, from which the labels above derive; analog
                          steering becomes key taps, see `rulka.recordings.controls.steer_to_key_taps`
    <shard>/controls.npy  float32 [N, 3] mean over the decision of raw steer in [-1, 1] (positive right), gas and brake
    <shard>/time_ms.npy   int32 [N] race time of the frame
    <shard>/along_m.npy   float32 [N] progress along the line of the race's own track
    <shard>/race.npy      int32 [N] index into the races of `index.json`
    README.md, contact_sheet.png   for people

Shards are plain `.npy` files that can be memory-mapped, hold one split only, and never divide a race. Frames of a race
are in time order. Races are split by a hash of their id, see `split.py`. The files of a split are verified
by their checksums when it is opened, so that damaged data is never trained on.
Dimensions: N frames, L frames per observation, H x W pixels, A actions, K ticks of a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.contracts.actions import FORWARD, ActionTable, Parts, action_table, divided, num_parts, shares_of_ticks
from rulka.contracts.artifacts import ObservationContract, actions_to_json
from rulka.contracts.observation import FLOATS, NUM_PREVIOUS_ACTIONS, num_floats
from rulka.datasets.formats.checksums import checksums_of, read_sealed, refuse_damage, write_sealed
from rulka.datasets.formats.sharded import ShardedArray
from rulka.datasets.formats.split import SPLITS, Split
from rulka.machine.errors import UserError
from rulka.stages.graph import remake

SCHEMA_VERSION = 4
INDEX_FILE = "index.json"

_DTYPES: dict[str, type] = {
    "image": np.uint8,
    "floats": np.float32,
    "action": np.uint8,
    "action_share": np.float32,
    "tick_actions": np.uint8,
    "controls": np.float32,
    "time_ms": np.int32,
    "along_m": np.float32,
    "race": np.int32,
}


@dataclass(frozen=True)
class CapturedRace:
    """All frames of one race, in time order.

    Attributes:
        race_id: see `rulka.datasets.formats.races`.
        source: who drove: "recording", "driver", "recovery" or, for races of a policy, "policy".
        map_uid: UID of the map.
        image: [N, 1, H, W] uint8.
        floats: [N, 184] float32.
        action: [N] uint8.
        action_share: [N, A] float32.
        tick_actions: [N, K] uint8.
        controls: [N, 3] float32.
        time_ms: [N] int32.
        along_m: [N] float32.
    """

    race_id: str
    source: str
    map_uid: str
    image: NDArray[np.uint8]
    floats: NDArray[np.float32]
    action: NDArray[np.uint8]
    action_share: NDArray[np.float32]
    tick_actions: NDArray[np.uint8]
    controls: NDArray[np.float32]
    time_ms: NDArray[np.int32]
    along_m: NDArray[np.float32]


@dataclass(frozen=True)
class FrameRace:
    """Entry of one race in the index; its frames are `start` to `start + num_frames` of its split."""

    race_id: str
    source: str
    map_uid: str
    split: Split
    start: int
    num_frames: int

    @property
    def is_recovery(self) -> bool:
        """True for a recovery drive: its actions are labels, which did not lead to its next frames."""
        return self.source == "recovery"


@dataclass(frozen=True)
class FrameIndex:
    """Content of `index.json`."""

    observation: ObservationContract
    actions: dict[str, Any]
    main_track: str
    shards: dict[str, list[str]]
    races: tuple[FrameRace, ...]
    statistics: dict[str, Any]
    checksums: dict[str, str]


class Batch(NamedTuple):
    """A training batch: image [B, L, H, W] uint8, floats [B, F].

    `number` [B] int64 is the frame number in the split, for looking up labels.
    """

    image: torch.Tensor
    floats: torch.Tensor
    number: torch.Tensor


class ActionLabels(NamedTuple):
    """Action labels of each of the K places of decisions.

    Attributes:
        action: [B, K] int64 the action held longest.
        share: [B, K, A] float32 share of every action.
    """

    action: NDArray[np.int64]
    share: NDArray[np.float32]


class Images(NamedTuple):
    """A batch of images only: [B, L, H, W] uint8, or [B, 2, L, H, W], each paired with a later one of its race."""

    image: torch.Tensor


SHARD_FRAMES = 8192
"""About 33 MB per image file at 64 x 64 pixels."""


class FrameWriter:
    """Writes a frame dataset race by race into an existing folder. Call `close` to complete it.

    Args:
        folder: where to write; the caller renames it into place.
        observation: contract of the images and floats.
        actions: table that the labels index.
        main_track: UID of the map that agents are trained on.
        splits: split of every race that will be added, by race id.
        shard_frames: a shard is closed once it holds this many frames or more.
    """

    def __init__(
        self,
        folder: Path,
        *,
        observation: ObservationContract,
        actions: ActionTable,
        main_track: str,
        splits: Mapping[str, Split],
        shard_frames: int = SHARD_FRAMES,
    ) -> None:
        self._folder, self._observation, self._actions, self._main_track = folder, observation, actions, main_track
        self._splits, self._shard_frames = dict(splits), shard_frames
        self._pending: dict[Split, list[dict[str, NDArray]]] = {split: [] for split in SPLITS}
        self._shards: dict[Split, list[str]] = {split: [] for split in SPLITS}
        self._num_frames: dict[Split, int] = dict.fromkeys(SPLITS, 0)
        self._races: list[FrameRace] = []

    def add(self, race: CapturedRace) -> None:
        """Adds all frames of one race.

        Raises:
            UserError: if it holds invalid values, such as non-finite numbers or unknown actions.
        """
        _check_values(race, self._actions)
        split, num_frames = self._splits[race.race_id], len(race.image)
        values = {name: getattr(race, name) for name in _DTYPES if name != "race"}
        values["race"] = np.full(num_frames, len(self._races))
        self._pending[split].append({name: values[name].astype(dtype) for name, dtype in _DTYPES.items()})
        start = self._num_frames[split]
        self._races.append(FrameRace(race.race_id, race.source, race.map_uid, split, start, num_frames))
        self._num_frames[split] += num_frames
        if sum(len(part["image"]) for part in self._pending[split]) >= self._shard_frames:
            self._flush(split)

    def close(self) -> FrameIndex:
        """Writes what is pending and then the index.

        Raises:
            UserError: if no frame of the main track was added for training.
        """
        for split in self._pending:
            self._flush(split)
        if not any(race.split == "train" and race.map_uid == self._main_track for race in self._races):
            raise UserError(f"no frame to learn from was captured on the main track {self._main_track}")
        shards: dict[str, list[str]] = {split: list(names) for split, names in self._shards.items()}
        statistics = _statistics(self._folder, shards, self._races)
        files = [f"{shard}/{name}.npy" for names in shards.values() for shard in names for name in _DTYPES]
        index = FrameIndex(
            observation=self._observation,
            actions=actions_to_json(self._actions),
            main_track=self._main_track,
            shards=shards,
            races=tuple(self._races),
            statistics=statistics,
            checksums=checksums_of(self._folder, files),
        )
        write_index(self._folder, index)
        return index

    def _flush(self, split: Split) -> None:
        parts = self._pending[split]
        if not parts:
            return
        shard = f"{split}-{len(self._shards[split]):05d}"
        (self._folder / shard).mkdir()
        for name in _DTYPES:
            np.save(self._folder / shard / f"{name}.npy", np.concatenate([part[name] for part in parts]))
        self._shards[split].append(shard)
        self._pending[split] = []


class FrameDataset:
    """Frames of one split, memory-mapped.

    Args:
        folder: a frame dataset.
        split: "train", "validation" or "test"; the last two are empty if every map has a single race.
        frames: L, frames per observation: the newest and those of the decisions before it in the same race, padded
            with the race's first frame.
        parts: K equal actions of a decision, or the offsets in ms at which they begin.

    Attributes:
        split: name of the split.
        index: index of the whole dataset.
        races: races of this split.
        images: [N, 1, H, W] uint8 single frames; index it with a slice or an array of frame numbers.
        floats, action, action_share, tick_actions, controls, time_ms, along_m, race_index: see the module, indexed the
            same way. `race_index` points into `index.races`.

    Raises:
        UserError: if the dataset is missing, incomplete, damaged, or of another version, or has no such split.
    """

    def __init__(self, folder: Path, split: Split, frames: int = 1, parts: Parts = 1) -> None:
        self._arguments = folder, split, frames, parts
        self.index = read_index(folder)
        if split not in self.index.shards:
            raise UserError(f"there is no split {split!r}: {folder.as_posix()} has {', '.join(self.index.shards)}")
        self.split, self.races = split, [race for race in self.index.races if race.split == split]
        shards = self.index.shards[split]
        files = (f"{shard}/{name}.npy" for shard in shards for name in _DTYPES)
        refuse_damage(folder, self.index.checksums, files, hint=remake("capture"))
        paths = [folder / shard for shard in shards]
        arrays = {name: _open(paths, name) for name in _DTYPES}
        self.images, self.floats, self.action = arrays["image"], arrays["floats"], arrays["action"]
        self.action_share, self.tick_actions, self.controls = (
            arrays[name] for name in ("action_share", "tick_actions", "controls")
        )
        self.race_index, self.time_ms, self.along_m = arrays["race"], arrays["time_ms"], arrays["along_m"]
        if len(self) != sum(race.num_frames for race in self.races):
            message = f"{folder.as_posix()}: the shards of {split} hold {len(self)} frames, the index says otherwise"
            raise UserError(message, hint=remake("capture"))
        self._back, self._parts, self._places = np.arange(1 - frames, 1), parts, num_parts(parts)
        self._keys = action_table(1).keys()
        self._first = np.concatenate([np.zeros(0, np.int64), *(np.full(r.num_frames, r.start) for r in self.races)])

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"FrameDataset({self.split!r}, {len(self)} frames of {len(self.races)} races)"

    def __reduce__(self) -> tuple[type[FrameDataset], tuple[Any, ...]]:
        """Pickles the arguments only: another process, such as a `DataLoader` worker, opens the files itself."""
        return FrameDataset, self._arguments

    def __getitem__(self, frame: int) -> dict[str, NDArray]:
        """Returns `image` [L, H, W], `floats` [F] and `action` [] or [K] of a frame.

        Raises:
            IndexError: if the number is out of range; negative numbers count from the end.
        """
        number = np.arange(len(self))[frame][None]
        action = self.decided(number).action[0]
        parts = {"image": self.frame_stacks(number)[0], "floats": self.floats_seen(number)[0]}
        return parts | {"action": action[0] if self._places == 1 else action}

    def on_main_track(self) -> list[FrameRace]:
        """Returns the races of this split that were driven on the main track."""
        return [race for race in self.races if race.map_uid == self.index.main_track]

    def frame_stacks(self, frames: NDArray[np.int64] | slice) -> NDArray[np.uint8]:
        """Returns the frame stacks [B, L, H, W] of the given frame numbers, oldest frame first."""
        if len(self._back) == 1:
            return self.images[frames]
        numbers = np.arange(len(self))[frames]
        rows = np.maximum(numbers[:, None] + self._back, self._first[numbers][:, None])
        return self.images[rows.ravel()][:, 0].reshape(*rows.shape, *self.images.shape[2:])

    def decided(self, frames: NDArray[np.int64] | slice) -> ActionLabels:
        """Returns the action labels of the given frame numbers, by place."""
        if self._places == 1:
            return ActionLabels(self.action[frames].astype(np.int64)[:, None], self.action_share[frames][:, None])
        ticks = self.tick_actions[frames].astype(np.int64)
        held = np.split(ticks, np.cumsum(divided(ticks.shape[1], self._parts))[:-1], axis=1)
        shares, actions = zip(*(shares_of_ticks(each, self.action_share.shape[1]) for each in held), strict=True)
        return ActionLabels(np.stack(actions, axis=1), np.stack(shares, axis=1))

    def floats_seen(self, frames: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        """Returns the floats [B, F] of the given frame numbers, with the previous actions of all places.

        Frames of recordings are stored with one action per previous decision, those of a policy's races as it saw them.
        """
        stored = self.floats[frames]
        if stored.shape[1] == num_floats(self._places):
            return stored
        numbers = np.arange(len(self))[frames]
        before = numbers[:, None] + np.arange(-NUM_PREVIOUS_ACTIONS, 0)
        action = self.decided(before.clip(min=0).ravel()).action.reshape(*before.shape, self._places)
        action[before < self._first[numbers][:, None]] = FORWARD
        part, keys = FLOATS["previous_actions"], self._keys[action].reshape(len(numbers), -1)
        return np.concatenate([stored[:, : part.start], keys, stored[:, part.stop :]], axis=1)

    def batch(self, frames: NDArray[np.int64] | slice) -> Batch:
        """Returns copies of the given frame numbers as torch tensors."""
        return Batch(
            torch.from_numpy(self.frame_stacks(frames)),
            torch.from_numpy(self.floats_seen(frames)),
            torch.from_numpy(np.arange(len(self))[frames]),
        )

    def iterate_batches(
        self, *, seed: int, epoch: int, batch_size: int, frames: NDArray[np.int64] | None = None
    ) -> Iterator[Batch]:
        """Yields every frame once, in an order that depends only on `seed` and `epoch`.

        The last batch may be smaller.

        Args:
            seed: seed of all epochs.
            epoch: number of this epoch.
            batch_size: frames in a batch.
            frames: numbers of the frames to yield; None yields all.
        """
        numbers = np.arange(len(self)) if frames is None else frames
        for rows in shuffled(numbers, seed=seed, epoch=epoch, batch_size=batch_size, most=len(numbers)):
            yield self.batch(rows)

    def iterate_images(self, *, seed: int, epoch: int, batch_size: int, later: int = 0) -> Iterator[Images]:
        """Yields the images of `iterate_batches` in the same order, and reads only images.

        With `later`, pairs each image with the one that many decisions later in its race; the last `later` images of a
        race begin no pair.
        """
        numbers = frames_of([replace(race, num_frames=max(race.num_frames - later, 0)) for race in self.races])
        for rows in shuffled(numbers, seed=seed, epoch=epoch, batch_size=batch_size, most=len(numbers)):
            images = self.frame_stacks(rows)
            if later:
                images = np.stack([images, self.frame_stacks(rows + later)], axis=1)
            yield Images(torch.from_numpy(images))


def shuffled(
    numbers: NDArray[np.int64], *, seed: int, epoch: int, batch_size: int, most: int
) -> Iterator[NDArray[np.int64]]:
    """Yields batches of at most `most` frame numbers in total, shuffled by seed and epoch, without repetition."""
    order = np.random.default_rng([seed, epoch]).permutation(numbers)[:most]
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def frames_of(races: Sequence[FrameRace]) -> NDArray[np.int64]:
    """Returns the numbers of all frames of the given races of one split, race after race."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(r.start, r.start + r.num_frames) for r in races)])


def write_index(folder: Path, index: FrameIndex) -> None:
    """Writes `index.json` with its own checksum."""
    write_sealed(folder / INDEX_FILE, SCHEMA_VERSION, asdict(index))


def read_index(folder: Path, *, hint: str = "") -> FrameIndex:
    """Reads and checks `index.json`; `hint` is the remedy in error messages.

    Raises:
        UserError: if it is missing, unreadable, damaged, or of an older or newer version.
    """
    return read_sealed(folder / INDEX_FILE, "frame", SCHEMA_VERSION, FrameIndex, hint=hint or remake("capture"))


def _check_values(race: CapturedRace, actions: ActionTable) -> None:
    """Raises UserError naming the first array and frame with an invalid value."""
    num_frames = len(race.image)
    is_possible = {
        "floats": np.isfinite(race.floats).all(axis=1),
        "controls": np.isfinite(race.controls).all(axis=1),
        "along_m": np.isfinite(race.along_m),
        "action_share": ((race.action_share >= 0.0) & (race.action_share <= 1.0)).all(axis=1),
        "action": race.action < actions.num_actions,
        "tick_actions": (race.tick_actions < actions.num_actions).all(axis=1),
        "time_ms": race.time_ms >= 0,
    }
    for name, is_right in is_possible.items():
        if len(is_right) != num_frames:
            raise UserError(f"race {race.race_id} has {num_frames} images and {len(is_right)} rows of {name}")
        if not is_right.all():
            frame = int(np.argmin(is_right))
            value = getattr(race, name)[frame]
            raise UserError(f"race {race.race_id}: {name} of frame {frame} holds what cannot be: {value!s:.200}")


def check_contract(index: FrameIndex, observation: ObservationContract, actions: ActionTable) -> None:
    """Rejects frames that were captured for another observation or action table.

    Raises:
        UserError: naming the field that differs.
    """
    expected = {"observation": asdict(observation), "actions": actions_to_json(actions)}
    stored = {"observation": asdict(index.observation), "actions": index.actions}
    for part, values in expected.items():
        for name, value in values.items():
            if stored[part].get(name) != value:
                message = f"the frames have {part}.{name} {stored[part].get(name)!r}, expected {value!r}"
                raise UserError(message, hint=remake("capture"))


def _open(shards: Sequence[Path], name: str) -> ShardedArray:
    try:
        return ShardedArray([np.load(shard / f"{name}.npy", mmap_mode="r", allow_pickle=False) for shard in shards])
    except (OSError, ValueError) as error:
        raise UserError(f"a shard of the frames cannot be read: {error}", hint=remake("capture")) from error


def _statistics(folder: Path, shards: Mapping[str, list[str]], races: Sequence[FrameRace]) -> dict[str, Any]:
    """Counts frames and races, and the actions of the training frames."""
    train = [folder / shard for shard in shards["train"]]
    share = _open(train, "action_share")
    return {
        "num_frames": {split: sum(r.num_frames for r in races if r.split == split) for split in shards},
        "num_races": {split: sum(r.split == split for r in races) for split in shards},
        "action_share": [round(float(x), 6) for x in share[:].mean(axis=0, dtype=np.float64)],
    }
