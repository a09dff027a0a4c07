"""Settings of race sources and of frame capture: sections `races` and `capture`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rulka.contracts.section import MOST, Positive, Section, Seed, Whole, key, wrong_order
from rulka.simulator.params import DriverParams
from rulka.tracks.campaign_slugs import CampaignSlug

Backend = Literal["simulator", "game"]
MapChoice = Literal["main", "all"]
"""Races on the main track of `data/races`, or on all maps."""


class SelectParams(Section):
    """Filters of the stage `races` for recordings; rejected ones are listed with the reason."""

    device: Literal["any", "keyboard", "analog"] = key("any", "what the player drove with")
    with_respawns: bool = key(False, "whether races in which the player respawned are used; their paths jump")
    min_race_s: Positive | None = key(None, "shortest race; null for any")
    max_race_s: Positive | None = key(None, "longest race; null for any")
    environment: str | None = key(None, "as recordings name it, for example Stadium; null for any")
    max_best_ratio: float | None = key(None, "slowest race, in times of the map's best; null for any", ge=1.0, le=MOST)

    def _check_combinations(self) -> Iterator[str]:
        yield from wrong_order(self, "min_race_s", "max_race_s")


class RaceParams(Section):
    """Stage `races`: recordings, or demonstrations by the built-in driver."""

    source: Literal["auto", "recordings", "driver"] = key(
        "auto", "who drove: people, the built-in driver, or people where there are recordings (auto)"
    )
    map_uid: str | None = key(None, "map of the main track; null takes the one with most usable races")
    campaign: CampaignSlug | None = key(None, "without recordings: race on this campaign track, not on a generated one")
    select: SelectParams = key(SelectParams(), "which recordings are used")
    num_demonstrations: int = key(40, "races driven by the built-in driver without recordings", ge=1, le=100_000)
    driver: DriverParams = key(DriverParams(), "how the built-in driver drives")
    reference_decisions: Whole = key(4_000_000, "decisions simulated for the reference lap; 0 for none")
    seed: Seed = key(1, "of the built-in drivers: their pace, lines and slips")


class CaptureParams(Section):
    """Stage `capture`: converts races to frames."""

    backend: Backend = key("simulator", "who draws: the simulator's camera, or the game, in which races are replayed")
    maps: MapChoice = key("all", "whose races: the main track's, or those of all maps, to see more roads")
    steer_dead_zone: float = key(0.0153, "analog steering of at most this size counts as none", ge=0, lt=1)
    recoveries: int = key(
        0, "disturbed drives of each training race in the simulator, which show how to recover", ge=0, le=1000
    )
    num_workers: int = key(2, "processes that draw frames side by side", ge=1, le=256)
    validation_fraction: float = key(
        0.1, "share of a map's races that choose an epoch, by a hash of each; 0 holds out none", ge=0, lt=1
    )
    test_fraction: float = key(0.1, "share of a map's races that are only measured on", ge=0, lt=1)

    def _check_combinations(self) -> Iterator[str]:
        if self.validation_fraction + self.test_fraction >= 1:
            yield "validation_fraction and test_fraction are shares of the same races: less than 1 together"
        if self.backend == "game" and self.maps == "all":
            yield "the game shows the one map that is open: with backend game, maps must be main"
        if self.backend == "game" and self.recoveries:
            yield "recoveries are driven in the simulator: with backend game, they must be 0"
