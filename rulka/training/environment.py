"""The training of one agent in one Gymnasium environment: its folder, and what it leaves there.

The runtime is that of the races: an environment takes the place of a car, an episode that of a race, and weights are
chosen by the mean return of greedy episodes. A finished run leaves in its folder

    run.json               environment, parameters and code: the run goes on only as long as these are the same
    metrics.jsonl, ...     how it went, see `rulka.runtime.metrics_log`
    weights.safetensors    of the chosen network
    agent.json             all that is needed to let it act again, and how it did; written last
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import models
import rulka
from models.encoders.config import BackboneConfig, ConvConfig
from rulka.actions import Intervals
from rulka.agents.algorithms import ALGORITHMS, make_actor, make_learner
from rulka.agents.learner import Learner
from rulka.agents.precision import raise_malloc_thresholds
from rulka.agents.quantisation import check_acting_precision
from rulka.agents.spec import AgentSpec
from rulka.buffers.experience import BlockSpec
from rulka.cluster import find_cluster
from rulka.device import CPU, devices_of_learners
from rulka.envs.episodes import (
    EnvironmentFacts,
    Episodes,
    UnfitEnvironmentError,
    measure_normalisation,
    read_facts,
)
from rulka.errors import UserError
from rulka.folders import RUNS
from rulka.graph import hash_code
from rulka.observation import Normalisation
from rulka.outputs import check_folder
from rulka.params import ObservationParams, Params, checked_params
from rulka.provenance import hash_json, library_versions
from rulka.runtime.checkpoint import write_file
from rulka.runtime.connect import train_run
from rulka.runtime.greedy_check import GreedyCheck
from rulka.runtime.learner_loop import Outcome
from rulka.runtime.run_lock import LOCK_FILE, PID_FILE, locked
from rulka.runtime.specs import LearnerShare, RunSpec
from rulka.training.parts import acting_device, collecting_actor, share_of_agent
from rulka.training.run_folder import forget_run

ENVIRONMENT_RUNS = RUNS / "environments"
RUN_FILE, AGENT_FILE, WEIGHTS_FILE = "run.json", "agent.json", "weights.safetensors"
SCHEMA_VERSION = 1
KEY_LENGTH = 16
FINAL_SEED = 3
"""Added to the run's seed, shifted, as the seeds of greedy checks are: starts of the episodes that are reported."""
UNUSED_ENCODER = ConvConfig(kind="conv", adaptive_pool=0)
"""Where there is no image: it can be built for the smallest one, and is never run."""
_LOGGER = logging.getLogger(__name__)


class EnvironmentRunError(UserError):
    """An agent cannot be trained in an environment with these parameters, or a folder holds something else."""


@dataclass(frozen=True)
class EnvironmentAgent:
    """An agent that was trained in an environment.

    Attributes:
        environment: its ID.
        facts: what the environment showed and took then, as text.
        params: all parameters that it was trained with.
        normalisation: of the floats.
        tensors: its weights.
        training: what was done, as plain JSON.
        returns: of the greedy episodes by which it is reported, undiscounted.
    """

    environment: str
    facts: str
    params: Params
    normalisation: Normalisation
    tensors: dict[str, Tensor]
    training: dict[str, Any]
    returns: list[float]


def build_episodes(environment: str, observation: ObservationParams, num_cars: int, *, at_line: bool) -> Episodes:
    """Builds environments side by side; see `rulka.runtime.specs.MakeCars`. They begin all episodes alike."""
    del at_line
    return Episodes(environment, num_cars, observation)


def train_in_environment(
    facts: EnvironmentFacts, params: Params, folder: Path | None = None, device: torch.device = CPU
) -> tuple[Path, EnvironmentAgent]:
    """Trains an agent, or goes on training it, until there is one; what is done is not done again.

    Args:
        facts: of the environment.
        params: all parameters, of which `train.algorithm` names the agent.
        folder: where; None takes one in `ENVIRONMENT_RUNS`, named by a hash of what decides the run.
        device: where it learns.

    Returns:
        The folder, and the agent that lies there.

    Raises:
        UnfitEnvironmentError: if agents cannot see what the parameters leave of the environment.
        EnvironmentRunError: if the parameters cannot be, or the folder holds something else.
        UserError: see `rulka.runtime.connect.train_run`.
    """
    observation = facts.seen(params.observation)
    encoder = params.encoder if observation.shows_image else UNUSED_ENCODER
    params = params.model_copy(update={"observation": observation, "encoder": encoder})
    _check(facts, params)
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    spec = _agent_spec(facts, params, measure_normalisation(facts, params.train.seed))
    devices_of_learners(device, params.train.learners)
    check_acting_precision(params.train.acting_precision, acting_device(params.train, device))
    if params.train.cluster == "ray":
        find_cluster()
    collecting_actor(spec, params.train)(
        0
    )  # refuses what the algorithm or the encoder cannot do, before there is a folder
    identity = _identity(facts.environment, params)
    if folder is None:
        name = re.sub(r"[^\w.-]+", "-", facts.environment)
        folder = ENVIRONMENT_RUNS / f"{name}-{params.train.algorithm}-{hash_json(identity)[:KEY_LENGTH]}"
    else:
        check_folder(folder)
    with locked(folder):
        _claim(folder, identity)
        if (folder / AGENT_FILE).exists():
            _LOGGER.warning("%s: trained to its end; it is not trained again", folder.as_posix())
            return folder, load_environment_agent(folder)
        agent = _train(facts, spec, params, folder, device)
        _save(folder, agent)
        forget_run(folder)
    return folder, agent


