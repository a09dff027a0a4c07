"""What IQN learns: sampled returns of transitions (its targets), by one of three rules.

The loss against them is `rulka.losses.quantile.quantile_huber_loss`, taken in the learner.

Sources: Dabney et al. 2018, arXiv:1806.06923; van Hasselt et al. 2015 (double DQN), arXiv:1509.06461; Vieillard et al.
2020 (Munchausen), arXiv:2007.14430. Decisions of K actions: see `rulka.agents.iqn.action_chunks`.
Dimensions: B batch, T quantile fractions, A actions; networks have K A outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.iqn import IqnNetwork
from rulka.agents.iqn.action_chunks import by_place, chunk_values
from rulka.buffers.sampler import Batch
from rulka.losses.munchausen import munchausen_bonus, soft_value
from rulka.params import IqnParams


class Networks(NamedTuple):
    """The network that learns and its slow copy."""

    online: IqnNetwork
    target: IqnNetwork


@torch.no_grad()
def sampled_returns(networks: Networks, batch: Batch, tau: Tensor, tau_choosing: Tensor, params: IqnParams) -> Tensor:
    """Returns samples [B, T] of the return of each transition.

    Args:
        networks: the values that follow are the target network's.
        batch: transitions.
        tau: [B, T] fractions of those values, or [T].
        tau_choosing: [T] fractions at which actions are compared.
        params: which rule. Double DQN takes the action that the online network prefers within the limits of its guide,
            Munchausen the softmax over the target network's values, and otherwise each quantile its own best action.
    """
    following = batch.next_image, batch.next_floats
    chunk_shape = tuple(batch.action.shape[1:])
    reward = batch.reward
    if params.munchausen is not None:
        alpha, temperature, floor = params.munchausen.alpha, params.munchausen.temperature, params.munchausen.floor
        advantage = networks.target.advantages(batch.image, batch.floats, tau_choosing)
        advantage = by_place(advantage, chunk_shape)
        reward = reward + munchausen_bonus(advantage, batch.action, alpha, temperature, floor)
        next_value = _soft_value(networks.target(*following, tau).value, chunk_shape, temperature)
    elif params.use_double_dqn:
        advantage = networks.online.advantages(*following, tau_choosing)
        if networks.online.guide is not None and batch.next_guide.shape[1]:
            advantage = networks.online.guide.limit(advantage, batch.next_guide)
        action = by_place(advantage, chunk_shape).argmax(dim=-1)
        next_value = quantiles_of(networks.target, *following, tau, action)
    else:
        value_bta = networks.target(*following, tau).value
        next_value = chunk_values(value_bta, *chunk_shape).best() if chunk_shape else value_bta.amax(dim=2)
    return reward[:, None] + batch.discount[:, None] * next_value


def quantiles_of(network: IqnNetwork, image: Tensor, floats: Tensor, tau: Tensor, action: Tensor) -> Tensor:
    """Returns quantiles [B, T] of one action [B], or chunk [B, K], for each observation; tau is [B, T] or [T]."""
    if action.dim() > 1:
        return chunk_values(network(image, floats, tau).value, action.shape[1]).of(action)
    return network.of_action(image, floats, tau, action)


def _soft_value(value_bta: Tensor, chunk_shape: tuple[int, ...], temperature: float) -> Tensor:
    """Returns the values [B, T] of the policy of the target network, with its entropy; summed over places."""
    if not chunk_shape:
        return soft_value(value_bta, temperature)
    values = chunk_values(value_bta, *chunk_shape)
    by_place_bt = [soft_value(place, temperature) for place in values.advantage.unbind(dim=2)]
    return values.state + torch.stack(by_place_bt).sum(dim=0)
