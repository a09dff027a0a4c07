"""Wires all parts of a training run together, in one function.

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

`==` is shared memory, `--` are messages. Weights pass through the `Quantiser` on their way to `SharedWeights`;
`train.acting_precision` sets their precision. One function builds each variant of a part, and its docstring has the
picture:

    SerialCollectors    train.num_collectors: 0     no right-hand side
    _in_processes       train.cluster: none         the picture above
    _on_cluster         train.cluster: ray          collectors on the nodes of a Ray cluster
    _policy_process     pql.policy_process          half of the learner in its own process
    _other_ranks        train.learners: N           several synchronous learners (data parallel)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rulka.agents.pql.halves import LearnsInHalves
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.quantisation import Quantiser
from rulka.agents.shared.reductions import ALONE, Ranks
from rulka.buffers.experience import StoredExperience
from rulka.machine.device import weights_on_host
from rulka.machine.disk import NO_ROOM, file_of
from rulka.machine.errors import UserError
from rulka.machine.processes import REBUILDING_WINDOW_S, RestartBudget
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished
from rulka.runtime.cluster import RayCluster, find_cluster
from rulka.runtime.collectors import CollectorProcesses, Collectors, SerialCollectors, driven_block
from rulka.runtime.experience_files import DamagedExperienceError, ExperienceFiles
from rulka.runtime.greedy_check import GreedyCheck
from rulka.runtime.learner_loop import LearnerLoop, Outcome, RunState
from rulka.runtime.metrics_log import MetricsLog
from rulka.runtime.policy_process import PolicyProcess
from rulka.runtime.ranks import ConnectedRanks, Rank, RankLostError, RankProcesses
from rulka.runtime.ray_collectors import RayCollectors
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals

_LOGGER = logging.getLogger(__name__)


@contextmanager
def connect(spec: RunSpec, stop: StopSignals, num_restarts: int = 0) -> Iterator[LearnerLoop]:
    """Builds all parts of a run, resumes from its last checkpoint if there is one, and tears everything down again.

    Args:
        spec: of the run.
        stop: tells the loop when to stop.
        num_restarts: restarts of all learners so far.

    No other process may use the run's folder, see `rulka.training.old_runs`.

    Raises:
        RankLostError, UserError: if one of several learners ends before it is ready.
    """
    remove_unfinished(spec.folder)
    checkpoints = Checkpoints(spec.folder)
    saved = checkpoints.load_newest()
    state = RunState(**saved["run"]) if saved else RunState()
    with ExitStack() as stack:
        own, size = spec.of_rank(0), spec.train.learners
        ranks = ALONE if size == 1 else ConnectedRanks(0, size, own.device)
        rank = build_rank(own, saved, state.num_starts, stack, ranks)
        others = None
        if size > 1:
            newest = checkpoints.files()[0] if saved else None
            others = _other_ranks(spec, newest, state.num_starts, stop, stack)
        num_last = spec.final_check_cars or spec.train.final_check_races
        checks = _greedy_check(spec, spec.train.check_races, stop, stack), _greedy_check(spec, num_last, stop, stack)
        num_bytes = saved["metrics_bytes"] if saved else 0
        metrics = MetricsLog(spec.folder, env_steps=state.env_steps, num_bytes=num_bytes)
        stack.callback(metrics.close)
        loop = LearnerLoop(spec, rank, others, checks, (metrics, checkpoints), stop, state, num_restarts)
        if saved:
            loop.load_state(saved)
        else:
            loop.records.clear()
        yield loop


def build_rank(spec: RunSpec, state: Mapping[str, Any] | None, num_starts: int, stack: ExitStack, ranks: Ranks) -> Rank:
    """Builds one learner in its process, with its own collectors and experience, and starts the collectors.

    Args:
        spec: of the rank, see `RunSpec.of_rank`.
        state: the checkpoint to resume from; None starts from scratch.
        num_starts: number of earlier starts of the run.
        stack: tears it down again.
        ranks: all of them.
    """
    saved = None if state is None else saved_of(state, spec.rank)
    cluster = None
    if spec.train.cluster == "ray":  # before a learner imports torchrl, and with it Ray, which then reads its settings
        cluster = RayCluster(find_cluster())
        stack.callback(cluster.close)
    learner = spec.make_learner()
    if ranks.size > 1:
        learner.join(ranks)
    experience, is_whole = ExperienceFiles(spec.folder, num_starts), True
    if saved:
        learner.load_state_dict(saved["learner"])
        is_restored = restore_experience(learner, experience, saved["experience"], saved["run"]["env_steps"])
        is_whole = is_restored and saved["collectors"] is not None
    else:
        experience.clear()
    tensors = weights_on_host(learner.network)
    quantiser = Quantiser(learner.network, spec.train.acting_precision)
    if saved:
        quantiser.load_state_dict(saved["quantiser"])
    if quantiser.needs_frames:
        quantiser.observe(driven_block(spec, tensors))
    if not spec.train.num_collectors:
        collectors: Collectors = SerialCollectors(spec, learner.num_env_steps, num_starts)
    else:
        build = _in_processes if cluster is None else partial(_on_cluster, cluster)
        policy_process = _policy_process(spec, learner, stack)
        version = quantiser.quantise(learner.version, tensors)
        collectors = build(spec, version, learner.num_env_steps, num_starts, policy_process)
    stack.callback(collectors.stop)
    if saved and saved["collectors"]:
        collectors.load_state_dict(saved["collectors"])
    collectors.start()
    return Rank(spec, learner, quantiser, collectors, experience, is_whole=is_whole)


def _in_processes(
    spec: RunSpec, version: Mapping[str, Tensor], env_steps: int, num_starts: int, policy_process: PolicyProcess | None
) -> Collectors:
    """Builds collectors in processes on this machine.

    With `train.inference: central` the only actor runs in the policy worker, a separate process that serves all
    collectors (`rulka.runtime.central`):

        +------ process of collector k ------+             +------ process of the policy worker ------+
        |                                    |    pipe     |                                          |
        |   Collector = cars ---------------------------------- Request, Response --> actor           |
        |      |                             |             |                          ^    ^          |
        |      +===== request slot k =================================================+    |          |
        |                                    |             |               SharedWeights ==+          |
        +------------------------------------+             +------------------------------------------+
    """
    return CollectorProcesses(spec, version, env_steps, num_starts, policy_process=policy_process)


def _on_cluster(
    cluster: RayCluster,
    spec: RunSpec,
    version: Mapping[str, Tensor],
    env_steps: int,
    num_starts: int,
    policy_process: PolicyProcess | None,
) -> Collectors:
    """Builds collectors on the nodes of a Ray cluster, each a Ray actor.

    A permission is a call with the newest weights, which returns the block (`rulka.runtime.ray_collectors`):

        +------ process of the stage ------+             +--- actor of Ray, on some node ---+
        |                                  |     Ray     |                                  |
        |  Rank --- RayCollectors --- moment, weights -----> RemoteCollector --- Collector  |
        |                                <-- block, facts, signs of life                    |
        +----------------------------------+             +----------------------------------+
    """
    return RayCollectors(spec, version, env_steps, num_starts, cluster, policy_process=policy_process)


def _policy_process(spec: RunSpec, learner: Learner, stack: ExitStack) -> PolicyProcess | None:
    """Moves one half of a learner to its own process, if so configured; the collectors start and stop that process.

    That half receives the collectors' observations and learns as far as it is permitted to:

        +------ process of the stage ------+            +-------- policy process -----------+
        |                                  |    pipe    |                                   |
        |  Learner --- PolicyProcess --- NewBlock, Permit, Stop --->  Half                  |
        |                  |       ^ ^   <--- SlotRead, HalfUpdated, Heartbeat, Failed      |
        |       Supervisor +       | +====== SharedBlocks =========== frames, floats        |
        |                          +==== SharedWeights, one each way =====                  |
        +----------------------------------+            +-----------------------------------+
    """
    if not isinstance(learner, LearnsInHalves) or learner.make_half() is None:
        return None
    policy_process = PolicyProcess(learner, spec.block)
    stack.callback(policy_process.stop)
    learner.attach_remote(policy_process)
    return policy_process


def _other_ranks(
    spec: RunSpec, newest: Path | None, num_starts: int, stop: StopSignals, stack: ExitStack
) -> RankProcesses:
    """Starts all learners but the first and connects them to it; they resume from the newest checkpoint.

    Each has its own collectors and the whole right-hand side. Every method that the loop calls on its rank, all
    ranks call (`rulka.runtime.ranks`). If one is lost, all of them restart from the last checkpoint:

        +---------- process of the stage ----------+                +-- process of learner k, from 1 on --+
        |                                          |      pipe      |                                     |
        |   LearnerLoop -- Rank 0      RankProcesses --- method, arguments ---> Rank k = Learner, and      |
        |                   |                  <-------- answers    |           CollectorProcesses         |
        |                Learner ============= torch.distributed ============== Learner                   |
        +------------------------------------------+    gradients   +-------------------------------------+
    """
    runs = [spec.of_rank(rank) for rank in range(1, spec.train.learners)]
    others = RankProcesses(runs, build_rank, spec.folder, newest, num_starts)
    stack.callback(others.stop)
    others.connect(spec.of_rank(0).device, stop.check)
    return others


def saved_of(state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Returns a rank's part of a checkpoint; the state that all ranks share is the first rank's."""
    if rank == 0:
        return dict(state)
    own = state["others"][rank - 1]
    return own | {"learner": state["learner"] | own["learner"], "run": state["run"]}