def race_in_environment(
    agent: EnvironmentAgent, num_episodes: int, seed: int, device: torch.device = CPU
) -> list[float]:
    """Lets an agent act greedily and returns the undiscounted return of each episode.

    Args:
        agent: whose weights.
        num_episodes: how many.
        seed: of where they begin.
        device: where its network runs.

    Raises:
        UnfitEnvironmentError: if the environment shows or takes something else than it did.
    """
    facts = read_facts(agent.environment)
    spec = _agent_spec(facts, agent.params, agent.normalisation)
    if repr(facts) != agent.facts:
        message = f"{agent.environment} shows or takes something else than when the agent was trained"
        raise UnfitEnvironmentError(message, hint="Use the version of the environment that it was trained in.")
    num_cars = min(num_episodes, agent.params.train.check_races)
    cars = build_episodes(agent.environment, agent.params.observation, num_cars, at_line=True)
    check = GreedyCheck(cars, make_actor(spec, seed, device), _block_spec(spec, agent.params, num_cars), lambda: None)
    try:
        return check.race(agent.tensors, seed, num_episodes).total_reward[:num_episodes].tolist()
    finally:
        check.close()


def load_environment_agent(folder: Path) -> EnvironmentAgent:
    """Reads what `train_in_environment` left in a folder.

    Raises:
        EnvironmentRunError: if there is no agent, or it is damaged.
    """
    path = folder / AGENT_FILE
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        weights = (folder / WEIGHTS_FILE).read_bytes()
    except FileNotFoundError as error:
        message = f"{folder.as_posix()} holds no agent of an environment: {Path(error.filename).name} is missing"
        raise EnvironmentRunError(message, hint="`rulka train-env` makes one, and says where.") from error
    except (OSError, ValueError) as error:
        message = f"{path.as_posix()} cannot be read: {error}"
        raise EnvironmentRunError(message) from error
    if meta.get("schema_version") != SCHEMA_VERSION:
        message = f"{path.as_posix()} has the schema version {meta.get('schema_version')}, expected {SCHEMA_VERSION}"
        raise EnvironmentRunError(message, hint="Train the agent again with this version.")
    if hashlib.sha256(weights).hexdigest() != meta["weights_sha256"]:
        message = f"{(folder / WEIGHTS_FILE).as_posix()} is damaged: its SHA-256 is not that in {AGENT_FILE}"
        raise EnvironmentRunError(message, hint="Remove the folder and train the agent again.")
    moments = (torch.tensor(meta["normalisation"][name]).numpy() for name in ("mean", "std"))
    return EnvironmentAgent(
        environment=meta["environment"],
        facts=meta["facts"],
        params=checked_params(meta["parameters"], f"{path.as_posix()} holds parameters of another version"),
        normalisation=Normalisation(*moments),
        tensors=safetensors.torch.load(weights),
        training=meta["training"],
        returns=meta["returns"],
    )


def _check(facts: EnvironmentFacts, params: Params) -> None:
    """Refuses parameters that ask for what an environment has not, before anything is trained."""
    algorithm = params.train.algorithm
    entry, section = ALGORITHMS[algorithm], params.algorithms[algorithm]
    wrong = None
    if entry.needs_demonstrations(section) or entry.given_pairs(section) is not None:
        wrong = f"{algorithm} learns from demonstrations, and there are none of {facts.environment}"
    elif section.races_per_start > 1:
        wrong = f"{algorithm} compares episodes that begin alike, which {facts.environment} does not deal"
    elif params.network.actions_per_decision > 1:
        wrong = f"network.actions_per_decision is more than 1, and {facts.environment} takes single actions"
    elif section.action_repeat > 1:
        wrong = f"{algorithm}.action_repeat is more than 1, and steps of {facts.environment} are taken once"
    elif isinstance(params.encoder, BackboneConfig):
        wrong = "encoder.kind is backbone, whose weights stage pretrain reads, and no stage runs here"
    if wrong is not None:
        raise EnvironmentRunError(wrong, hint="Set the parameter with --set, or in a file of presets/environments/.")


def _identity(environment: str, params: Params) -> dict[str, Any]:
    """Returns all that decides how a run goes: environment, parameters and code."""
    algorithm = params.train.algorithm
    names = ("observation", "encoder", "network", "train", algorithm)
    code = [file for package in (rulka, models) for file in sorted(Path(package.__path__[0]).rglob("*.py"))]
    return {
        "environment": environment,
        "parameters": {name: getattr(params, name).model_dump(mode="json") for name in names},
        "code": hash_code(code),
        "versions": library_versions() | {"gymnasium": version("gymnasium")},
    }


