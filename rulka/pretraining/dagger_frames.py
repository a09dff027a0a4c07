"""DAgger dataset: frames that the policy visited during training, labelled by the adviser, added to recorded ones.

    round-<k>/     a frame dataset of that round, see `rulka.datasets.formats.frames`
    takeovers/     that of what people drove in an agent's place, see `rulka.datasets.takeovers`

Dimensions: N recorded frames, M others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable
from rulka.contracts.artifacts import ObservationContract
from rulka.datasets.formats.frames import Batch, CapturedRace, FrameDataset, FrameWriter, shuffled
from rulka.evaluation.dagger import Visit
from rulka.pretraining.cloning import CloningTask, Labels
from rulka.pretraining.params import LabelKind
from rulka.stages.stage import output_folder


class _Part(NamedTuple):
    """A frame dataset, and the numbers of its frames that are learned from."""

    frames: FrameDataset
    taught: NDArray[np.int64]


class Visited:
    """All DAgger rounds so far, takeovers, and the race results of the policy.

    Attributes:
        folder: of the rounds; created with the first one.
        rounds: a plain object per round: its epoch, the race results, and the number of visited frames.
        raced: the same for each evaluation race, from which nothing is learned.
        num_takeover_frames: frames of takeovers that are learned from.
    """

    def __init__(
        self, folder: Path, observation: ObservationContract, table: ActionTable, frames: int, kind: LabelKind
    ) -> None:
        """Starts without any rounds.

        Args:
            folder: of the rounds.
            observation: contract of the frames.
            table: actions of the labels.
            frames: frames per observation.
            kind: of the labels.
        """
        self.folder, self.rounds, self.raced = folder, list[dict[str, Any]](), list[dict[str, Any]]()
        self._observation, self._table, self._frames = observation, table, frames
        self._kind: LabelKind = kind
        self._takeovers, self._parts = list[_Part](), list[_Part]()
        self._task: CloningTask | None = None

    @property
    def num_takeover_frames(self) -> int:
        """Number of frames that people labelled by taking over."""
        return sum(len(part.taught) for part in self._takeovers)

    @property
    def _all(self) -> list[_Part]:
        return self._takeovers + self._parts

    def add_takeovers(self, stretches: Iterable[tuple[CapturedRace, int]]) -> None:
        """Adds what people drove, see `captured_takeovers`; call it before training begins or resumes."""
        if not (found := list(stretches)):
            return
        races, num_before = zip(*found, strict=True)
        self._write("takeovers", races)
        (frames, _), taught = self._opened("takeovers"), list[NDArray[np.int64]]()
        for race, before in zip(frames.races, num_before, strict=True):
            taught.append(np.arange(race.start + before, race.start + race.num_frames))
        self._takeovers = [_Part(frames, np.concatenate(taught))]

    def add(self, epoch: int, visit: Visit) -> None:
        """Adds a round: the frames visited after an epoch."""
        name = f"round-{len(self.rounds) + 1}"
        self._write(name, visit.races)
        self._parts.append(self._opened(name))
        self.rounds.append({"epoch": epoch, "num_frames": len(self._parts[-1].frames)} | visit.driven.to_json())

    def _write(self, name: str, races: Sequence[CapturedRace]) -> None:
        with output_folder(self.folder / name) as folder:
            writer = FrameWriter(
                folder,
                observation=self._observation,
                actions=self._table,
                main_track=races[0].map_uid,
                splits={race.race_id: "train" for race in races},
                shard_frames=sum(len(race.image) for race in races),
            )
            for race in races:
                writer.add(race)
            writer.close()

    def with_visited_labels(self, recorded: CloningTask) -> CloningTask:
        """Returns the task with the labels of visited frames appended to those of recorded ones."""
        if self._task is None:
            place, is_analog = recorded.labels.now.device, self._table.is_analog
            parts = [Labels.of(part.frames, self._kind, is_analog=is_analog).to(place) for part in self._all]
            self._task = replace(recorded, labels=Labels.joined([recorded.labels, *parts]))
        return self._task

    def batches(
        self,
        recorded: FrameDataset,
        imitated: NDArray[np.int64],
        *,
        seed: int,
        epoch: int,
        batch_size: int,
        keep: bool,
        epoch_frames: int,
    ) -> Iterator[Batch]:
        """Yields the frames of an epoch, drawn without replacement from recorded and visited ones.

        Args:
            recorded: N frames.
            imitated: numbers of the recorded training frames.
            seed: of all epochs.
            epoch: index of the epoch.
            batch_size: frames in a batch; the last one may be smaller.
            keep: False leaves recorded frames out once there are visited ones; takeovers stay.
            epoch_frames: most frames of an epoch once there are visited ones or takeovers.

        Returns:
            Batches; frame numbers from N upwards denote visited frames.
        """
        if not self._all:
            yield from recorded.iterate_batches(seed=seed, epoch=epoch, batch_size=batch_size, frames=imitated)
            return
        known = first = len(recorded)
        numbers = [imitated if keep or not self.rounds else imitated[:0]]
        for part in self._all:
            numbers.append(first + part.taught)
            first += len(part.frames)
        for rows in shuffled(np.concatenate(numbers), seed=seed, epoch=epoch, batch_size=batch_size, most=epoch_frames):
            parts = [recorded.batch(rows[rows < known])] if (rows < known).any() else []
            first = known
            for part, _ in self._all:
                inside = rows[(rows >= first) & (rows < first + len(part))]
                if len(inside):
                    met = part.batch(inside - first)
                    parts.append(met._replace(number=met.number + first))
                first += len(part)
            yield Batch(*map(torch.cat, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for checkpoints: rounds and race results; frames stay in the folder."""
        return {"rounds": self.rounds, "raced": self.raced}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state returned by `state_dict`, with the frames in the folder."""
        self.rounds, self.raced = list(state["rounds"]), list(state["raced"])
        self._parts, self._task = [self._opened(f"round-{number + 1}") for number in range(len(self.rounds))], None

    def clear(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _opened(self, name: str) -> _Part:
        self._task = None
        frames = FrameDataset(self.folder / name, "train", self._frames, self._table.parts)
        return _Part(frames, np.arange(len(frames)))
