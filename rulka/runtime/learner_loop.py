"""The learner's loop: inserts experience, learns, publishes weights, reports, checkpoints, and stops at a limit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rulka.machine.device import numerics_fingerprint, weights_on_host
from rulka.machine.errors import UserError
from rulka.machine.processes import cpu_seconds
from rulka.machine.progress import Progress
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import CollectLimits
from rulka.runtime.greedy_check import BestWeights, Candidate, CheckResult, GreedyCheck, Records
from rulka.runtime.live import LiveCars
from rulka.runtime.metrics import LearningMeans, RaceCounts, TimeShares
from rulka.runtime.metrics_log import LEARNED, MetricsLog
from rulka.runtime.ranks import IngestResult, Rank, RankProcesses, RankProgress, split_budget
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopRequestedError, StopSignals
from rulka.runtime.supervisor import WorkerCrashError

WAIT_S = 0.5
"""Longest wait for experience before signals and clocks are checked again."""
REPORT_S = 2.0
REPORTS_OF_BUDGET, MOST_REPORT_STEPS = 500, 16_384
"""In exact order environment steps trigger reports, so that they repeat: `REPORTS_OF_BUDGET` a run, but at least one
every `MOST_REPORT_STEPS` steps."""
COMPARE_S = 30.0
"""Seconds between comparisons of several learners' weights, which each checkpoint makes too."""
CHECK_SEED, CHOICE_SEED = 1, 2
"""Added to the run's shifted seed: for the starts of the greedy checks and of the final choice."""

_LOGGER = logging.getLogger(__name__)

EndedBy = Literal["max_env_steps", "max_minutes", "max_cpu_minutes"]


@dataclass
class RunState:
    """Counters of a run; all of them are saved in its checkpoints.

    Attributes:
        env_steps: decisions taken in and learned from, resets included.
        gradient_steps: optimizer steps.
        seconds: of training, checks included; not the time until the first experience of each start, in which
            collectors import, compile and connect.
        cpu_seconds: CPU time of all processes of the run within `seconds`.
        num_starts: number of starts of the run.
        num_checks: greedy checks due so far.
        checked_version: version of the weights in the last greedy check; -1 before the first.
        num_reports: reports due so far, in exact order.
        due: per learner, True if it must take in a block before the next update; in exact order.
        is_whole: True while no resume and no restarted collector has lost races or experience.
        machines: each kind of processor that it ran on, see `rulka.machine.device.numerics_fingerprint`.
        marks: environment steps and checksum of the weights at each greedy check; the last one is at the end.
    """

    env_steps: int = 0
    gradient_steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_starts: int = 0
    num_checks: int = 0
    checked_version: int = -1
    num_reports: int = 0
    due: list[bool] = field(default_factory=list)
    is_whole: bool = True
    machines: list[str] = field(default_factory=list)
    marks: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """Result of a finished run.

    Attributes:
        best: the chosen weights, with the result of their last greedy races.
        ended_by: the limit that ended the run.
        state: its counters.
        record_s: time of the fastest greedy race, confirmed by a repeat, or None.
        precision: in which the network learned.
        repeats: "yes" if the same parameters, inputs and code give the same weights again, on processors of one kind;
            otherwise the reasons why not.
    """

    best: Candidate
    ended_by: EndedBy
    state: RunState
    record_s: float | None
    precision: str
    repeats: str


