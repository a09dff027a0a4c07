"""Training of one agent in one Gymnasium environment.

It uses the runtime of races: an environment stands for a car, an episode for a race, and the best weights are selected
by the mean return of greedy episodes. The name of a run's folder contains a hash of its configuration. The folder holds
metrics during the run and the agent, an artifact as for races (`rulka.contracts.artifacts`), at its end.
"""

from __future__ import annotations

import logging
import re
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import torch

from models.encoders.config import BackboneConfig, ConvConfig
from rulka.agents.algorithms import make_actor
from rulka.buffers.experience import ExperienceBlock
from rulka.contracts.actions import ActionSpace, ActionTable
from rulka.contracts.artifacts import (
    META_FILE,
    Artifact,
    ArtifactError,
    NetworkInputContract,
    load_artifact,
    write_artifact,
)
from rulka.contracts.observation import SCHEMA_VERSION
from rulka.contracts.observation_params import ObservationParams
from rulka.envs.episodes import EnvironmentFacts, Episodes, measure_normalisation, read_facts, recordings_of, replay
from rulka.machine.device import CPU
from rulka.machine.errors import UserError
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, checked_params
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.connect import train_run
from rulka.runtime.greedy_check import GreedyCheck
from rulka.runtime.run_lock import locked
from rulka.stages.folders import RUNS
from rulka.stages.provenance import code_version, hash_json, provenance
from rulka.training.agent_run import sections_of
from rulka.training.environment import (
    Environment,
    agent_spec,
    block_spec,
    check_machine,
    collecting_actor,
    run_spec,
    trained_agent,
)
from rulka.training.old_runs import drop_experience

ENVIRONMENT_RUNS = RUNS / "environments"
KEY_LENGTH = 16
SECTIONS = ("observation", "encoder", "network", "train")
"""Sections of the parameters that affect such a training, in addition to that of its algorithm."""
FINAL_SEED = 3
"""Added to the shifted seed of the run, as for greedy checks: seeds the reported episodes."""
UNUSED_ENCODER = ConvConfig(kind="conv", adaptive_pool=0)
"""Encoder for environments without an image: it can be built for the smallest image, and is never run."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class GymnasiumEnvironment(Environment):
    """Any Gymnasium environment; see `rulka.training.environment.Environment`.

    Attributes:
        facts: observation and action layout.
        observation: observation parameters, from `EnvironmentFacts.seen`.
    """

    facts: EnvironmentFacts
    observation: ObservationParams

    is_by_return: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Its ID."""
        return self.facts.environment

    @property
    def input_contract(self) -> NetworkInputContract:
        """Observation contract of agents."""
        layout = hash_json([self.facts.image, self.facts.numbers, self.facts.num_floats])[:KEY_LENGTH]
        return NetworkInputContract(schema_version=SCHEMA_VERSION, float_layout=layout, **dict(self.observation))

    @property
    def actions(self) -> ActionSpace:
        """Action space."""
        return self.facts.actions

    def make_cars(self, num_cars: int, *, at_line: bool) -> Episodes:
        """Creates parallel environments; `at_line` makes no difference."""
        del at_line
        return Episodes(self.name, num_cars, self.observation)

    def demonstrations(self) -> list[ExperienceBlock]:
        """Replays the environment's recordings."""
        return [replay(self.facts, self.observation, each) for each in recordings_of(self.name)]


