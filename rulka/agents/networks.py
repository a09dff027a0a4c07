"""Builds the networks of `models` from parameters; used by cloning, transfer, training and evaluation alike."""

from __future__ import annotations

import torch

from models.actor_critic import ActorCritic, ClonePolicy
from models.encoders.config import EncoderConfig
from models.iqn import IqnNetwork, IqnSizes
from models.torso import InputShape
from rulka.actions import ActionTable, action_table
from rulka.observation import Normalisation
from rulka.params import ActionParams, Algorithm, NetworkParams, ObservationParams


def input_shape(observation: ObservationParams, normalisation: Normalisation) -> InputShape:
    """Returns what a network needs to know about its inputs."""
    mean, std = torch.tensor(normalisation.mean), torch.tensor(normalisation.std)
    return InputShape(observation.height, observation.width, mean, std)


def agent_table(algorithm: Algorithm, actions: ActionParams, network: NetworkParams) -> ActionTable:
    """Returns what an agent's decisions are: blocks of actions for IQN alone, where the parameters say so."""
    return action_table(actions.ticks_per_action, network.iqn.actions_per_decision if algorithm == "iqn" else 1)


def build_clone_policy(
    observation: ObservationParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    normalisation: Normalisation,
    num_actions: int,
) -> ClonePolicy:
    """Returns a cloned policy with fresh weights from torch's global generator."""
    inputs = input_shape(observation, normalisation)
    return ClonePolicy(inputs, encoder, network.float_hidden, network.dense_hidden, num_actions)


def build_agent_network(
    algorithm: Algorithm,
    observation: ObservationParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    normalisation: Normalisation,
    num_actions: int,
) -> ActorCritic | IqnNetwork:
    """Returns the network of an agent with fresh weights from torch's global generator.

    Args:
        algorithm: which agent.
        observation: image size.
        encoder: of the images.
        network: sizes behind it.
        normalisation: of the floats that it sees.
        num_actions: its outputs; for blocks of K actions, K times as many as there are actions.
    """
    inputs = input_shape(observation, normalisation)
    if algorithm == "ppo":
        return ActorCritic(inputs, encoder, network.float_hidden, network.dense_hidden, num_actions)
    sizes = IqnSizes(
        network.float_hidden,
        network.dense_hidden,
        network.tau_embedding,
        network.iqn.layer_norm,
        network.iqn.noisy_sigma,
    )
    return IqnNetwork(inputs, encoder, sizes, num_actions)
