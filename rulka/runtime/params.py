"""Runtime parameters: the keys of section `train` that the runtime reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from rulka.contracts.section import TAKE_FREE, Count, Positive, Processes, Section, Seed, Several, Slots, key


class RuntimeParams(Section):
    """Runtime parameters: the keys of section `train` that the runtime of every algorithm reads."""

    seed: Seed = key(1, "of starts, exploration and the order of learning")
    max_env_steps: Count = key(540_000, "environment steps after which training ends")
    max_minutes: Positive | None = key(None, "wall minutes after which training ends, if that comes first; null: none")
    max_cpu_minutes: Positive | None = key(None, "the same of all processes together on processors; null: none")
    learners: Several = key(
        1, "that learn as one, each a process with its share of batches and collectors; the first is this one"
    )
    num_collectors: Processes = key(2, "collector processes; 0 runs them in those of the learners")
    cluster: Literal["none", "ray"] = key(
        "none", "where collectors are: on this machine, or on the nodes of the Ray cluster in RULKA_CLUSTER"
    )
    order: Literal["exact", "free"] = key(
        "exact", "exact: what is learned from, when and by which weights follows from counts; free: from who is faster"
    )
    blocks_ahead: Slots = key(2, "blocks of a collector that are permitted and not yet learned from")
    inference: Literal["local", "central"] = key("local", "central lets one process act for all collectors")
    cars_per_collector: Several = key(32, "cars that one collector drives side by side")
    block_steps: Several = key(64, "decisions of every car in one block of experience")
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto", "auto: bfloat16 where the processor has instructions for it"
    )
    acting_precision: Literal["float32", "bfloat16", "float16", "int8"] | None = key(
        None, "of the weights that collectors get, and in which they act; null: float32 and precision"
    )
    checkpoint_s: Positive = key(60.0, "seconds between live checkpoints")
    experience: Literal["saved", "rebuilt"] = key("saved", "of a run that goes on: with its checkpoints, or anew")
    num_checks: Count = key(20, "greedy checks of the weights, evenly over the budget, beside one at the start")
    check_races: Several = key(12, "races of one greedy check, side by side")
    check_candidates: Several = key(4, "best weights in the last choice, where the initial ones always race too")
    final_check_races: Several = key(100, "races of each candidate in the last choice")

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        # Results that depend on timing do not repeat.
        if self.order == "exact" and self.inference == "central":
            yield f"central inference decides for whoever has asked: {TAKE_FREE}"
        if self.order == "exact" and self.cluster != "none":
            yield f"cluster {self.cluster} starts collectors where there is room: {TAKE_FREE}"
        if self.inference == "central" and self.num_collectors == 0:
            yield "central inference acts for collector processes, and num_collectors 0 has none"
        if self.num_collectors % self.learners:
            yield f"num_collectors {self.num_collectors} cannot be split over {self.learners} learners"
        yield from self._impossible_in_cluster()

    def _impossible_in_cluster(self) -> Iterator[str]:
        """Yields a sentence for each setting that collectors on other nodes do not support."""
        if self.cluster == "none":
            return
        elsewhere = f"cluster {self.cluster} lets collectors run on other nodes"
        if self.num_collectors == 0:
            yield f"{elsewhere}, and num_collectors 0 has no processes that could be elsewhere"
        if self.inference == "central":
            yield f"{elsewhere}, and central inference acts beside the learner"
        if self.learners > 1:
            yield f"{elsewhere}, and {self.learners} learners have their collectors beside them"

    @property
    def num_batches(self) -> int:
        """Batches of cars: one per collector, in its own process or in its learner's."""
        return max(self.learners, self.num_collectors)

    @property
    def num_cars(self) -> int:
        """Cars of all collectors together."""
        return self.num_batches * self.cars_per_collector

    @property
    def share_of_learner(self) -> Self:
        """Parameters of a single learner: its share of the collectors, and the whole run's budget."""
        return self.model_copy(update={"learners": 1, "num_collectors": self.num_collectors // self.learners})
