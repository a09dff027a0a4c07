"""Runtime parameters: the keys of section `train` that the runtime reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from rulka.contracts.section import (
    NEEDS_FREE,
    Count,
    LearningPrecision,
    Positive,
    Processes,
    Section,
    Seed,
    Several,
    Slots,
    key,
)


class RuntimeParams(Section):
    """Runtime parameters: the keys of section `train` that the runtime of every algorithm reads."""

    seed: Seed = key(1, "Seed of starts, exploration and the order of learning.")
    max_env_steps: Count = key(100_000, "Environment steps after which training ends.")
    max_minutes: Positive | None = key(None, "Wall-clock minutes after which training ends, if sooner; null: none.")
    max_cpu_minutes: Positive | None = key(None, "CPU minutes of all processes after which training ends; null: none.")
    learners: Several = key(1, "Data-parallel learners, each a process with its share of batches and collectors.")
    num_collectors: Processes = key(2, "Number of collector processes; 0 collects in the learners' processes.")
    cluster: Literal["none", "ray"] = key(
        "none", "Placement of collectors: this machine, or the nodes of the Ray cluster in RULKA_CLUSTER."
    )
    order: Literal["exact", "free"] = key(
        "exact",
        "Order of learning: exact follows from counts and is repeatable; free depends on which process is faster.",
    )
    blocks_ahead: Slots = key(2, "Blocks that a collector may be ahead of the learner.")
    inference: Literal["local", "central"] = key(
        "local", "Acting in each collector (local), or in one process for all of a learner (central)."
    )
    cars_per_collector: Several = key(32, "Cars that one collector drives side by side.")
    block_steps: Several = key(64, "Decisions per car in one block of experience.")
    precision: LearningPrecision = "auto"
    acting_precision: Literal["float32", "bfloat16", "float16", "int8"] | None = key(
        None, "Precision of collectors' weights and of acting; null: float32 weights, acting in `precision`."
    )
    checkpoint_s: Positive = key(60.0, "Interval between checkpoints, in seconds.")
    experience: Literal["saved", "rebuilt"] = key("saved", "Experience on resume: from the checkpoint, or rebuilt.")
    num_checks: Count = key(20, "Greedy checks of the weights, evenly over the budget, besides one at the start.")
    check_races: Several = key(12, "Races of one greedy check, side by side.")
    check_candidates: Several = key(4, "Best checked weights in the final selection; the initial ones always race too.")
    final_check_races: Several = key(100, "Races of each candidate in the final selection.")

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        # Results that depend on timing do not repeat.
        if self.order == "exact" and self.inference == "central":
            yield f"inference central {NEEDS_FREE}, or inference to local"
        if self.order == "exact" and self.cluster != "none":
            yield f"cluster {self.cluster} {NEEDS_FREE}, or cluster to none"
        if self.inference == "central" and self.num_collectors == 0:
            yield "inference central needs collectors, but num_collectors is 0: raise it, or set inference to local"
        if self.num_collectors % self.learners:
            yield f"learners need equal shares of num_collectors, but it is {self.num_collectors}: make it a multiple"
        yield from self._impossible_in_cluster()

    def _impossible_in_cluster(self) -> Iterator[str]:
        """Yields a sentence for each setting that collectors on other nodes do not support."""
        if self.cluster == "none":
            return
        needs, remedy = f"cluster {self.cluster} needs", "or cluster to none"
        if self.num_collectors == 0:
            yield f"{needs} collector processes, but num_collectors is 0: set it to 1 or more, {remedy}"
        if self.inference == "central":
            yield f"{needs} acting in collectors, but inference is central: set it to local, {remedy}"
        if self.learners > 1:
            yield f"{needs} a single learner, but learners is {self.learners}: set it to 1, {remedy}"

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
