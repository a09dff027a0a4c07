"""Interface between environments and the runtime: `Environment`, and the run and agent built from one.

Races (`race_environment`) and any Gymnasium environment (`gymnasium_environment`) each implement `Environment`. The
code here is the same for both.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from models.encoders.config import EncoderConfig
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.params import Algorithm
from rulka.agents.preferences.params import GivenPairsParams
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.quantisation import check_acting_precision
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, ExperienceBlock, PreferencePairs
from rulka.contracts.actions import ActionSpace, ActionTable, Intervals
from rulka.contracts.artifacts import Artifact, NetworkInputContract, load_artifact
from rulka.contracts.observation import NUM_FLOATS, Normalisation
from rulka.contracts.observation_params import ObservationParams
from rulka.machine.device import CPU, devices_of_learners
from rulka.machine.processes import check_is_guarded
from rulka.params import Params
from rulka.runtime.cluster import find_cluster
from rulka.runtime.collector import CarBatch
from rulka.runtime.learner_loop import Outcome
from rulka.runtime.specs import MakeActor, MakeCars, RunSpec
from rulka.training.params import TrainParams

_LOGGER = logging.getLogger(__name__)

STEP_MS = 50
"""Assumed duration of a step in an environment without a clock."""


class Environment(ABC):
    """Training environment; picklable, because collectors and learners build their parts in their own processes.

    Another kind of environment needs another subclass; another Gymnasium environment does not.

    Attributes:
        is_by_return: whether weights are selected by the return of greedy episodes, because there is no finish.
        final_check_cars: parallel cars in the final selection of weights; None runs all of its races at once.
    """

    is_by_return: ClassVar[bool] = False
    final_check_cars: ClassVar[int | None] = None

    @property
    @abstractmethod
    def name(self) -> str:
        """Environment name in artifacts."""

    @property
    @abstractmethod
    def input_contract(self) -> NetworkInputContract:
        """Observation contract of agents, as stored in artifacts."""

    @property
    @abstractmethod
    def actions(self) -> ActionTable | ActionSpace:
        """Action table or action space."""

    @property
    def keeps_record(self) -> bool:
        """Whether the fastest greedy race is kept."""
        return not self.is_by_return

    @abstractmethod
    def make_cars(self, num_cars: int, *, at_line: bool) -> CarBatch:
        """Builds cars for greedy checks; see `rulka.runtime.specs.MakeCars`."""

    def cars_of_collector(self, collector: int) -> MakeCars:
        """Returns the factory of a collector's cars, if collectors differ."""
        del collector
        return self.make_cars

    @abstractmethod
    def demonstrations(self) -> list[ExperienceBlock]:
        """Reads the demonstrations, in blocks of one car."""

    def pairs(self, wanted: GivenPairsParams, seed: int) -> PreferencePairs:
        """Reads the preference pairs for DPO, if the environment has any."""
        raise NotImplementedError


def agent_spec(
    params: Params,
    algorithm: Algorithm,
    environment: Environment,
    normalisation: Normalisation,
    encoder: EncoderConfig | None = None,
) -> AgentSpec:
    """Returns the specification of an agent in an environment; `encoder` overrides that of the parameters."""
    actions = environment.actions
    return AgentSpec(
        algorithm=algorithm,
        observation=environment.input_contract.params(),
        encoder=encoder or params.encoder,
        network=params.network,
        params=params.algorithms[algorithm],
        actions=actions.space,
        normalisation=normalisation,
        decision_ms=actions.duration_ms if isinstance(actions, ActionTable) else STEP_MS,
        precision=params.train.precision,
    )


def run_spec(
    environment: Environment,
    spec: AgentSpec,
    train: TrainParams,
    folder: Path,
    device: torch.device = CPU,
    initial: Path | None = None,
) -> RunSpec:
    """Returns the specification of a run.

    Args:
        environment: of the agent.
        spec: of the agent.
        train: section `train`.
        folder: of the run.
        device: of the learner.
        initial: artifact of kind "agent_init" with the initial weights, already checked to fit; None initialises new
            weights.
    """
    return RunSpec(
        make_cars=environment.make_cars,
        cars_of=environment.cars_of_collector,
        make_actor=partial(make_actor, spec),
        collecting_actor=collecting_actor(spec, train),
        build_learner=LearnerBuilder(environment, spec, train.seed, initial),
        block=block_spec(spec.observation, train, spec.actions, len(spec.normalisation.mean)),
        train=train,
        folder=folder,
        label=f"train {spec.algorithm}",
        keeps_record=environment.keeps_record,
        final_check_cars=environment.final_check_cars,
        is_by_return=environment.is_by_return,
        device=device,
    )


