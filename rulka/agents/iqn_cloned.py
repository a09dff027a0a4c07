"""IQN's network as Level 1 clones it, and how large it is in both places."""

from __future__ import annotations

from models.actor_critic import ClonePolicy
from models.encoders.config import EncoderConfig
from models.iqn import ClonedIqn, IqnSizes
from rulka.agents.networks import input_shape
from rulka.observation import Normalisation
from rulka.params import NetworkParams, ObservationParams

Cloned = ClonePolicy | ClonedIqn
"""A cloned policy of either shape."""


def iqn_sizes(network: NetworkParams) -> IqnSizes:
    """Returns what an IQN network is behind its encoder."""
    own = network.iqn
    return IqnSizes(
        network.float_hidden,
        network.dense_hidden,
        own.tau_embedding,
        own.layer_norm,
        own.noisy_sigma,
        own.embedding_at,
        network.fusion,
    )


def build_cloned_iqn(
    observation: ObservationParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    normalisation: Normalisation,
    num_actions: int,
) -> ClonedIqn:
    """Returns a cloned policy with fresh weights from torch's global generator."""
    return ClonedIqn(input_shape(observation, normalisation), encoder, iqn_sizes(network), num_actions)