def train_in_environment(
    facts: EnvironmentFacts, params: Params, runs: Path = ENVIRONMENT_RUNS, device: torch.device = CPU
) -> tuple[Path, Artifact]:
    """Trains an agent, resuming an interrupted run. Returns a finished agent without training again.

    Args:
        facts: of the environment.
        params: all parameters; `train.algorithm` selects the agent.
        runs: parent of the run's folder, whose name contains a hash of its configuration.
        device: of the learner.

    Returns:
        The run's folder, and the agent in it.

    Raises:
        UserError: if the parameters are impossible or leave no usable observation of the environment; see
            `rulka.training.environment.check_machine` and `rulka.runtime.connect.train_run`.
    """
    check_machine(params.train, device)
    observation = facts.seen(params.observation)
    encoder = params.encoder if observation.shows_image else UNUSED_ENCODER
    params = params.model_copy(update={"observation": observation, "encoder": encoder})
    _check(facts, params)
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    environment = GymnasiumEnvironment(facts, observation)
    normalisation = measure_normalisation(facts, params.train.seed)
    spec = agent_spec(params, params.train.algorithm, environment, normalisation)
    # Raises if the algorithm or the encoder is unsuitable, before a folder is created.
    collecting_actor(spec, params.train)(0)
    sections = sections_of(params, spec.algorithm, SECTIONS)
    plain = {name: section.model_dump(mode="json") for name, section in sections.items()}
    identity = [repr(facts), plain, code_version(), version("gymnasium")]
    name = re.sub(r"[^\w.-]+", "-", facts.environment)
    folder = runs / f"{name}-{spec.algorithm}-{hash_json(identity)[:KEY_LENGTH]}"
    with locked(folder):
        if (folder / META_FILE).exists():
            _LOGGER.warning("%s: trained to its end; it is not trained again", folder.as_posix())
            return folder, load_environment_agent(folder)
        outcome = train_run(run_spec(environment, spec, params.train, folder, device))
        agent = trained_agent(environment, spec, outcome, provenance(None, dict(params), {}))
        # The returns of the last check are biased upwards, because they selected the weights: measure new ones.
        seed = (params.train.seed << 8) + FINAL_SEED
        agent.provenance["training"]["returns"] = race_in_environment(
            agent, params.train.final_check_races, seed, device
        )
        write_artifact(folder, agent)
        Checkpoints(folder).clear()
        drop_experience(folder)
    return folder, agent


def race_in_environment(agent: Artifact, num_episodes: int, seed: int, device: torch.device = CPU) -> list[float]:
    """Runs an agent greedily and returns the undiscounted return of each episode.

    Args:
        agent: trained by `train_in_environment`.
        num_episodes: number of episodes.
        seed: of their starts.
        device: of the network.

    Raises:
        UserError: if the environment's observations or actions have changed since the training, or if the agent was
            trained with parameters of another version.
    """
    torch.set_num_threads(1)
    what_is_wrong = f"the agent of {agent.environment} holds parameters of another version"
    params = checked_params(agent.provenance["parameters"], what_is_wrong)
    environment = GymnasiumEnvironment(read_facts(agent.environment), agent.observation.params())
    if (environment.input_contract, environment.actions) != (agent.observation, agent.actions):
        message = f"{agent.environment} shows or takes something else than when the agent was trained"
        raise UserError(message, hint="Use the version of the environment that it was trained in.")
    spec = agent_spec(params, params.train.algorithm, environment, agent.normalisation)
    num_cars = min(num_episodes, params.train.check_races)
    block = block_spec(spec.observation, params.train, spec.actions, len(spec.normalisation.mean))
    block = replace(block, num_cars=num_cars)
    with closing(environment.make_cars(num_cars, at_line=True)) as cars:
        check = GreedyCheck(cars, make_actor(spec, seed, device), block, lambda: None, is_by_return=True)
        return check.race(agent.tensors, seed, num_episodes).total_reward[:num_episodes].tolist()


def load_environment_agent(folder: Path) -> Artifact:
    """Reads an agent trained by `train_in_environment`.

    Raises:
        UserError: if there is none, it is damaged, or it is an agent for races.
    """
    hint = "`rulka env train` makes one, and says where."
    try:
        agent = load_artifact(folder, "agent", environment=None)
    except ArtifactError as error:
        raise UserError(str(error), hint=hint) from error
    if isinstance(agent.actions, ActionTable):
        raise UserError(f"{folder.as_posix()} holds an agent that races", hint="`rulka evaluate` lets it race.")
    return agent


def _check(facts: EnvironmentFacts, params: Params) -> None:
    """Raises UserError if the parameters need something that the environment does not have."""
    algorithm = params.train.algorithm
    section = params.algorithms[algorithm]
    wrong = None
    if section.given_pairs is not None:
        wrong = f"{algorithm} learns from pairs of captured races, and there are none of {facts.environment}"
    elif section.has_demonstrations and not recordings_of(facts.environment):
        wrong = f"{algorithm} learns from demonstrations, and {facts.environment} brings no recordings"
    elif section.races_per_start > 1:
        wrong = f"{algorithm} compares episodes that begin alike, which {facts.environment} does not deal"
    elif params.network.num_parts > 1:
        wrong = f"network.actions_per_decision is more than 1, and {facts.environment} takes single actions"
    elif section.action_repeat > 1:
        wrong = f"{algorithm}.action_repeat is more than 1, and steps of {facts.environment} are taken once"
    elif isinstance(params.encoder, BackboneConfig):
        wrong = "encoder.kind is backbone, whose weights stage pretrain reads, and no stage runs here"
    if wrong is not None:
        raise UserError(wrong, hint="Set the parameter with --set, or in a file of presets/environments/.")