def _claim(folder: Path, identity: Mapping[str, Any]) -> None:
    """Makes a folder that of a run, or finds that it is.

    Raises:
        EnvironmentRunError: if it is another run's, holds something else, or is damaged.
    """
    path = folder / RUN_FILE
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            message = f"{path.as_posix()} is damaged: {error}"
            raise EnvironmentRunError(message, hint="Name another folder, or remove this one.") from error
        if before != identity:
            what = next(_differing(before, identity))
            message = f"{folder.as_posix()} holds another training: {what}"
            raise EnvironmentRunError(message, hint="Name another folder, or remove this one.")
        return
    others = sorted(file.name for file in folder.iterdir() if file.name not in (LOCK_FILE, PID_FILE))
    if others:
        message = f"{folder.as_posix()} holds {others[0]}, and a training needs a folder of its own"
        raise EnvironmentRunError(message, hint="Name an empty folder, or one that is not there yet.")
    with write_file(path) as file:
        file.write(json.dumps(identity, indent=1).encode())


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Yields for each value that differs between nested mappings which it is, and both of its values."""
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differing(old, new, f"{inside}{key}.")
        elif old != new:
            yield f"{inside}{key} was {old!r:.80} and is {new!r:.80}"


def _train(
    facts: EnvironmentFacts, spec: AgentSpec, params: Params, folder: Path, device: torch.device
) -> EnvironmentAgent:
    train = params.train
    outcome = train_run(
        RunSpec(
            make_cars=partial(build_episodes, facts.environment, params.observation),
            make_actor=partial(make_actor, spec),
            make_collecting_actor=collecting_actor(spec, train),
            build_learner=partial(_new_learner, spec, train.seed),
            block=_block_spec(spec, params, train.cars_per_collector),
            train=train,
            folder=folder,
            label=f"train {train.algorithm}",
            is_by_return=True,
            device=device,
        )
    )
    agent = EnvironmentAgent(
        environment=facts.environment,
        facts=repr(facts),
        params=params,
        normalisation=spec.normalisation,
        tensors=outcome.best.tensors,
        training=_training(outcome),
        returns=[],
    )
    # The agent was chosen for its returns in the last check, which are therefore higher than it deserves.
    seed = (train.seed << 8) + FINAL_SEED
    return replace(agent, returns=race_in_environment(agent, train.final_check_races, seed, device))


def _new_learner(spec: AgentSpec, seed: int, share: LearnerShare) -> Learner:
    """Returns a learner that begins with fresh weights, as it would with those of an initial agent."""
    learner = make_learner(share_of_agent(spec, share), seed, share.device)
    learner.load_network(learner.network.state_dict())
    return learner


def _agent_spec(facts: EnvironmentFacts, params: Params, normalisation: Normalisation) -> AgentSpec:
    algorithm = params.train.algorithm
    return AgentSpec(
        algorithm=algorithm,
        observation=params.observation,
        encoder=params.encoder,
        network=params.network,
        settings=params.algorithms[algorithm],
        actions=facts.actions,
        normalisation=normalisation,
        precision=params.train.precision,
    )


def _block_spec(spec: AgentSpec, params: Params, num_cars: int) -> BlockSpec:
    return BlockSpec(
        num_steps=params.train.block_steps,
        num_cars=num_cars,
        height=spec.observation.height,
        width=spec.observation.width,
        num_floats=len(spec.normalisation.mean),
        decision_shape=spec.actions.decision_shape,
        continuous=isinstance(spec.actions, Intervals),
        frames=spec.observation.frames,
    )


def _training(outcome: Outcome) -> dict[str, Any]:
    """Returns facts of the training for reports."""
    state = outcome.state
    return {
        "env_steps": state.env_steps,
        "gradient_steps": state.gradient_steps,
        "minutes": round(state.seconds / 60.0, 3),
        "cpu_seconds": round(state.cpu_seconds, 1),
        "num_starts": state.num_starts,
        "ended_by": outcome.ended_by,
        "weights_of_env_steps": outcome.best.env_steps,
        "precision": outcome.precision,
    }


def _save(folder: Path, agent: EnvironmentAgent) -> None:
    """Writes an agent, what says of it last: a folder with `agent.json` is complete."""
    weights = safetensors.torch.save({name: tensor.clone().contiguous() for name, tensor in agent.tensors.items()})
    content = {
        "schema_version": SCHEMA_VERSION,
        "environment": agent.environment,
        "facts": agent.facts,
        "algorithm": agent.params.train.algorithm,
        "parameters": agent.params.model_dump(mode="json"),
        "normalisation": agent.normalisation.to_json(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "training": agent.training,
        "returns": agent.returns,
    }
    for name, data in ((WEIGHTS_FILE, weights), (AGENT_FILE, json.dumps(content, indent=1).encode())):
        with write_file(folder / name) as file:
            file.write(data)
