"""What IQN learns: sampled returns of transitions, by one of three rules, and the loss against them.

Sources: Dabney et al. 2018, arXiv:1806.06923; van Hasselt et al. 2015 (double DQN), arXiv:1509.06461; Vieillard et al.
2020 (Munchausen), arXiv:2007.14430. Dimensions: B batch, T quantile fractions, A actions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.iqn import IqnNetwork
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
        tau: [B, T] fractions of those values.
        tau_choosing: [T] fractions at which actions are compared.
        params: which rule. Double DQN takes the action that the online network prefers, Munchausen the softmax over
            the target network's values, and otherwise each quantile its own best action.
    """
    following = batch.next_image, batch.next_floats
    reward = batch.reward
    if params.munchausen is not None:
        alpha, temperature, floor = params.munchausen.alpha, params.munchausen.temperature, params.munchausen.floor
        advantage = networks.target.advantages(batch.image, batch.floats, tau_choosing)
        reward = reward + munchausen_bonus(advantage, batch.action, alpha, temperature, floor)
        next_value = soft_value(networks.target(*following, tau).value, temperature)
    elif params.use_double_dqn:
        action = networks.online.advantages(*following, tau_choosing).argmax(dim=1)
        next_value = networks.target.of_action(*following, tau, action)
    else:
        next_value = networks.target(*following, tau).value.amax(dim=2)
    return reward[:, None] + batch.discount[:, None] * next_value
