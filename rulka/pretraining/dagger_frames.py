"""DAgger dataset: frames that the policy visited during training, labelled by the adviser, added to recorded ones.

    round-<k>/     a frame dataset of that round, see `rulka.datasets.formats.frames`

Dimensions: N recorded frames, M visited ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable
from rulka.contracts.artifacts import ObservationContract
from rulka.datasets.formats.frames import Batch, FrameDataset, FrameWriter, shuffled
from rulka.evaluation.dagger import Visit
from rulka.pretraining.cloning import CloningTask, Labels
from rulka.pretraining.params import LabelKind
from rulka.stages.stage import output_folder


class Visited:
    """All DAgger rounds so far, and the race results of the policy.

    Attributes:
        folder: of the rounds; created with the first one.
        rounds: a plain object per round: its epoch, the race results, and the number of visited frames.
        raced: the same for each evaluation race, from which nothing is learned.
        num_frames: M.
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
        self._parts: list[FrameDataset] = []
        self._task: CloningTask | None = None

    @property
    def num_frames(self) -> int:
        """Number of frames in all rounds."""
        return sum(len(part) for part in self._parts)

    def add(self, epoch: int, visit: Visit) -> None:
        """Adds a round: the frames visited after an epoch."""
        name = f"round-{len(self.rounds) + 1}"
        with output_folder(self.folder / name) as folder:
            writer = FrameWriter(
                folder,
                observation=self._observation,
                actions=self._table,
                main_track=visit.races[0].map_uid,
                splits={race.race_id: "train" for race in visit.races},
                shard_frames=sum(len(race.image) for race in visit.races),
            )
            for race in visit.races:
                writer.add(race)
            writer.close()
        self._open(name)
        self.rounds.append({"epoch": epoch, "num_frames": len(self._parts[-1])} | visit.driven.to_json())

    def with_visited_labels(self, recorded: CloningTask) -> CloningTask:
        """Returns the task with the labels of visited frames appended to those of recorded ones."""
        if self._task is None:
            place, is_analog = recorded.labels.now.device, self._table.is_analog
            parts = [Labels.of(part, self._kind, is_analog=is_analog).to(place) for part in self._parts]
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
            keep: False leaves recorded frames out once there are visited ones.
            epoch_frames: most frames of an epoch once there are visited ones.

        Returns:
            Batches; frame numbers from N upwards denote visited frames.
        """
        if not self.rounds:
            yield from recorded.iterate_batches(seed=seed, epoch=epoch, batch_size=batch_size, frames=imitated)
            return
        known = len(recorded)
        numbers = np.concatenate([imitated if keep else imitated[:0], known + np.arange(self.num_frames)])
        for rows in shuffled(numbers, seed=seed, epoch=epoch, batch_size=batch_size, most=epoch_frames):
            parts = [recorded.batch(rows[rows < known])] if (rows < known).any() else []
            first = known
            for part in self._parts:
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
        self.rounds, self.raced, self._parts = list(state["rounds"]), list(state["raced"]), []
        for number in range(len(self.rounds)):
            self._open(f"round-{number + 1}")

    def clear(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self, name: str) -> None:
        places = self._table.actions_per_decision
        self._parts.append(FrameDataset(self.folder / name, "train", self._frames, places))
        self._task = None
