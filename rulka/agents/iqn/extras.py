"""What IQN does only on request: Munchausen targets, the margin loss of demonstrations, priorities; and diagnostics.

Sources: Vieillard et al. 2020 (Munchausen), arXiv:2007.14430; Hester et al. 2018 (DQfD's margin), arXiv:1704.03732;
Schaul et al. 2015 (prioritised replay), arXiv:1511.05952.
Dimensions: B batch, T quantile fractions, S sampled returns, K actions of a decision, A choices for each, L frames seen
at once, H x W pixels, F floats, E image features.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.iqn import IqnNetwork
from rulka.agents.iqn.params import MarginParams, MunchausenParams
from rulka.agents.shared.diagnostics import MetricMeans
from rulka.buffers.replay import Batch
from rulka.contracts.observation import FLOATS
from rulka.machine.device import on_host

NO_ROW = -1
"""`Batch.row` of demonstrations, which lie in a ring of their own and have no priorities."""


# Munchausen -----------------------------------------------------------------------------------------------------------


def munchausen_targets(
    target: IqnNetwork, batch: Batch, tau: Tensor, tau_choosing: Tensor, params: MunchausenParams
) -> Tensor:
    """Returns target returns [B, S] of the soft policy over the target network's values; see `target_quantiles`."""
    q_advantage = target.q_advantages(batch.image, batch.floats, tau_choosing)
    bonus = munchausen_bonus(q_advantage, batch.action, params.alpha, params.temperature, params.floor)
    next_value = soft_value(target(batch.next_image, batch.next_floats, tau), params.temperature)
    return (batch.reward + bonus)[:, None] + batch.discount[:, None] * next_value


def munchausen_bonus(value: Tensor, action: Tensor, alpha: float, temperature: float, floor: float) -> Tensor:
    """Returns the bonus on the reward [B]: alpha times temperature log pi(action), at least alpha times `floor`.

    Vieillard et al. 2020, equation 4, with the target network as the policy softmax(Q / temperature). A policy over
    decisions is the product of one for each of the K actions, so its log-probability is their sum.

    Args:
        value: [B, K, A] Q-values of the target network, or advantages: a constant added to a row changes nothing.
        action: [B, K] int64, taken.
        alpha: weight, 0.9 in the paper.
        temperature: of the policy, in return units; positive.
        floor: at most 0; -1 in the paper.
    """
    log_policy = torch.log_softmax(value / temperature, dim=2).gather(2, action[..., None])[..., 0].sum(dim=1)
    return alpha * (temperature * log_policy).clamp(floor, 0.0)


def soft_value(quantile: Tensor, temperature: float) -> Tensor:
    """Returns for each quantile [B, S] the sum over actions of pi (quantile - temperature log pi).

    Args:
        quantile: [B, S, K, A] of the next state, by the target network; pi is the softmax of their means.
        temperature: of the policy, in return units; positive.
    """
    log_policy = torch.log_softmax(quantile.mean(dim=1, keepdim=True) / temperature, dim=3)
    policy = log_policy.exp()
    # The product is 0 where the logarithm is minus infinity.
    return (policy * quantile - temperature * torch.special.xlogy(policy, policy)).sum(dim=3).sum(dim=2)


# Demonstrations -------------------------------------------------------------------------------------------------------


def demonstration_loss(
    network: IqnNetwork, batch: Batch, tau: Tensor, params: MarginParams, means: MetricMeans
) -> Tensor | float:
    """Returns the `margin_loss` of the batch's demonstrations at fractions [T], weighted and summed."""
    demonstrated = slice(int((batch.row != NO_ROW).sum()), None)  # they follow the agent's own transitions
    action = batch.action[demonstrated]
    if not len(action):
        return 0.0
    q_advantage = network.q_advantages(batch.image[demonstrated], batch.floats[demonstrated], tau)
    loss = margin_loss(q_advantage, action, params.margin)
    means.add(margin_loss=loss.mean())
    return params.weight * loss.sum()


