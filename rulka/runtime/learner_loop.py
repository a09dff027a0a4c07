"""The loop around a learner: takes experience in, learns, publishes weights, reports, saves, and knows when to end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch

from rulka.agents.quantisation import Quantiser
from rulka.agents.spec import Learner
from rulka.device import weights_on_host
from rulka.errors import UserError
from rulka.processes import cpu_seconds
from rulka.progress import Progress
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import Collectors
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.greedy_check import BestWeights, Candidate, CheckResult, GreedyCheck
from rulka.runtime.live import LiveCars
from rulka.runtime.metrics import LearningMeans, RaceStatistics, TimeShares
from rulka.runtime.metrics_log import MetricsLog
from rulka.runtime.records import Records
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopRequestedError, StopSignals
from rulka.runtime.supervisor import WorkerCrashError

WAIT_S = 0.5
"""Longest wait for experience before looking at signals and clocks again."""
REPORT_S = 2.0
CHECK_SEED, CHOICE_SEED = 1, 2
"""Added to the run's seed, shifted: starts of the greedy checks and of the last choice."""

EndedBy = Literal["max_env_steps", "max_minutes", "max_cpu_minutes"]


class DivergedError(UserError):
    """Weights are not numbers any more."""


class StalledError(RuntimeError):
    """The learner waits for experience that it does not allow anybody to gather."""


@dataclass
class RunState:
    """Counters of a run; all of them go into its checkpoints.

    Attributes:
        env_steps: decisions taken in and learned from, resets included.
        gradient_steps: optimizer steps.
        seconds: of training, checks included; not the time until the first experience of each start, in which
            collectors import, compile and connect.
        cpu_seconds: the same as `seconds`, of all processes of the run on processors.
        num_starts: how often the run was started.
        num_checks: greedy checks that were due so far.
        checked_version: of the weights that raced in the last greedy check; -1 before the first.
    """

    env_steps: int = 0
    gradient_steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_starts: int = 0
    num_checks: int = 0
    checked_version: int = -1


@dataclass(frozen=True)
class Outcome:
    """What a finished run leaves.

    Attributes:
        best: the chosen weights, with the result of their last greedy races.
        ended_by: which limit ended the run.
        state: its counters.
        record_s: time of the fastest greedy race, driven twice, or None.
        precision: in which the network learned.
    """

    best: Candidate
    ended_by: EndedBy
    state: RunState
    record_s: float | None
    precision: str


class Checks(NamedTuple):
    """Greedy races: of the weights of a moment while the run lasts, and of the best of these at its end."""

    now: GreedyCheck
    last: GreedyCheck


class Files(NamedTuple):
    """Where a run writes."""

    metrics: MetricsLog
    checkpoints: Checkpoints
    experience: ExperienceFiles


