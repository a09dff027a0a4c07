"""Builds the parts of real runs; module-level functions of picklable arguments, for every process to call itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rulka.actions import ActionTable
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.learner import Learner
from rulka.agents.spec import AgentSpec
from rulka.artifacts import Artifact
from rulka.buffers.experience import BlockSpec, ExperienceBlock, PreferencePairs
from rulka.device import CPU
from rulka.envs.game import GameCars
from rulka.envs.several import CarsOnTracks
from rulka.envs.vector import RaceVectorEnv
from rulka.errors import UserError
from rulka.game.link import GameLink
from rulka.observation import num_floats
from rulka.params import ObservationParams, TrainParams
from rulka.race_settings import RaceSettings
from rulka.runtime.specs import LearnerShare, MakeActor
from rulka.tracks.track import Track, load_track


def build_cars(track: Track | Path, settings: RaceSettings, num_cars: int, *, at_line: bool) -> RaceVectorEnv:
    """Builds an environment; see `rulka.runtime.specs.MakeCars`."""
    return RaceVectorEnv(num_cars, track, settings=settings.at_line() if at_line else settings)


def build_cars_on_tracks(
    tracks: Sequence[Track | Path], settings: RaceSettings, num_cars: int, *, at_line: bool
) -> CarsOnTracks:
    """Builds an environment whose cars race on different tracks; see `rulka.runtime.specs.MakeCars`."""
    return CarsOnTracks(num_cars, tracks, settings.at_line() if at_line else settings)


def build_game_cars(track: Path, settings: RaceSettings, link: GameLink, num_cars: int, *, at_line: bool) -> GameCars:
    """Connects to a game, which has one car and begins its races at the start line; see `MakeCars`.

    Raises:
        UserError: if more than that is asked for.
        GameError: if there is no game.
    """
    if num_cars != 1 or not (at_line or settings == settings.at_line()):
        message = f"a game has one car, which begins at the start line: asked for {num_cars} of them"
        raise UserError(message)
    return GameCars(load_track(track), settings, link)


def num_games(train: TrainParams) -> int:
    """Returns how many games a run needs: one for each collector, and a last one for the greedy checks."""
    return train.num_batches + 1


def build_learner(
    spec: AgentSpec,
    initial: Artifact,
    seed: int,
    demonstrations: Sequence[ExperienceBlock],
    device: torch.device = CPU,
    pairs: PreferencePairs | None = None,
) -> Learner:
    """Builds a learner that starts from the weights of an initial agent.

    Args:
        spec: of the agent.
        initial: artifact of kind "agent_init".
        seed: of the order in which it learns.
        demonstrations: what it is shown; empty for algorithms that take none.
        device: where it learns.
        pairs: what it prefers to what; None for algorithms that take none.
    """
    learner = make_learner(spec, seed, device)
    learner.load_network(initial.tensors)
    if demonstrations:
        learner.insert_demonstrations(demonstrations)
    if pairs is not None:
        learner.insert_pairs(pairs)
    return learner


def share_of_agent(spec: AgentSpec, share: LearnerShare) -> AgentSpec:
    """Returns the spec of one of several learners, with its share of batch and buffer sizes; the only one has all."""
    settings = spec.settings.share_of_learner(share.num_learners)
    return replace(spec, settings=settings, precision=share.precision or spec.precision)


def collecting_actor(spec: AgentSpec, train: TrainParams) -> MakeActor:
    """Returns the factory of the actors of collectors and policy workers."""
    return partial(make_actor, replace(spec, acting_precision=train.acting_precision))


def acting_device(train: TrainParams, device: torch.device) -> torch.device:
    """Returns where these actors compute, in a run on a device."""
    return device if train.inference == "central" else CPU


def block_spec(observation: ObservationParams, train: TrainParams, table: ActionTable) -> BlockSpec:
    """Returns the shape of the blocks of a run."""
    return BlockSpec(
        num_steps=train.block_steps,
        num_cars=train.cars_per_collector,
        height=observation.height,
        width=observation.width,
        num_floats=num_floats(table.actions_per_decision),
        decision_shape=table.decision_shape,
        continuous=table.is_analog,
        frames=observation.frames,
    )


def agent_config(spec: AgentSpec, table: ActionTable) -> dict[str, Any]:
    """Returns plain JSON from which the network of an agent can be rebuilt; `config` of its artifact."""
    return {
        "algorithm": spec.algorithm,
        "num_actions": table.num_actions,
        "encoder": spec.encoder.model_dump(mode="json"),
        "network": spec.network.model_dump(mode="json"),
        spec.algorithm: spec.settings.model_dump(mode="json"),
    }
