"""Settings of race sources and of frame capture: sections `races` and `capture`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rulka.contracts.section import MOST, Positive, Section, Seed, Whole, key, wrong_order
from rulka.planner.params import DriverParams
from rulka.tracks.campaign_slugs import CampaignSlug

Backend = Literal["simulator", "game"]
MapChoice = Literal["main", "all"]
"""Races on the main track of `data/races`, or on all maps."""


class SelectParams(Section):
    """Filters of the stage `races` for recordings; rejected ones are listed with the reason."""

    device: Literal["any", "keyboard", "analog"] = key("any", "Input device of the player.")
    with_respawns: bool = key(False, "Accept races in which the player respawned; their paths jump.")
    min_race_s: Positive | None = key(None, "Shortest accepted race in seconds; null for any.")
    max_race_s: Positive | None = key(None, "Longest accepted race in seconds; null for any.")
    car: str | None = key(
        "StadiumCar", "Car named in the recording; null for any. Only Forever's and United's StadiumCar is simulated."
    )
    environment: str | None = key(None, "Environment named in the recording, for example Stadium; null for any.")
    max_best_ratio: float | None = key(None, "Slowest race, over the map's best time; null: any.", ge=1.0, le=MOST)

    def _check_combinations(self) -> Iterator[str]:
        yield from wrong_order(self, "min_race_s", "max_race_s")


class RaceParams(Section):
    """Stage `races`: recordings, or demonstrations by the built-in driver."""

    source: Literal["auto", "recordings", "driver"] = key(
        "auto", "Source of races: recordings, the built-in driver, or recordings if there are any (auto)."
    )
    map_uid: str | None = key(None, "Map of the main track; null takes the one with most usable races.")
    campaign: CampaignSlug | None = key(None, "Campaign track to race on without recordings; null generates a track.")
    select: SelectParams = key(SelectParams(), "Filters of recordings.")
    num_demonstrations: int = key(40, "Races of the built-in driver if there are no recordings.", ge=1, le=100_000)
    driver: DriverParams = key(DriverParams(), "Planning and pace of the built-in drivers.")
    reference_decisions: Whole = key(4_000_000, "Decisions simulated to find a near-fastest reference lap; 0: none.")
    seed: Seed = key(1, "Seed of the built-in drivers' plans, pace and starts.")


class CaptureParams(Section):
    """Stage `capture`: converts races to frames."""

    backend: Backend = key("simulator", "Renderer: the simulator's camera, or the game, which replays the races.")
    maps: MapChoice = key("all", "Maps whose races are captured: the main track, or all, to see more roads.")
    steer_dead_zone: float = key(0.0153, "Largest analog steering that counts as none, in full locks.", ge=0, lt=1)
    recoveries: int = key(0, "Disturbed simulator drives per training race on the main track.", ge=0, le=1000)
    num_workers: int = key(2, "Number of processes that render frames.", ge=1, le=256)
    validation_fraction: float = key(
        0.1, "Share of a map's races, by a hash of each, that selects the epoch; 0 holds out none.", ge=0, lt=1
    )
    test_fraction: float = key(0.1, "Share of a map's races that is held out for testing.", ge=0, lt=1)

    def _check_combinations(self) -> Iterator[str]:
        if self.validation_fraction + self.test_fraction >= 1:
            yield "validation_fraction and test_fraction need to leave races to train: lower their sum below 1"
        if self.backend == "game" and self.maps == "all":
            yield "backend game needs the open map alone, but maps is all: set it to main, or backend to simulator"
        if self.backend == "game" and self.recoveries:
            yield "recoveries need the simulator, but backend is game: set recoveries to 0, or backend to simulator"
