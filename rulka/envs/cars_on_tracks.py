"""Batch of cars on several tracks, one `RaceBatch` each. Dimensions: N cars, T tracks; others in `rulka.envs.batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.schedule import Moment
from rulka.contracts.step_results import Floats, Images, StepResult
from rulka.envs.batch import RaceBatch
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.track import Track


class CarsOnTracks:
    """N cars, divided evenly and permanently among T tracks; see `rulka.runtime.collector.CarBatch`.

    Car k is seeded with `seed + k`, as in a single batch. If there are more tracks than cars, the cars race on an
    evenly spaced sample of the tracks.

    Attributes:
        batches: slice of cars and `RaceBatch` of each track.
    """

    def __init__(self, num_cars: int, tracks: Sequence[Track], settings: RaceSettings) -> None:
        """Bakes the tracks and places the cars.

        Args:
            num_cars: N.
            tracks: T, at least one.
            settings: of the races on all tracks.
        """
        num_groups = num_cars // settings.races_per_start  # a group with equal starts stays on one track
        raced = [tracks[place] for place in np.unique(np.linspace(0, len(tracks) - 1, num_groups).round().astype(int))]
        ends = np.linspace(0, num_groups, len(raced) + 1).round().astype(int) * settings.races_per_start
        self.batches = [
            (slice(first, last), RaceBatch(track, settings, last - first))
            for (first, last), track in zip(pairwise(ends.tolist()), raced, strict=True)
        ]

    def reset_into(self, image_out: Images, floats_out: Floats, potential_out: Floats, seed: int) -> None:
        """Resets all races and writes images [N, L, H, W], floats [N, F] and potentials [N]."""
        for cars, batch in self.batches:
            batch.reset_into(image_out[cars], floats_out[cars], potential_out[cars], seed + cars.start)

    def step_into(self, actions: NDArray, image_out: Images, floats_out: Floats, potential_out: Floats) -> StepResult:
        """Takes one decision for every car and writes the next observations; see `RaceBatch.step_into`."""
        results = [
            batch.step_into(actions[cars], image_out[cars], floats_out[cars], potential_out[cars])
            for cars, batch in self.batches
        ]
        columns = [field.name for field in fields(StepResult)]
        return StepResult(*(np.concatenate([getattr(result, name) for result in results]) for name in columns))

    def set_moment(self, moment: Moment) -> None:
        """Sets the training progress of the run, for scheduled rewards."""
        for _, batch in self.batches:
            batch.set_moment(moment)

    def cars(self) -> Floats:
        """Returns world position in metres, on each car's own track, and speed in m/s [N, 4]."""
        return np.concatenate([batch.cars() for _, batch in self.batches])

    def state_dict(self) -> dict[str, Any]:
        """Returns the complete state of the races, arrays and numbers by name; names of track t begin with `t.`."""
        states = enumerate(batch.state_dict() for _, batch in self.batches)
        return {f"{number}.{name}": value for number, state in states for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state returned by `state_dict`."""
        for number, (_, batch) in enumerate(self.batches):
            begin = f"{number}."
            batch.load_state_dict({name[len(begin) :]: x for name, x in state.items() if name.startswith(begin)})

    def close(self) -> None:
        """Closes all batches."""
        for _, batch in self.batches:
            batch.close()