def restore_experience(
    learner: Learner, files: ExperienceFiles, saved: Mapping[str, Any] | None, env_steps: int
) -> bool:
    """Restores a learner's experience; if there is none or it is damaged, the learner collects it again.

    Args:
        learner: to restore.
        files: of its experience.
        saved: the checkpoint's entry for it; None if it was not saved.
        env_steps: of the checkpoint.

    Returns:
        True if it was restored.
    """
    try:
        if saved is not None:
            learner.load_experience(StoredExperience(saved["state"], files.pieces(saved["names"])))
            files.go_on_from(env_steps, saved["names"])
            return True
    except DamagedExperienceError as error:
        _LOGGER.warning("%s; going on with these weights, and gathering experience anew", error)
    learner.forget_experience()
    return False


def _greedy_check(spec: RunSpec, num_cars: int, stop: StopSignals, stack: ExitStack) -> GreedyCheck:
    cars = spec.make_cars(num_cars, at_line=True)
    actor = spec.make_actor(spec.train.seed, spec.device)
    block = replace(spec.block, num_cars=num_cars)
    stack.callback(cars.close)
    return GreedyCheck(cars, actor, block, stop.check, is_by_return=spec.is_by_return)


def train_run(spec: RunSpec) -> Outcome:
    """Runs a whole training run; Ctrl-C and SIGTERM leave a checkpoint, but no process and no shared memory.

    If one of several learners dies or hangs, all of them restart from the last checkpoint.

    Raises:
        UserError: if the disk has no room for the run's files other than checkpoints; see `LearnerLoop.run`.
        RuntimeError: if learners lose each other too often.
    """
    budget = RestartBudget(window_s=REBUILDING_WINDOW_S)
    try:
        with StopSignals() as stop:
            num_restarts = 0
            while True:
                try:
                    with connect(spec, stop, num_restarts) as loop:
                        return loop.run()
                except RankLostError as error:
                    stop.check()
                    if not budget.take():
                        raise RuntimeError(f"learners came apart {budget.span}; the last time {error}") from error
                    _LOGGER.warning("%s; all learners begin again at the last checkpoint", error)
                    num_restarts += 1
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        message = f"there is no room to write {file_of(error) or spec.folder.as_posix()}; checkpoints are untouched"
        raise UserError(message, hint="Make room and start again: the run goes on from its checkpoint.") from error