class LearnerLoop:
    """One training run, in the process of the (first) learner.

    `rulka.runtime.connect` hands in all parts. Several learners run in lockstep: each inserts its collectors' blocks,
    and when all have enough experience, all make an update together.
    """

    def __init__(
        self,
        spec: RunSpec,
        rank: Rank,
        others: RankProcesses | None,
        checks: tuple[GreedyCheck, GreedyCheck],
        files: tuple[MetricsLog, Checkpoints],
        stop: StopSignals,
        state: RunState,
        num_restarts: int = 0,
    ) -> None:
        """Takes the parts.

        Args:
            spec: of the whole run.
            rank: the learner of this process, with its own parts.
            others: all other learners; None if there are none.
            checks: greedy checks of the current weights during the run, and of the best candidates at its end.
            files: of the whole run; each rank has its own beside these.
            stop: tells when to stop.
            state: counters to begin with.
            num_restarts: restarts of all learners so far.
        """
        self.spec, self.state = spec, state
        self.race_counts, self.best = RaceCounts(), BestWeights(spec.train.check_candidates)
        self._rank, self._others, self._stop = rank, others, stop
        self._check, self._last_check = checks
        self._metrics, self._checkpoints = files
        self._learner, self._quantiser, self._collectors = rank.learner, rank.quantiser, rank.collectors
        self._shares, self._learning = TimeShares(self._learner.allowed_lag), LearningMeans()
        self._live = LiveCars(spec.folder)
        self.records = Records(spec.folder)
        rank.spending = self._shares.spending
        self._size = spec.train.learners
        self._is_exact = spec.train.order == "exact"
        if self._is_exact and not state.due:
            state.due = [True] * self._size
        self._progress_by_rank: list[RankProgress] = self._everywhere(Rank.progress)
        self._num_restarts = num_restarts
        self._has_work = False
        self._has_begun = False
        self._checked: dict[str, float | None] = {}
        self._clock_s = self._reported_s = self._saved_s = self._compared_s = time.monotonic()
        self._cpu_s = 0.0

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores the measurements and candidates of earlier starts."""
        self.race_counts.load_state_dict(state["race_counts"])
        self._learning.load_state_dict(state["learning"])
        self._checked = state["checked"]
        self.best.load_state_dict(state["best"])
        self.records.load_state_dict(state["records"])

    def run(self) -> Outcome:
        """Trains until a limit is reached.

        Raises:
            StopRequestedError: on a signal; a checkpoint was saved.
            WorkerCrashError: if a collector keeps crashing or no node of a cluster is left; a checkpoint was saved.
            CheckpointError: if a checkpoint cannot be written.
            DivergedError: if the weights are not finite; the last checkpoint is from before.
            RuntimeError: if learner and collectors wait for each other.
            RankLostError: if another learner is lost; nothing was saved.
            UserError: if another learner failed with an error of its own, or learners have different weights; nothing
                was saved.
        """
        self.state.num_starts += 1
        if (here := numerics_fingerprint()) not in self.state.machines:
            self.state.machines.append(here)
        if reasons := self._why_not():
            _LOGGER.warning("this training will not repeat bit by bit: %s", reasons)
        self._clock_s = self._reported_s = self._saved_s = time.monotonic()
        with Progress(self.spec.label, None, "env steps", done=self.state.env_steps) as bar:
            try:
                ended_by = self._train(bar)
                if self._has_begun:
                    self._report()  # now: a later report would count the final choice in the training rates
            except (StopRequestedError, WorkerCrashError):  # none is raised in the middle of an update
                self._save()
                raise
            self._save()
            if self._others is not None:
                self._others.stop()  # frees the CPU for the final races
            self._collectors.stop()
            best = self.best.choose(self._last_check, self._seed(CHOICE_SEED), self.spec.train.final_check_races)
        record_s, precision = self.records.time_s, self._learner.precision
        return Outcome(best, ended_by, self.state, record_s, precision, self._why_not(ended_by) or "yes")

    def _why_not(self, ended_by: EndedBy | None = None) -> str:
        """Returns the reasons known so far why the run would not repeat bit by bit; empty if it would."""
        device, machines = self.spec.device.type, self.state.machines
        reasons = {
            f"train.order is {self.spec.train.order}": not self._is_exact,
            f"{ended_by} ended it": ended_by not in (None, "max_env_steps"),
            f"it learns on {device}": device != "cpu",
            "it was interrupted, and began races or experience anew": not self.state.is_whole,
            f"it went on elsewhere ({' and then '.join(machines)})": len(machines) > 1,
        }
        return "; ".join(reason for reason, holds in reasons.items() if holds)

    def _train(self, bar: Progress) -> EndedBy:
        self._rank.publish()
        ended_by = self._ended_by()
        while ended_by is None:
            self._check_when_due()
            self._stop.check()
            num_taken = self._take_experience()
            self._learn()
            self._look_for_stall(num_taken)
            self._tick(bar, num_taken)
            ended_by = self._ended_by()
        self._check_weights()
        return ended_by

    def _ended_by(self) -> EndedBy | None:
        limit, share = max(self._shares_used().items(), key=lambda used: used[1])
        return limit if share >= 1.0 else None

    def _shares_used(self) -> dict[EndedBy, float]:
        """Returns the used share of each limit."""
        train, state = self.spec.train, self.state
        return {
            "max_env_steps": state.env_steps / train.max_env_steps,
            "max_minutes": state.seconds / (60.0 * (train.max_minutes or math.inf)),
            "max_cpu_minutes": state.cpu_seconds / (60.0 * (train.max_cpu_minutes or math.inf)),
        }

    def _budget_share(self) -> float:
        """Returns the used share of the budget; in exact order clocks do not count."""
        used = self._shares_used()
        return min(1.0, used["max_env_steps"] if self._is_exact else max(used.values()))

    def _everywhere(self, method: Callable[..., Any], arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Calls a method of `Rank` on every rank at the same time; returns the results by rank.

        Args:
            method: of `Rank`.
            arguments: of each rank; None for no arguments.
        """
        arguments = arguments or [()] * self._size
        if self._others is None:
            return [method(self._rank, *arguments[0])]
        return self._others.everywhere(self._rank, method, arguments)

    def _take_experience(self) -> int:
        """Inserts blocks, waiting briefly if there is nothing else to do; returns the number of environment steps.

        In free order it inserts every block that is ready. In exact order each learner takes one, however long that
        takes, and then all learn for as long as they can.
        """
        env_steps_before = self.state.env_steps
        ingested: list[IngestResult] = self._everywhere(Rank.ingest, self._collect_limits())
        self._progress_by_rank = [each.progress for each in ingested]
        self.state.is_whole &= all(progress.is_whole for progress in self._progress_by_rank)
        if self._is_exact:
            self.state.due = [
                is_due and not each.blocks and each.progress.num_under_way > 0
                for is_due, each in zip(self.state.due, ingested, strict=True)
            ]
        self._shares.add_deliveries(sum(len(each.blocks) for each in ingested))
        for rank, each in enumerate(ingested):
            for collector, facts, version in each.blocks:
                self._shares.add_block(collector, facts, self.spec.block, version)
                self.race_counts.add(facts.races)
                self._live.add(collector, facts.cars)
                self.state.env_steps += self.spec.block.num_env_steps
            self._shares.add_learner(rank, each.spent_s)
        return self.state.env_steps - env_steps_before

    def _collect_limits(self) -> list[tuple[CollectLimits]]:
        """Returns each rank's limits; a rank that has enough does not make the others wait for more."""
        most, share = [self.spec.train.max_env_steps], self._budget_share()
        if self._size > 1:
            most = split_budget(most[0], self.spec.block.num_env_steps, self._progress_by_rank)
        due = self.state.due
        limits = []
        for rank, progress in enumerate(self._progress_by_rank):
            wait_s = 0.0 if self._has_work or (progress.is_ready and self._size > 1 and not due) else WAIT_S
            elsewhere = self.state.env_steps - progress.num_env_steps
            limits.append((CollectLimits(most[rank], wait_s, share, elsewhere, int(due[rank]) if due else None),))
        return limits

    def _learn(self) -> None:
        """Makes an update unless blocks are due; in exact order they are due after an update lacked experience."""
        if any(self.state.due):
            return
        self._update()
        if self._is_exact and not self._has_work:
            self.state.due = [True] * self._size

    def _update(self) -> None:
        if self._size > 1 and not all(progress.is_ready for progress in self._progress_by_rank):
            self._has_work = False
            return
        share, total = self._budget_share(), self.state.env_steps
        learned = self._everywhere(Rank.learn, [(share, total - each.num_env_steps) for each in self._progress_by_rank])
        values = learned[0]
        self._has_work = values is not None
        if values is not None:
            num_samples = sum(each.get("num_samples", 0.0) for each in learned)
            self._shares.add_update(num_samples, self._collectors.take_weight_bytes())
            self._learning.add(values | {"num_samples": num_samples})
            self.state.gradient_steps += int(values.get("gradient_steps", 0))
            if time.monotonic() - self._compared_s >= COMPARE_S:
                self._compare()

    def _compare(self) -> None:
        """Checks that all learners have the same weights."""
        self._compared_s = time.monotonic()
        if self._size == 1:
            return
        own, *others = self._everywhere(Rank.checksum)
        wrong = [rank for rank, found in enumerate(others, 1) if found != own]
        if wrong:
            message = (
                f"after update {self._learner.version}, learner {wrong[0]} of {self._size} has other weights than "
                "learner 0"
            )
            hint = "All of them make the same updates: this is a fault of Rulka, of a library or of the machine. Start "
            raise UserError(message, hint=f"{hint}again to go on from the last checkpoint, when they were equal.")

    def _look_for_stall(self, num_taken: int) -> None:
        if num_taken or self._has_work or any(progress.num_under_way for progress in self._progress_by_rank):
            return
        if self.state.env_steps >= self.spec.train.max_env_steps:
            return
        if all(progress.num_allowed_env_steps <= progress.num_env_steps for progress in self._progress_by_rank):
            allowed = sum(progress.num_allowed_env_steps for progress in self._progress_by_rank)
            raise RuntimeError(
                f"the learner waits for experience, but allows {allowed} environment steps, "
                f"and {self.state.env_steps} were taken"
            )

    def _tick(self, bar: Progress, num_taken: int) -> None:
        """Advances the clock and runs what is due."""
        now_s = time.monotonic()
        if num_taken and not self._has_begun:
            self._has_begun, self._cpu_s = True, self._cpu_seconds()
        if self._has_begun:
            self.state.seconds += now_s - self._clock_s
        self._clock_s = now_s
        self._show(bar, num_taken)
        with self._shares.spending("reporting"):
            self._live.write_when_due()
        every = min(max(1, self.spec.train.max_env_steps // REPORTS_OF_BUDGET), MOST_REPORT_STEPS)
        num_due = self.state.env_steps // every
        if num_due > self.state.num_reports if self._is_exact else now_s - self._reported_s >= REPORT_S:
            self.state.num_reports = num_due
            self._report()
        if now_s - self._saved_s >= self.spec.train.checkpoint_s:
            self._save()

    def _show(self, bar: Progress, num_taken: int) -> None:
        train, state = self.spec.train, self.state
        if state.env_steps and (state.cpu_seconds or not train.max_cpu_minutes):  # only reports count CPU time
            share = min(1.0, max(self._shares_used().values()))  # of whichever limit comes first
            bar.total = min(train.max_env_steps, state.env_steps / share)
            bar.is_estimate = bar.total < train.max_env_steps
            bar.left_s = state.seconds * (1.0 - share) / share
        values = self.race_counts.values() | {"record_s": self.records.time_s}
        facts = {name: value for name, value in values.items() if value is not None}
        shown = {"finished": "finish_rate", "record s": "record_s", "progress m": "mean_progress_m"}
        if self.spec.is_by_return:
            shown = {"return": "mean_return"}
        bar.advance(
            num_taken,
            updates=self._learner.version,
            **{label: facts[name] for label, name in shown.items() if name in facts},
        )

    def _report(self) -> None:
        self._reported_s = time.monotonic()
        if self._has_begun:
            cpu_s = self._cpu_seconds()
            self.state.cpu_seconds += cpu_s - self._cpu_s
            self._cpu_s = cpu_s
        checked, self._checked = self._checked, {}
        learned = {name: value for name, value in self._learning.take().items() if name != "gradient_steps"}
        shares, collectors = self._shares.take()
        processes = {
            "blocks_under_way": sum(progress.num_under_way for progress in self._progress_by_rank),
            "num_restarts": self._num_restarts + sum(progress.num_restarts for progress in self._progress_by_rank),
        }
        total = {
            "gradient_steps": self.state.gradient_steps,
            "minutes": self.state.seconds / 60.0,
            "cpu_minutes": self.state.cpu_seconds / 60.0,
            "version": self._learner.version,
        }
        with self._shares.spending("reporting"):
            values = {
                "Total": total,
                "Race": self.race_counts.values() | {"record_s": self.records.time_s},
                "Performance": processes | shares,
                LEARNED: learned,
                "Check": checked,
            }
            self._metrics.write(self.state.env_steps, values, collectors | self._learner.inspect())

    def _cpu_seconds(self) -> float:
        """Returns the CPU seconds of all processes of the run, on all nodes."""
        return cpu_seconds() + self._collectors.cpu_seconds_elsewhere

    def _check_when_due(self) -> None:
        """Runs a greedy check at the start, and after each of `num_checks` equal shares of the budget."""
        num_due = 1 + int(self._budget_share() * self.spec.train.num_checks)
        if num_due > self.state.num_checks:
            with self._shares.spending("checking"):
                self._check_weights()
            self.state.num_checks = num_due

    def _check_weights(self) -> None:
        """Races the current weights greedily and keeps them if they are among the best.

        Each version races only once: a run stopped in its final choice comes here at every start, and the same weights
        would displace other candidates.
        """
        if self._learner.version == self.state.checked_version:
            return
        tensors = weights_on_host(self._learner.racer)
        result = self._check.run(tensors, self._seed(CHECK_SEED), self.spec.train.check_races)
        self.best.offer(self.state.env_steps, result, tensors)
        if self.spec.keeps_record:
            self.records.offer(self._check, tensors, self.state.env_steps, result)
        self.state.checked_version = self._learner.version
        self.state.marks.append([self.state.env_steps, self._rank.checksum()])
        self._checked = _named_check(result)

    def _save(self) -> None:
        """Writes a checkpoint, after every rank has written the experience that it names."""
        self._saved_s = time.monotonic()
        self._compare()
        own, *others = self._everywhere(Rank.save)
        state = own | {
            "others": others,
            "records": self.records.state_dict(),
            "run": asdict(self.state),
            "race_counts": self.race_counts.state_dict(),
            "learning": self._learning.state_dict(),
            "checked": self._checked,
            "best": self.best.state_dict(),
            "metrics_bytes": self._metrics.num_bytes,
        }
        with self._shares.spending("saving"):
            self._checkpoints.save(self.state.env_steps, state)
        self._everywhere(Rank.forget_unsaved, [(self.state.env_steps,)] * self._size)

    def _seed(self, purpose: int) -> int:
        return (self.spec.train.seed << 8) + purpose


def _named_check(result: CheckResult) -> dict[str, float | None]:
    if result.mean_return is not None:
        return {"check_mean_return": result.mean_return}
    return {
        "check_finish_rate": result.finish_rate,
        "check_mean_time_s": result.mean_time_s,
        "check_mean_pace_mps": result.mean_pace_mps,
        "check_mean_progress_m": result.mean_progress_m,
    }