class LearnerLoop:
    """One training run in the process of the learner; all parts are handed in, see `rulka.runtime.connect`."""

    def __init__(
        self,
        spec: RunSpec,
        learner: Learner,
        quantiser: Quantiser,
        collectors: Collectors,
        checks: Checks,
        files: Files,
        stop: StopSignals,
        state: RunState,
    ) -> None:
        self.spec, self.state = spec, state
        self.races, self.best = RaceStatistics(), BestWeights(spec.train.check_candidates)
        self._learner, self._quantiser, self._collectors, self._checks = learner, quantiser, collectors, checks
        self._files, self._stop = files, stop
        self._shares, self._learning = TimeShares(learner.allowed_lag), LearningMeans()
        self._live = LiveCars(spec.folder)
        self.records = Records(spec.folder)
        self._published = -1
        self._has_work = False
        self._has_begun = False
        self._last_check: dict[str, float | None] = {}
        self._clock_s = self._reported_s = self._saved_s = time.monotonic()
        self._cpu_s = 0.0

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what earlier starts of the run have measured and chosen."""
        self.races.load_state_dict(state["races"])
        self.best.load_state_dict(state["best"])
        self.records.load_state_dict(state["records"])
        if state["collectors"] is not None:
            self._collectors.load_state_dict(state["collectors"])

    def run(self) -> Outcome:
        """Trains until a limit is reached.

        Raises:
            StopRequestedError: after a signal; a checkpoint was saved.
            WorkerCrashError: if a collector keeps crashing; a checkpoint was saved.
            CheckpointError: if a checkpoint cannot be written.
            DivergedError: if the weights are not finite; the last checkpoint is from before.
            StalledError: if learner and collectors wait for each other.
        """
        self.state.num_starts += 1
        self._clock_s = self._reported_s = self._saved_s = time.monotonic()
        total = self.spec.train.max_env_steps
        with Progress(self.spec.label, total, "env steps", done=self.state.env_steps) as bar:
            try:
                ended_by = self._train(bar)
                if self._has_begun:
                    self._report()  # now, for rates of training would count the time of the choice
            except (StopRequestedError, WorkerCrashError):  # the learner is not in the middle of anything
                self._save()
                raise
            self._save()
            self._collectors.stop()  # the last races need the processor more
            best = self.best.choose(self._checks.last, self._seed(CHOICE_SEED), self.spec.train.final_check_races)
        return Outcome(best, ended_by, self.state, self.records.time_s, self._learner.precision)

    def _train(self, bar: Progress) -> EndedBy:
        self._publish()
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
        """Returns which share of each limit is used."""
        train, state = self.spec.train, self.state
        return {
            "max_env_steps": state.env_steps / train.max_env_steps,
            "max_minutes": state.seconds / (60.0 * (train.max_minutes or math.inf)),
            "max_cpu_minutes": state.cpu_seconds / (60.0 * (train.max_cpu_minutes or math.inf)),
        }

    def _budget_share(self) -> float:
        return min(1.0, max(self._shares_used().values()))

    def _take_experience(self) -> int:
        """Inserts all blocks that are there, waiting a moment if there is nothing else to do; returns env steps."""
        allowed = min(self._learner.num_allowed_env_steps(), self.spec.train.max_env_steps)
        env_steps_before = self.state.env_steps
        with self._shares.spending("waiting"):
            deliveries = self._collectors.collect(allowed, 0.0 if self._has_work else WAIT_S, self._budget_share())
        self._shares.add_deliveries(len(deliveries))
        for delivery in deliveries:
            with self._shares.spending("inserting"):
                self._learner.insert(delivery.block, delivery.collector, delivery.facts.version)
                self._quantiser.observe(delivery.block)
                self._collectors.release(delivery)
            self._shares.add_block(delivery.collector, delivery.facts, self.spec.block, self._learner.version)
            self.races.add(delivery.facts.races)
            self._live.add(delivery.collector, delivery.facts.cars)
            self.state.env_steps += self.spec.block.num_env_steps
        return self.state.env_steps - env_steps_before

    def _learn(self) -> None:
        self._learner.set_budget_share(self._budget_share())
        with self._shares.spending("updating"):
            values = self._learner.update()
        self._has_work = values is not None
        if values is not None:
            self._shares.add_update(values.get("num_samples", 0.0))
            self._learning.add(values)
            self.state.gradient_steps += int(values.get("gradient_steps", 0))
            with self._shares.spending("publishing"):
                self._publish()

    def _publish(self) -> None:
        if self._learner.version == self._published:
            return
        tensors = weights_on_host(self._learner.network)
        wrong = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        if wrong:
            message = f"training diverged: after update {self._learner.version}, {wrong[0]!r} holds NaN or infinity"
            raise DivergedError(message, hint="Lower the learning rate; the last checkpoint is from before.")
        published = self._quantiser.quantise(self._learner.version, tensors)
        self._collectors.publish(self._learner.version, published)
        self._shares.add_weights(published)
        self._published = self._learner.version

    def _look_for_stall(self, num_taken: int) -> None:
        if num_taken or self._has_work or self._collectors.num_under_way:
            return
        allowed = self._learner.num_allowed_env_steps()
        if allowed <= self.state.env_steps < self.spec.train.max_env_steps:
            message = (
                f"the learner waits for experience, but allows {allowed} environment steps, "
                f"and {self.state.env_steps} were taken"
            )
            raise StalledError(message)

    def _tick(self, bar: Progress, num_taken: int) -> None:
        """Moves the clock and does what is due by it."""
        now_s = time.monotonic()
        if num_taken and not self._has_begun:
            self._has_begun, self._cpu_s = True, cpu_seconds()
        if self._has_begun:
            self.state.seconds += now_s - self._clock_s
        self._clock_s = now_s
        self._show(bar, num_taken)
        with self._shares.spending("reporting"):
            self._live.write_when_due()
        if now_s - self._reported_s >= REPORT_S:
            self._report()
        if now_s - self._saved_s >= self.spec.train.checkpoint_s:
            with self._shares.spending("saving"):
                self._save()

    def _show(self, bar: Progress, num_taken: int) -> None:
        if self.state.env_steps:  # whichever limit comes first
            bar.total = min(self.spec.train.max_env_steps, self.state.env_steps / self._budget_share())
            bar.is_estimate = bar.total < self.spec.train.max_env_steps
        values = self.races.values() | {"record_s": self.records.time_s}
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
            cpu_s = cpu_seconds()
            self.state.cpu_seconds += cpu_s - self._cpu_s
            self._cpu_s = cpu_s
        values = {
            "gradient_steps": self.state.gradient_steps,
            "minutes": self.state.seconds / 60.0,
            "cpu_minutes": self.state.cpu_seconds / 60.0,
            "version": self._learner.version,
            "blocks_under_way": self._collectors.num_under_way,
            "num_restarts": self._collectors.num_restarts,
            "record_s": self.records.time_s,
        }
        learned = {name: value for name, value in self._learning.take().items() if name not in values}
        checked, self._last_check = self._last_check, {}
        self._shares.add_inference(self._collectors.take_inference_times())
        shares, collectors = self._shares.take()
        with self._shares.spending("reporting"):
            values |= self.races.values() | shares | learned | checked
            self._files.metrics.write(self.state.env_steps, values, collectors | self._learner.inspect())

    def _check_when_due(self) -> None:
        """Checks at the beginning, and then whenever another of `num_checks` equal shares of the budget is used."""
        num_due = 1 + int(self._budget_share() * self.spec.train.num_checks)
        if num_due > self.state.num_checks:
            with self._shares.spending("checking"):
                self._check_weights()
            self.state.num_checks = num_due

    def _check_weights(self) -> None:
        """Lets the weights of now race greedily and remembers them if they are among the best.

        Weights race once only: a run that was stopped in its last choice comes by here at every start, and the same
        weights would take the places of others.
        """
        if self._learner.version == self.state.checked_version:
            return
        tensors = weights_on_host(self._learner.racer)
        result = self._checks.now.run(tensors, self._seed(CHECK_SEED), self.spec.train.check_races)
        self.best.offer(self.state.env_steps, result, tensors)
        if self.spec.num_tracks == 1:  # on several, the fastest race is but one on the shortest
            self.records.offer(self._checks.now, tensors, self.state.env_steps, result)
        self.state.checked_version = self._learner.version
        self._last_check = _named_check(result)

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        state = {
            "learner": self._learner.state_dict(),
            "experience": self._save_experience(),
            "quantiser": self._quantiser.state_dict(),
            "collectors": self._collectors.state_dict(),
            "records": self.records.state_dict(),
            "run": asdict(self.state),
            "races": self.races.state_dict(),
            "best": self.best.state_dict(),
            "metrics_bytes": self._files.metrics.num_bytes,
        }
        self._files.checkpoints.save(self.state.env_steps, state)
        self._files.experience.forget_others()

    def _save_experience(self) -> dict[str, Any] | None:
        """Writes what is new of the experience, and returns what a checkpoint says of all of it."""
        if self.spec.train.experience == "rebuilt":
            return None
        experience = self._learner.experience()
        return {"state": experience.state, "names": self._files.experience.write(experience.pieces)}

    def _seed(self, purpose: int) -> int:
        return (self.spec.train.seed << 8) + purpose


def _named_check(result: CheckResult) -> dict[str, float | None]:
    if result.mean_return is not None:
        return {"check_mean_return": result.mean_return}
    return {
        "check_finish_rate": result.finish_rate,
        "check_mean_time_s": result.mean_time_s,
        "check_mean_progress_m": result.mean_progress_m,
    }
