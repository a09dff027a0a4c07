"""All connections of a training run, in one function.

    +-------------------- process of the stage --------------------+      +------ process of collector k ------+
    |                                                              |      |                                    |
    |  StopSignals ---> LearnerLoop ---> Checkpoints, MetricsLog   |      |   Collector = cars + actor         |
    |                    |  ^  |  |                                |      |      ^          |                  |
    |            network |  |  |  +--> GreedyCheck, BestWeights    |      |      |          |                  |
    |                    v  |  v                                   | pipe |      |          |                  |
    |                 Learner  CollectorProcesses ---- Fill, Stop ------------->  |          |                  |
    |                             |  ^      ^  <----- BlockFilled, Heartbeat, Failed        |                  |
    |                             |  |      |                      |      |      |          |                  |
    |                  Supervisor |  |      +==== SharedBlocks k ==================== frames, floats, actions  |
    |         (starts, restarts,  |  +------------------------------------------- + |                          |
    |          stops processes)   +=========== SharedWeights ====================== version, tensors          |
    +--------------------------------------------------------------+      +------------------------------------+

A version on its way to `SharedWeights` passes the `Quantiser`, which `train.acting_precision` may have take fewer bits.
`==` is shared memory, `--` are messages. With `train.inference: central` actors live in processes of their own, the
policy workers (`rulka.runtime.inference`), which the collectors ask, collector k the worker k mod W; while one group
of a collector's cars waits for its answer, the next one drives:

    +------ process of collector k ------+             +-- process of policy worker k mod W --+
    |                                    |    pipe     |                                      |
    |   Collector = groups of cars ------------------------ Request, Response --> actor       |
    |      |                             |             |                          ^    ^      |
    |      +===== request slot of each group =====================================+    |      |
    |                                    |             |               SharedWeights ==+      |
    +------------------------------------+             +--------------------------------------+

A learner of two halves (PQL with `pql.policy_process`) has the other one in a process of its own, which is shown what
collectors saw and learns as far as it is permitted to:

    +------ process of the stage ------+            +---- process of the other half ----+
    |                                  |    pipe    |                                   |
    |  Learner --- OtherHalfProcess --- Show, Permit, Stop ---->  Half                  |
    |                  |       ^ ^   <--- Seen, Taught, Heartbeat, Failed               |
    |       Supervisor +       | +====== SharedBlocks =========== frames, floats        |
    |                          +==== SharedWeights, one each way =====                  |
    +----------------------------------+            +-----------------------------------+

With `train.num_collectors: 0` the `SerialCollectors` take the place of the right-hand side, in this process, and a run
repeats bit by bit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from rulka.agents.quantisation import make_quantiser
from rulka.agents.spec import Experience, Learner, LearnsInHalves
from rulka.device import weights_on_host
from rulka.disk import NO_ROOM
from rulka.errors import UserError
from rulka.params import TrainParams
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished
from rulka.runtime.collectors import CollectorProcesses, SerialCollectors, driven_block
from rulka.runtime.experience_files import DamagedExperienceError, ExperienceFiles
from rulka.runtime.greedy_check import GreedyCheck
from rulka.runtime.learner_loop import Checks, Files, LearnerLoop, Outcome, RunState
from rulka.runtime.metrics_log import MetricsLog
from rulka.runtime.other_half import OtherHalfProcess
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals

_LOGGER = logging.getLogger(__name__)


class DiskFullError(UserError):
    """There is no room for what a run writes beside its checkpoints."""


@contextmanager
def connect(spec: RunSpec, stop: StopSignals) -> Iterator[LearnerLoop]:
    """Builds all parts of a run, goes on from its last checkpoint if there is one, and takes everything down again.

    Args:
        spec: what the run is made of.
        stop: tells the loop when somebody wants it to end.

    Nobody else may be working in the run's folder, see `rulka.runtime.run_folder`.
    """
    remove_unfinished(spec.folder)
    checkpoints = Checkpoints(spec.folder)
    saved = checkpoints.load_newest()
    state = RunState(**saved["run"]) if saved else RunState()
    learner = spec.make_learner()
    experience = ExperienceFiles(spec.folder, state.num_starts)
    if saved:
        learner.load_state_dict(saved["learner"])
        restore_experience(learner, experience, saved["experience"])
    else:
        experience.clear()
    tensors = weights_on_host(learner.network)
    quantiser = make_quantiser(learner.network, spec.train.acting_precision)
    if saved:
        quantiser.load_state_dict(saved["quantiser"])
    if quantiser.needs_frames:
        quantiser.observe(driven_block(spec, tensors))
    with ExitStack() as stack:
        if spec.train.num_collectors:
            half = _other_half(spec, learner, stack)
            published = quantiser.quantise(learner.version, tensors)
            collectors = CollectorProcesses(spec, published, state.env_steps, state.num_starts, other_half=half)
            stack.callback(collectors.stop)
            collectors.start()
        else:
            collectors = SerialCollectors(spec, state.env_steps, state.num_starts)
            stack.callback(collectors.stop)
        checks = Checks(*(_greedy_check(spec, num_cars, stop) for num_cars in _check_sizes(spec.train)))
        for check in checks:
            stack.callback(check.close)
        num_bytes = saved["metrics_bytes"] if saved else 0
        metrics = MetricsLog(spec.folder, env_steps=state.env_steps, num_bytes=num_bytes)
        stack.callback(metrics.close)
        files = Files(metrics, checkpoints, experience)
        loop = LearnerLoop(spec, learner, quantiser, collectors, checks, files, stop, state)
        if saved:
            loop.load_state(saved)
        else:
            loop.records.clear()
        yield loop


def _other_half(spec: RunSpec, learner: Learner, stack: ExitStack) -> OtherHalfProcess | None:
    """Returns the way to the other half of a learner that has one elsewhere; its process is not started yet."""
    if not isinstance(learner, LearnsInHalves) or learner.make_half() is None:
        return None
    half = OtherHalfProcess(learner, spec.block)
    stack.callback(half.stop)
    learner.part_with(half)
    return half


def _check_sizes(train: TrainParams) -> tuple[int, int]:
    """Returns how many cars race side by side in the greedy checks, and in the last choice; a game has one."""
    return train.check_races, train.check_races if train.environment == "game" else train.final_check_races


def _greedy_check(spec: RunSpec, num_cars: int, stop: StopSignals) -> GreedyCheck:
    cars = spec.make_cars(num_cars, at_line=True)
    actor = spec.make_actor(spec.train.seed, spec.device)
    block = replace(spec.block, num_cars=num_cars)
    return GreedyCheck(cars, actor, block, stop.check, is_by_return=spec.is_by_return)


def restore_experience(learner: Learner, files: ExperienceFiles, saved: Mapping[str, Any] | None) -> None:
    """Gives a learner its experience back; where there is none, or it cannot be read, it gathers it anew."""
    try:
        if saved is not None:
            learner.load_experience(Experience(saved["state"], files.pieces(saved["names"])))
            files.go_on_from(saved["names"])
            return
    except DamagedExperienceError as error:
        _LOGGER.warning("%s; going on with these weights, and gathering experience anew", error)
    learner.forget_experience()


def train_run(spec: RunSpec) -> Outcome:
    """Runs a whole training run; Ctrl-C and SIGTERM leave a checkpoint, no process and no shared memory.

    Raises:
        DiskFullError: if there is no room for what the run writes beside its checkpoints.
        UserError: see `LearnerLoop.run`.
    """
    try:
        with StopSignals() as stop, connect(spec, stop) as loop:
            return loop.run()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        message = f"there is no room to write {error.filename or spec.folder.as_posix()}; checkpoints are untouched"
        raise DiskFullError(message, hint="Make room and start again: the run goes on from its checkpoint.") from error
