"""Cars of one batch on several tracks: a vector environment for each, side by side in the same memory.

Dimensions: N cars, T tracks, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.envs.vector import RaceVectorEnv
from rulka.race_settings import RaceSettings
from rulka.schedule import Moment
from rulka.step_results import StepResult
from rulka.tracks.track import Track


class CarsOnTracks:
    """N cars, dealt evenly to T tracks, on which they stay; see `rulka.runtime.collector.CarBatch`.

    Cars are alike but for their track: car k begins its races from `seed + k`, as it would in one environment. Of more
    tracks than cars every so manieth is raced on.
    """

    def __init__(self, num_cars: int, tracks: Sequence[Track | Path], settings: RaceSettings) -> None:
        """Bakes the tracks and places the cars.

        Args:
            num_cars: N.
            tracks: T of them, at least one.
            settings: how races go, on all of them.
        """
        num_groups = num_cars // settings.races_per_start  # of cars with equal starts, which are not parted
        raced = [tracks[place] for place in np.unique(np.linspace(0, len(tracks) - 1, num_groups).round().astype(int))]
        ends = np.linspace(0, num_groups, len(raced) + 1).round().astype(int) * settings.races_per_start
        self._cars = [slice(first, last) for first, last in pairwise(ends.tolist())]
        self._envs = [
            RaceVectorEnv(cars.stop - cars.start, track, settings=settings)
            for cars, track in zip(self._cars, raced, strict=True)
        ]

    @property
    def tracks(self) -> list[Track]:
        """The tracks that are raced on."""
        return [env.batch.track for env in self._envs]

    def reset_into(
        self,
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
        seed: int,
    ) -> None:
        """Starts all races anew and writes images [N, L, H, W], floats [N, F] and potentials [N]."""
        for cars, env in self._parts():
            env.reset_into(image_out[cars], floats_out[cars], potential_out[cars], seed + cars.start)

    def step_into(
        self,
        actions: NDArray[np.int64],
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
    ) -> StepResult:
        """Takes one decision for every car and writes what they see then; see `RaceVectorEnv.step_into`."""
        results = [
            env.step_into(actions[cars], image_out[cars], floats_out[cars], potential_out[cars])
            for cars, env in self._parts()
        ]
        columns = StepResult.__dataclass_fields__
        return StepResult(*(np.concatenate([getattr(result, name) for result in results]) for name in columns))

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the whole run has come, for rewards by schedule."""
        for env in self._envs:
            env.set_moment(moment)

    def cars(self) -> NDArray[np.float32]:
        """Returns [N, 4] where the cars are, world metres of the track that each is on, and their speed in m/s."""
        return np.concatenate([env.cars() for env in self._envs])

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the races depend on, arrays and numbers by name: those of track t begin with `t.`."""
        states = [env.state_dict() for env in self._envs]
        return {f"{number}.{name}": value for number, state in enumerate(states) for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        for number, env in enumerate(self._envs):
            begin = f"{number}."
            env.load_state_dict({name[len(begin) :]: x for name, x in state.items() if name.startswith(begin)})

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.close()

    def _parts(self) -> Iterator[tuple[slice, RaceVectorEnv]]:
        return zip(self._cars, self._envs, strict=True)
