"""Cars on several tracks, a batch of races on each. Dimensions: N cars, T tracks, and those of `rulka.envs.batch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.envs.batch import RaceBatch
from rulka.race_settings import RaceSettings
from rulka.schedule import Moment
from rulka.step_results import Floats, Images, StepResult
from rulka.tracks.track import Track


class CarsOnTracks:
    """N cars, dealt evenly to T tracks, on which they stay; see `rulka.runtime.collector.CarBatch`.

    Cars are alike but for their track: car k begins its races from `seed + k`, as it would in one batch. If there are
    more tracks than cars, they race on an even sample of them.

    Attributes:
        batches: the races on each track, with the cars that drive them.
    """

    def __init__(self, num_cars: int, tracks: Sequence[Track], settings: RaceSettings) -> None:
        """Bakes the tracks and places the cars.

        Args:
            num_cars: N.
            tracks: T of them, at least one.
            settings: how races go, on all of them.
        """
        num_groups = num_cars // settings.races_per_start  # of cars with equal starts, which are not parted
        raced = [tracks[place] for place in np.unique(np.linspace(0, len(tracks) - 1, num_groups).round().astype(int))]
        ends = np.linspace(0, num_groups, len(raced) + 1).round().astype(int) * settings.races_per_start
        self.batches = [
            (slice(first, last), RaceBatch(track, settings, last - first))
            for (first, last), track in zip(pairwise(ends.tolist()), raced, strict=True)
        ]

    def reset_into(self, image_out: Images, floats_out: Floats, potential_out: Floats, seed: int) -> None:
        """Starts all races anew and writes images [N, L, H, W], floats [N, F] and potentials [N]."""
        for cars, batch in self.batches:
            batch.reset_into(image_out[cars], floats_out[cars], potential_out[cars], seed + cars.start)

    def step_into(self, actions: NDArray, image_out: Images, floats_out: Floats, potential_out: Floats) -> StepResult:
        """Takes one decision for every car and writes what they see then; see `RaceBatch.step_into`."""
        results = [
            batch.step_into(actions[cars], image_out[cars], floats_out[cars], potential_out[cars])
            for cars, batch in self.batches
        ]
        columns = [field.name for field in fields(StepResult)]
        return StepResult(*(np.concatenate([getattr(result, name) for result in results]) for name in columns))

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the whole run has come, for rewards by schedule."""
        for _, batch in self.batches:
            batch.set_moment(moment)

    def cars(self) -> Floats:
        """Returns [N, 4] where the cars are, world metres of the track that each is on, and their speed in m/s."""
        return np.concatenate([batch.cars() for _, batch in self.batches])

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the races depend on, arrays and numbers by name: those of track t begin with `t.`."""
        states = enumerate(batch.state_dict() for _, batch in self.batches)
        return {f"{number}.{name}": value for number, state in states for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        for number, (_, batch) in enumerate(self.batches):
            begin = f"{number}."
            batch.load_state_dict({name[len(begin) :]: x for name, x in state.items() if name.startswith(begin)})

    def close(self) -> None:
        """Closes all batches."""
        for _, batch in self.batches:
            batch.close()