@dataclass(frozen=True)
class LearnerBuilder:
    """Builds a learner of a run, in any process; see `rulka.runtime.specs.BuildLearner`.

    Attributes:
        environment: of the run, which reads its demonstrations or preference pairs.
        spec: of the agent.
        seed: of the learner.
        initial: artifact of kind "agent_init" with the initial weights; None initialises new ones.
    """

    environment: Environment
    spec: AgentSpec
    seed: int
    initial: Path | None

    def __call__(self, num_learners: int, device: torch.device) -> Learner:
        """Builds the only learner, or one of several, on a device."""
        params = self.spec.params
        share = params.share_of_learner(num_learners)  # divides batch and buffer sizes among learners
        learner = make_learner(replace(self.spec, params=share), self.seed, device)
        fresh = learner.network.state_dict()
        learner.load_network(fresh if self.initial is None else load_artifact(self.initial, "agent_init").tensors)
        if params.has_demonstrations and (blocks := self.environment.demonstrations()):
            learner.insert_demonstrations(blocks)
        if params.given_pairs is not None:
            learner.insert_pairs(self.environment.pairs(params.given_pairs, self.seed))
        return learner


def trained_agent(
    environment: Environment, spec: AgentSpec, outcome: Outcome, origin: Mapping[str, Any], **facts: Any
) -> Artifact:
    """Returns the trained agent of a finished run.

    Args:
        environment: of the training.
        spec: of the agent.
        outcome: of the run.
        origin: its provenance.
        **facts: additional facts about the training, for reports.
    """
    state, best = outcome.state, outcome.best
    if best.env_steps == 0:
        _LOGGER.warning("%s keeps its initial weights: none that it learned raced better", spec.algorithm)
    training = {
        "env_steps": state.env_steps,
        "gradient_steps": state.gradient_steps,
        "ended_by": outcome.ended_by,
        "repeats": outcome.repeats,
        "marks": state.marks,
        "record_s": outcome.record_s,
        "weights_of_env_steps": best.env_steps,
        "last_check": asdict(best.result),
        "precision": {"bfloat16": "bf16"}.get(outcome.precision, outcome.precision),
    }
    return Artifact(
        kind="agent",
        tensors=best.tensors,
        config=agent_config(spec),
        observation=environment.input_contract,
        actions=environment.actions,
        normalisation=spec.normalisation,
        provenance={**origin, "training": training | facts},
        environment=environment.name,
    )


def agent_config(spec: AgentSpec) -> dict[str, Any]:
    """Returns plain JSON from which an agent's network can be rebuilt; the `config` of its artifact."""
    return {
        "algorithm": spec.algorithm,
        "encoder": spec.encoder.model_dump(mode="json"),
        "network": spec.network.model_dump(mode="json"),
        spec.algorithm: spec.params.model_dump(mode="json"),
    }


def block_spec(
    observation: ObservationParams, train: TrainParams, actions: ActionTable | ActionSpace, num_floats: int = NUM_FLOATS
) -> BlockSpec:
    """Returns the shape of the blocks of a run."""
    return BlockSpec(
        num_steps=train.block_steps,
        num_cars=train.cars_per_collector,
        height=observation.height,
        width=observation.width,
        num_floats=num_floats,
        decision_size=math.prod(actions.decision_shape),
        continuous=isinstance(actions.space, Intervals),
        frames=observation.frames,
    )


def collecting_actor(spec: AgentSpec, train: TrainParams) -> MakeActor:
    """Returns the actor factory for collectors and policy workers."""
    return partial(make_actor, replace(spec, acting_precision=train.acting_precision))


def check_machine(train: TrainParams, device: torch.device) -> None:
    """Checks, as far as possible in advance, that this machine and its cluster can do a run.

    Call it first: a script without a `__main__` guard must get no further in its own child processes.

    Raises:
        UserError: if there are more learners than devices, actors cannot compute in `train.acting_precision`, or the
            cluster is missing.
    """
    check_is_guarded()
    devices_of_learners(device, train.learners)
    check_acting_precision(train.acting_precision, device if train.inference == "central" else CPU)
    if train.cluster == "ray":
        find_cluster()
