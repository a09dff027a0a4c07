"""What every algorithm trains with: sections `rewards` and `train`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from rulka.params.base import (
    MOST,
    Algorithm,
    Backend,
    Count,
    GreyLevels,
    NotNegative,
    Positive,
    Processes,
    Section,
    Seed,
    Several,
    Weight,
    WeightSchedule,
    key,
)
from rulka.params.races import MainTrackParams, RaceStartParams, TracksParams
from rulka.schedule import Schedule


class EngineeredRewardParams(Section):
    """Rewards for how a car drives, over environment steps; see `rulka.envs.rewards`."""

    speed_slide: WeightSchedule = key(
        Schedule.constant(0.0), "each decision, for sliding at the angle that keeps most speed"
    )
    neo_slide: WeightSchedule = key(Schedule.constant(0.0), "each decision with a sideways speed of 2 m/s or more")
    kamikaze: WeightSchedule = key(
        Schedule.constant(0.0), "each decision on full gas or with at most one wheel on the ground"
    )
    line_distance: WeightSchedule = key(
        Schedule.constant(0.0), "each decision, for each metre from the line, between 5 and 25 m"
    )


class RewardParams(Section):
    """Reward of one decision; see `rulka.envs.rewards`."""

    per_metre: Weight = key(0.05, "for each metre of progress along the centreline")
    per_second: Weight = key(-0.4, "for each second that passes; negative")
    off_track: float = key(-4.0, "once, on leaving the track", ge=-MOST, le=0.0)
    finish_as_seconds: NotNegative = key(
        4.0, "the finish counts like going on for this time at the speed over the line; 0 is none"
    )
    line_distance_potential: NotNegative = key(
        0.0, "shaping potential lost for each metre from the line, between 2 and 25 m; 0 is none"
    )
    direction_potential: NotNegative = key(
        0.0, "shaping potential lost as the car turns away from the line's direction, at most twice this"
    )
    speed_as_seconds: NotNegative = key(
        0.0, "a gain in speed counts like the metres it brings in this time; 0 is none, 2 in the reference"
    )
    engineered: EngineeredRewardParams = key(
        EngineeredRewardParams(), "further rewards whose weights change while training"
    )


class RandomisationParams(Section):
    """How much races differ from each other, see `rulka.envs.randomising`; 0 is not at all."""

    friction: float = key(0.0, "grip differs by at most this share", ge=0, lt=1)
    camera_m: float = key(0.0, "the camera is moved by at most this, back and up", ge=0, le=10)
    camera_deg: float = key(0.0, "and pitched by at most this", ge=0, le=45)
    light_gain: float = key(0.0, "contrast differs by at most this share", ge=0, lt=1)
    light_offset: GreyLevels = key(0.0, "brightness differs by at most this many grey levels")
    pixel_noise: GreyLevels = key(0.0, "largest standard deviation of a pixel's noise, grey levels")

    @property
    def is_off(self) -> bool:
        """Whether nothing differs."""
        return not any(self.model_dump().values())


class TrainingRaceParams(RaceStartParams):
    """The races that an agent trains on: where they begin, and how they differ."""

    randomisation: RandomisationParams = key(RandomisationParams(), "how training races differ from each other")


class RuntimeParams(Section):
    """How experience is collected and learned from: what the runtime of every algorithm reads of section `train`."""

    seed: Seed = key(1, "of starts, exploration and the order of learning")
    max_env_steps: Count = key(1_000_000, "environment steps after which training ends")
    max_minutes: Positive | None = key(4.0, "wall minutes after which training ends, if that comes first; null: none")
    max_cpu_minutes: Positive | None = key(None, "the same of all processes together on processors; null: none")
    learners: Several = key(
        1, "that learn as one, each a process with its share of batches and collectors; the first is this one"
    )
    num_collectors: Processes = key(2, "collector processes; 0 runs them in those of the learners")
    cluster: Literal["none", "ray"] = key(
        "none", "where collectors are: on this machine, or on the nodes of the Ray cluster in RULKA_CLUSTER"
    )
    inference: Literal["local", "central"] = key("local", "central lets policy workers act for the collectors")
    policy_workers: Count = key(1, "processes that act for the collectors, of central inference")
    car_groups: Count = key(
        1, "parts of a collector's cars that take turns: simulated, and decided for by central inference"
    )
    cars_per_collector: Several = key(32, "cars that one collector drives side by side")
    block_steps: Several = key(64, "decisions of every car in one block of experience")
    precision: Literal["measured", "float32", "bfloat16"] = key("measured", "measured takes the faster at start")
    acting_precision: Literal["float32", "bfloat16", "float16", "int8"] | None = key(
        None, "of the weights that collectors get, and in which they act; null: float32 and precision"
    )
    checkpoint_s: Positive = key(60.0, "seconds between live checkpoints")
    experience: Literal["saved", "rebuilt"] = key("saved", "of a run that goes on: with its checkpoints, or anew")
    num_checks: Count = key(20, "greedy checks of the weights, evenly over the budget, beside one at the start")
    check_races: Several = key(12, "races of one greedy check, side by side")
    check_candidates: Several = key(4, "weights that take part in the last choice")
    final_check_races: Several = key(100, "races of each candidate in the last choice")

    def _impossible(self) -> Iterator[str]:
        yield from super()._impossible()
        if self.inference == "central" and self.num_collectors == 0:
            yield "central inference acts for collector processes, and num_collectors 0 has none"
        if self.inference == "local" and (self.policy_workers, self.car_groups) != (1, 1):
            yield "policy_workers and car_groups are of central inference; with inference local both must be 1"
        if self.policy_workers > max(1, self.num_collectors):
            yield f"{self.policy_workers} policy_workers have only {self.num_collectors} collectors to act for"
        if self.cars_per_collector % self.car_groups:
            yield f"{self.cars_per_collector} cars_per_collector cannot be parted into {self.car_groups} car_groups"
        for name in ("num_collectors", *(("policy_workers",) if self.inference == "central" else ())):
            if getattr(self, name) % self.learners:
                yield f"{name} {getattr(self, name)} cannot be split over {self.learners} learners"
        yield from self._impossible_in_cluster()

    def _impossible_in_cluster(self) -> Iterator[str]:
        """Yields what collectors on other nodes cannot do."""
        if self.cluster == "none":
            return
        elsewhere = f"cluster {self.cluster} lets collectors run on other nodes"
        if self.num_collectors == 0:
            yield f"{elsewhere}, and num_collectors 0 has no processes that could be elsewhere"
        if self.inference == "central":
            yield f"{elsewhere}, and policy workers act beside the learner"
        if self.learners > 1:
            yield f"{elsewhere}, and {self.learners} learners have their collectors beside them"

    @property
    def num_batches(self) -> int:
        """Batches of cars: one for each collector, in a process of its own or in that of its learner."""
        return max(self.learners, self.num_collectors)

    @property
    def num_cars(self) -> int:
        """Cars of all collectors together."""
        return self.num_batches * self.cars_per_collector

    @property
    def share_of_learner(self) -> Self:
        """What each of the learners goes by; the budget stays that of all."""
        workers = max(1, self.policy_workers // self.learners)
        collectors = self.num_collectors // self.learners
        return self.model_copy(update={"learners": 1, "num_collectors": collectors, "policy_workers": workers})


class TrainParams(RuntimeParams, TrainingRaceParams):
    """Stage `train`: which agents are trained, on which races, and the runtime shared by every algorithm."""

    environment: Backend = key("simulator", "where the races are driven")
    algorithm: Algorithm = key("ppo", "the agent of `data/agent`")
    compared: tuple[Algorithm, ...] = key(("iqn",), "also trained, for the report's comparison", strict=False)
    tracks: tuple[TracksParams, ...] = key(
        (MainTrackParams(),), "what is raced on; cars of one batch race on different ones", strict=False, min_length=1
    )

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """All that are trained, that of `data/agent` first."""
        return (self.algorithm, *self.compared)

    def _impossible(self) -> Iterator[str]:
        yield from super()._impossible()
        if self.algorithm in self.compared or len(set(self.compared)) != len(self.compared):
            yield f"compared must name other algorithms than {self.algorithm!r}, each once"
        yield from self._impossible_in_game()
        if self.num_tracks > self.num_cars // self.car_groups:
            message = f"{self.num_tracks} tracks need as many cars, and collectors have {self.num_cars} together"
            yield message + (f", in {self.car_groups} car_groups" if self.car_groups > 1 else "")

    def _impossible_in_game(self) -> Iterator[str]:
        """Yields what one car in a real game cannot do."""
        if self.environment != "game":
            return
        one = {"cars_per_collector": 1, "check_races": 1, "learners": 1}
        nought = {"start_anywhere": 0.0, "start_from_earlier": 0.0, "start_lateral_m": 0.0, "start_heading_deg": 0.0}
        wrong = [f"{name} must be {value}" for name, value in (one | nought).items() if getattr(self, name) != value]
        if [some.kind for some in self.tracks] != ["main"]:
            wrong.append("tracks must be the main one alone")
        if wrong:
            yield f"a game has one car, which begins at the start line: {', '.join(wrong)}"
        if self.cluster != "none":
            yield (f"cluster {self.cluster} lets collectors run on other nodes, and games run where the learner does")

    @property
    def num_tracks(self) -> int:
        """How many tracks are raced on."""
        return sum(some.count for some in self.tracks)
