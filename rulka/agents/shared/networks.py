"""Builds networks from parameters: the cloned policy in either shape, IQN, and actor-critics.

Each builder initialises weights from torch's global generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from models.actor_critic import ActorCritic, ClonePolicy
from models.encoders.config import EncoderConfig
from models.fusion_config import FusionConfig
from models.iqn import ClonedIqn, Guide, IqnNetwork, IqnSizes
from models.torso import InputShape
from rulka.agents.shared.network_params import NetworkParams
from rulka.contracts.actions import ActionParams, ActionTable, action_table
from rulka.contracts.observation import Normalisation, unseen_floats
from rulka.contracts.observation_params import ObservationParams

NetworkT = TypeVar("NetworkT", bound=nn.Module)

SEEING_PARTS: Mapping[str, tuple[str, ...]] = {
    "encoder": ("encoder.",),
    "float_head": ("float_head.", "fusion.", "float_mean", "float_std"),
}
"""Tensor name prefixes of the parts that all networks share, Levels 0 and 1 included."""
IQN_PARTS = {**SEEING_PARTS, "trunk": ("tau_embed.",), "heads": ("advantage_head.", "value_head.")}
"""Tensor name prefixes of IQN's parts, each of which can be transferred or have its own learning rate."""
POLICY_PARTS = {**SEEING_PARTS, "trunk": ("trunk.",), "heads": ("policy_head.",)}
"""The same for a policy."""
ACTOR_CRITIC_PARTS = {**POLICY_PARTS, "heads": ("policy_head.", "value_head.")}
"""The same for an actor-critic."""

Plan = tuple[ObservationParams, EncoderConfig, NetworkParams, Normalisation, int]
"""Arguments of a network builder: observation, encoder, sizes behind it, float normalisation, number of outputs."""
BuildNetwork = Callable[[*Plan], NetworkT]
Cloned = ClonePolicy | ClonedIqn
"""A cloned policy of either shape."""


def decision_table(actions: ActionParams, network: NetworkParams, repeats: int = 1) -> ActionTable:
    """Returns the table of decisions: single actions, chunks of several, or continuous numbers.

    Args:
        actions: the contract of the recordings.
        network: of the cloned policy and of agents.
        repeats: times each decision is repeated: the algorithm's `action_repeat`, 1 for the cloned policy.
    """
    ticks, parts = actions.ticks_per_action, network.actions_per_decision
    return action_table(ticks, parts, is_analog=network.analog, repeats=repeats)


def input_shape(observation: ObservationParams, normalisation: Normalisation) -> InputShape:
    """Returns the shape and normalisation of a network's inputs."""
    mean, std = torch.tensor(normalisation.mean), torch.tensor(normalisation.std)
    is_unseen = torch.from_numpy(unseen_floats(observation, len(mean)))
    return InputShape(
        height=observation.height,
        width=observation.width,
        float_mean=mean,
        float_std=std,
        frames=observation.frames,
        frames_as=observation.frames_as,
        withheld_floats=is_unseen if is_unseen.any() else None,
        shows_image=observation.shows_image,
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the weights of networks built inside the block; restores torch's global generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build_clone_policy(*plan: *Plan) -> ClonePolicy:
    """Returns the policy network that Level 1 clones."""
    return ClonePolicy(*_policy_arguments(*plan))


def build_actor_critic(*plan: *Plan) -> ActorCritic:
    """Returns an actor-critic network: a policy with a value."""
    return ActorCritic(*_policy_arguments(*plan))


def build_cloned_iqn(*plan: *Plan) -> ClonedIqn:
    """Returns the IQN network that Level 1 clones."""
    return ClonedIqn(*_iqn_arguments(*plan))


def build_iqn(*plan: *Plan) -> IqnNetwork:
    """Returns IQN's network, with a guide if `network.iqn.guided`."""
    iqn, network = IqnNetwork(*_iqn_arguments(*plan)), plan[2]
    if network.iqn.guided:  # last, so that the same seed makes the same weights with and without it
        iqn.guide = Guide(build_clone_policy(*plan), network.num_parts)
    return iqn


def _policy_arguments(*plan: *Plan) -> tuple[InputShape, EncoderConfig, int, int, int, FusionConfig]:
    observation, encoder, sizes, normalisation, num_outputs = plan
    inputs = input_shape(observation, normalisation)
    return inputs, encoder, sizes.float_hidden, sizes.dense_hidden, num_outputs, sizes.fusion


def _iqn_arguments(*plan: *Plan) -> tuple[InputShape, EncoderConfig, IqnSizes, int]:
    observation, encoder, network, normalisation, num_outputs = plan
    own = network.iqn.model_dump(exclude={"guided"})
    own |= {"fusion": network.fusion, "actions_per_decision": network.num_parts}
    sizes = IqnSizes(network.float_hidden, network.dense_hidden, **own)
    return input_shape(observation, normalisation), encoder, sizes, num_outputs