def margin_loss(value: Tensor, action: Tensor, margin: float) -> Tensor:
    """Returns the large-margin loss [B]: best other action plus margin, less the demonstrated one; at least 0.

    Hester et al. 2018, equation 3: it keeps actions that were never tried from looking better than demonstrated ones.

    Args:
        value: [B, K, A] Q-values, or advantages: a constant added to a row changes nothing.
        action: [B, K] int64, demonstrated.
        margin: in units of returns; not negative.
    """
    is_demonstrated = functional.one_hot(action, value.shape[2]).bool()
    shown = value.gather(2, action[..., None])[..., 0]
    return (value + margin).masked_fill(is_demonstrated, -float("inf")).amax(dim=2).sub(shown).clamp(min=0.0).sum(dim=1)


# Priorities -----------------------------------------------------------------------------------------------------------


def measured_errors(row: Tensor, error: Tensor, left: Tensor, min_actions_left: int) -> tuple[Tensor, Tensor]:
    """Returns the rows whose errors set priorities, and these errors, in main memory.

    Near the end of a mini-race little return remains: a small error there says nothing about the same transition
    earlier in one. Non-finite errors end the run elsewhere, with the weights that led to them.

    Args:
        row: [B] in the ring, in main memory; `NO_ROW` for demonstrations.
        error: [B].
        left: [B] decisions left in the mini-race.
        min_actions_left: least number of them.
    """
    error, left = on_host(error, left)  # the next batch is drawn by them: these have to be waited for
    counts = (row != NO_ROW) & (left > min_actions_left) & error.isfinite()
    return row[counts], error[counts]


# Diagnostics ----------------------------------------------------------------------------------------------------------


MAX_ROWS = 64
"""Rows of a batch that `inspect_values` uses."""


@torch.no_grad()
def inspect_values(network: IqnNetwork, image: Tensor, floats: Tensor, tau: Tensor) -> dict[str, float]:
    """Returns the quantile spread of each action, and the action gap between the best and the second-best decision.

    The second-best decision differs from the best one in a single action: that whose second-best choice costs least.

    Args:
        network: the Q-network.
        image: [B, L, H, W] uint8, or features [B, E]; the first `MAX_ROWS` are used.
        floats: [B, F] float32, raw.
        tau: [T] fractions.
    """
    was_training = network.training
    network.eval()  # must not update spectral norms
    rows = slice(0, MAX_ROWS)
    value = network(image[rows], floats[rows], tau.expand(len(image[rows]), -1))
    network.train(was_training)
    best = value.mean(dim=1).topk(2, dim=2).values
    gap = float((best[..., 0] - best[..., 1]).amin(dim=1).mean())
    spread = value.std(dim=1).mean(dim=0)
    tags = {f"{k}_{action}" if len(spread) > 1 else f"{action}": (k, action) for k, action in np.ndindex(*spread.shape)}
    return {"RL/action_gap": gap} | {f"IQN/quantile_std_action_{tag}": float(spread[at]) for tag, at in tags.items()}


@torch.no_grad()
def inspect_guide(network: IqnNetwork, batch: Batch, tau: Tensor) -> dict[str, float]:
    """Returns the share of decisions in which the best action of all, by value, is the clone's likeliest one.

    It tells what IQN would do without the guide. Empty if the ring stores no guide.
    """
    if not batch.next_guide.numel():
        return {}
    rows = slice(0, MAX_ROWS)
    was_training = network.training
    network.eval()  # must not update spectral norms
    floats = batch.next_floats[rows].clone()
    floats[:, FLOATS["clock"]] = 0.0  # as in acting
    q_advantage = network.q_advantages(batch.next_image[rows], floats, tau)
    network.train(was_training)
    agrees = q_advantage.argmax(dim=2) == batch.next_guide[rows].argmax(dim=2)
    return {"IQN/agrees_with_clone": float(agrees.float().mean())}
