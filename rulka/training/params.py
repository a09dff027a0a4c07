"""Section `train`: the trained agents and their races."""

from __future__ import annotations

from collections.abc import Iterator

from rulka.agents.params import Algorithm
from rulka.contracts.section import NEEDS_FREE, key
from rulka.datasets.params import Backend
from rulka.runtime.params import RuntimeParams
from rulka.simulator.race_params import TrainingRaceParams
from rulka.tracks.params import MainTrackParams, TracksParams


class TrainParams(RuntimeParams, TrainingRaceParams):
    """Stage `train`: the trained agents, their races, and the runtime shared by all algorithms."""

    environment: Backend = key("simulator", "Environment: the embedded simulator, or the game.")
    algorithm: Algorithm = key("ppo", "Algorithm that trains the agent in data/agent.")
    compared: tuple[Algorithm, ...] = key(("iqn",), "Algorithms also trained, to compare in the report.", strict=False)
    tracks: tuple[TracksParams, ...] = key(
        (MainTrackParams(),),
        "Training tracks; the cars of one batch race on different ones.",
        strict=False,
        min_length=1,
    )

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """All trained algorithms, that of `data/agent` first."""
        return (self.algorithm, *self.compared)

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        if self.algorithm in self.compared or len(set(self.compared)) != len(self.compared):
            yield f"compared needs algorithms other than {self.algorithm}, each once: remove the repeated one"
        yield from self._impossible_in_game()
        if self.num_tracks > self.num_cars:
            yield f"tracks need a car each, but {self.num_tracks} have {self.num_cars}: raise cars_per_collector"

    def _impossible_in_game(self) -> Iterator[str]:
        """Yields settings that are impossible with one car in a real game."""
        if self.environment != "game":
            return
        if self.cluster != "none":
            yield f"environment game needs collectors here, but cluster is {self.cluster}: set it to none"
        one = {"cars_per_collector": 1, "check_races": 1, "learners": 1}
        nought = {"start_anywhere": 0.0, "start_from_earlier": 0.0, "start_lateral_m": 0.0, "start_heading_deg": 0.0}
        wanted = [f"{name} to {value}" for name, value in (one | nought).items() if getattr(self, name) != value]
        if [some.kind for some in self.tracks] != ["main"]:
            wanted.append("tracks to the main one alone")
        if wanted:
            yield f"environment game needs one car that begins at the start line: set {', '.join(wanted)}"
        if self.order == "exact":
            yield f"environment game {NEEDS_FREE}, or environment to simulator"

    @property
    def num_tracks(self) -> int:
        """Number of training tracks."""
        return sum(some.count for some in self.tracks)
