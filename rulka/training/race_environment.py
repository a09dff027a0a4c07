"""Race environments for training: cars on the simulator's tracks, or one car in each of several games."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from rulka.agents.preferences.params import FilePairsParams, GivenPairsParams
from rulka.buffers.experience import ExperienceBlock, PreferencePairs
from rulka.contracts.actions import ActionTable
from rulka.contracts.artifacts import RACES, NetworkInputContract, network_input_contract
from rulka.datasets.formats.races import load_races
from rulka.envs.batch import RaceBatch
from rulka.envs.cars_on_tracks import CarsOnTracks
from rulka.envs.game_race import GameRace
from rulka.game.link import GameLink
from rulka.runtime.collector import CarBatch
from rulka.runtime.specs import MakeCars
from rulka.simulator.race_settings import RaceSettings
from rulka.stages.stage import require
from rulka.tracks.track import Track
from rulka.training.demonstrations import demonstration_blocks
from rulka.training.environment import Environment
from rulka.training.preference_pairs import CapturedRaces, pairs_file, pairs_of_demonstrations, pairs_of_file


@dataclass(frozen=True)
class RaceEnvironment(Environment):
    """Races in the simulator; see `rulka.training.environment.Environment`.

    Attributes:
        settings: of training races; greedy checks use the same, but start at the line.
        tracks: training tracks.
        num_shares: shares into which the tracks are split among collectors, if there are enough, so that each collector
            bakes only a few.
        races_dir: the race dataset, for demonstrations.
        frames_dir: the frames captured from it.
    """

    settings: RaceSettings
    tracks: Sequence[Track]
    num_shares: int = 1
    races_dir: Path = Path()
    frames_dir: Path = Path()

    @property
    def name(self) -> str:
        """Environment name in artifacts."""
        return RACES

    @property
    def input_contract(self) -> NetworkInputContract:
        """Observation contract of agents."""
        return network_input_contract(self.settings.image, self.actions.actions_per_decision)

    @property
    def actions(self) -> ActionTable:
        """The action table."""
        return self.settings.table

    @property
    def keeps_record(self) -> bool:
        """Whether the fastest race is kept; with several tracks it would merely be one on the shortest."""
        return len(self.tracks) == 1

    def make_cars(self, num_cars: int, *, at_line: bool) -> CarBatch:
        """Builds cars; see `rulka.runtime.specs.MakeCars`."""
        settings = self.settings.at_line() if at_line else self.settings
        if len(self.tracks) == 1:
            return RaceBatch(self.tracks[0], settings, num_cars)
        return CarsOnTracks(num_cars, self.tracks, settings)

    def cars_of_collector(self, collector: int) -> MakeCars:
        """Returns the factory of a collector's cars, on its share of the tracks."""
        num_shares = min(self.num_shares, len(self.tracks))
        return replace(self, tracks=self.tracks[collector % num_shares :: num_shares]).make_cars

    def demonstrations(self) -> list[ExperienceBlock]:
        """Reads the captured races of the simulator's driver."""
        rewards, seen = self.settings.rewards, self.settings.image.frames
        assert rewards is not None
        frames_dir = require(self.frames_dir, "capture")
        return demonstration_blocks(frames_dir, load_races(self.races_dir), rewards, seen, self.actions)

    def pairs(self, wanted: GivenPairsParams, seed: int) -> PreferencePairs:
        """Reads pairs of captured races."""
        seen, parts = self.settings.image.frames, self.actions.parts
        frames_dir = require(self.frames_dir, "capture")
        captured = CapturedRaces(frames_dir, load_races(self.races_dir), seen, parts)
        if isinstance(wanted, FilePairsParams):
            return pairs_of_file(pairs_file(wanted), captured)
        return pairs_of_demonstrations(wanted, captured, seed)


@dataclass(frozen=True, kw_only=True)
class GameEnvironment(RaceEnvironment):
    """Races in games with one car each: one game per collector, and the last one for greedy checks.

    Attributes:
        link: connection to the first game.
        last: index of the last game.
    """

    link: GameLink
    last: int

    final_check_cars: ClassVar[int | None] = 1

    def make_cars(self, num_cars: int, *, at_line: bool) -> CarBatch:
        """Connects to the last game."""
        return self._car_in(self.last, num_cars, at_line=at_line)

    def cars_of_collector(self, collector: int) -> MakeCars:
        """Returns the factory that connects a collector to its own game."""
        return partial(self._car_in, collector)

    def _car_in(self, game: int, num_cars: int, *, at_line: bool) -> GameRace:
        del num_cars, at_line  # the parameters allow only one car, at the start line
        return GameRace(self.tracks[0], self.settings, self.link.instance(game))
