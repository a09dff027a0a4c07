"""Networks made of parameters: of the cloned policy in either shape, of IQN, and of what learns a policy.

Each builder draws fresh weights from torch's global generator.
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
from rulka.actions import ActionParams, ActionTable, action_table
from rulka.agents.network_params import NetworkParams
from rulka.observation import Normalisation, float_slices
from rulka.observation_params import ObservationParams

NetworkT = TypeVar("NetworkT", bound=nn.Module)

SEEING_PARTS: Mapping[str, tuple[str, ...]] = {
    "encoder": ("encoder.",),
    "float_head": ("float_head.", "fusion.", "float_mean", "float_std"),
}
"""How the names of tensors begin in the parts that all networks have in common, those of Levels 0 and 1 too."""
IQN_PARTS = {**SEEING_PARTS, "trunk": ("tau_embed.",), "heads": ("advantage_head.", "value_head.")}
"""How the names of IQN's tensors begin, for each part that can be taken over or learn at a rate of its own."""
POLICY_PARTS = {**SEEING_PARTS, "trunk": ("trunk.",), "heads": ("policy_head.",)}
"""The same of a policy."""
ACTOR_CRITIC_PARTS = {**POLICY_PARTS, "heads": ("policy_head.", "value_head.")}
"""The same of a policy with a value."""

Plan = tuple[ObservationParams, EncoderConfig, NetworkParams, Normalisation, int]
"""What a network is made of: what is seen, encoder, sizes behind it, normalisation of the floats, number of outputs."""
BuildNetwork = Callable[[*Plan], NetworkT]
Cloned = ClonePolicy | ClonedIqn
"""A cloned policy of either shape."""


def decision_table(actions: ActionParams, network: NetworkParams, repeats: int = 1) -> ActionTable:
    """Returns the decisions there are: single actions, chunks of several, or numbers.

    Args:
        actions: the contract of the recordings.
        network: of the cloned policy and of agents.
        repeats: how often an agent takes each in a row, `action_repeat` of its algorithm; the cloned policy once.
    """
    ticks, count = actions.ticks_per_action, network.actions_per_decision
    return action_table(ticks, count, is_analog=network.analog, repeats=repeats)


def input_shape(observation: ObservationParams, normalisation: Normalisation) -> InputShape:
    """Returns the shape and normalisation of a network's inputs."""
    mean, std = torch.tensor(normalisation.mean), torch.tensor(normalisation.std)
    parts = float_slices(normalisation.actions_per_decision)
    is_withheld = torch.zeros(len(mean), dtype=torch.bool)
    for name in observation.withheld:
        if name != "image":
            is_withheld[parts[name]] = True
    return InputShape(
        height=observation.height,
        width=observation.width,
        float_mean=mean,
        float_std=std,
        frames=observation.frames,
        frames_as=observation.frames_as,
        withheld_floats=is_withheld if is_withheld.any() else None,
        shows_image=observation.shows_image,
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws the weights of networks that are built inside from a seed, and leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build_clone_policy(*plan: *Plan) -> ClonePolicy:
    """Returns a policy as Level 1 clones it."""
    return ClonePolicy(*_policy_arguments(*plan))


def build_actor_critic(*plan: *Plan) -> ActorCritic:
    """Returns a policy with a value."""
    return ActorCritic(*_policy_arguments(*plan))


def build_cloned_iqn(*plan: *Plan) -> ClonedIqn:
    """Returns IQN's network as Level 1 clones it."""
    return ClonedIqn(*_iqn_arguments(*plan))


def build_iqn(*plan: *Plan) -> IqnNetwork:
    """Returns IQN's network, with its guide where there is one."""
    iqn, network = IqnNetwork(*_iqn_arguments(*plan)), plan[2]
    if network.iqn.guided:  # last, so that the same seed makes the same weights with and without it
        iqn.guide = Guide(build_clone_policy(*plan), network.actions_per_decision)
    return iqn


def _policy_arguments(*plan: *Plan) -> tuple[InputShape, EncoderConfig, int, int, int, FusionConfig]:
    observation, encoder, sizes, normalisation, num_outputs = plan
    inputs = input_shape(observation, normalisation)
    return inputs, encoder, sizes.float_hidden, sizes.dense_hidden, num_outputs, sizes.fusion


def _iqn_arguments(*plan: *Plan) -> tuple[InputShape, EncoderConfig, IqnSizes, int]:
    observation, encoder, network, normalisation, num_outputs = plan
    own = network.iqn.model_dump(exclude={"guided"})
    sizes = IqnSizes(network.float_hidden, network.dense_hidden, fusion=network.fusion, **own)
    return input_shape(observation, normalisation), encoder, sizes, num_outputs


def by_place(outputs: torch.Tensor, decision_shape: tuple[int, ...]) -> torch.Tensor:
    """Returns outputs [B, K A] as [B, K, A], of which the last dimension is compared; [B, A] where K is 1."""
    return outputs.unflatten(1, (*decision_shape, -1)) if decision_shape else outputs
