"""The IQN update as one would first write it, the twin of the fast one: eager torch in float32.

Three passes through the whole network (the online network on the next observations to choose actions, the target
network on them to value these, the online network on the observations), in torch's usual image layout, with the
quantiles of every action each time. Formulas and random fractions are those of `rulka.agents.iqn`; tests hold
both to the same losses and gradients. Dimensions: B batch, T quantile fractions, A actions.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.iqn import IqnNetwork
from rulka.agents.iqn import FIRST_SELF_LOSS, SelfLoss, self_loss_weights
from rulka.agents.params import IqnParams
from rulka.buffers.replay import Batch

SLOPE = 0.01
RADAM_EPSILON = 1e-4


class NaiveIqn:
    """Online and target network, copies of the given one, with their optimizer.

    Attributes:
        network: learns.
        target: follows it.
        self_loss: running averages of the targets' widths.
    """

    def __init__(self, network: IqnNetwork, params: IqnParams, learning_rate: float) -> None:
        self.network = copy.deepcopy(network)
        self.target = copy.deepcopy(network).requires_grad_(False)
        self.self_loss: SelfLoss = FIRST_SELF_LOSS
        self._params = params
        self._optimizer = torch.optim.RAdam(
            self.network.parameters(),
            lr=learning_rate,
            eps=RADAM_EPSILON,
            weight_decay=params.weight_decay,
            decoupled_weight_decay=True,
            foreach=False,
        )

    def learn(self, batch: Batch, tau: Tensor, target_tau: Tensor, tau_choosing: Tensor) -> Tensor:
        """Makes one gradient step of double DQN and returns the losses [B].

        Args:
            batch: transitions.
            tau: [B, T] fractions of the online network's values.
            target_tau: [B, T] fractions of the target's.
            tau_choosing: [B, T] fractions at which actions are compared.
        """
        kappa = self._params.kappa
        rows = torch.arange(len(tau))
        with torch.no_grad():
            choice = values(self.network, batch.next_image, batch.next_floats, tau_choosing).mean(dim=1).argmax(dim=1)
            following = values(self.target, batch.next_image, batch.next_floats, target_tau)[rows, :, choice]
            target = batch.n_step_return[:, None] + batch.bootstrap_discount[:, None] * following
            own_loss = quantile_huber(target, target_tau, target, kappa)
            weight, self.self_loss = self_loss_weights(own_loss, self.self_loss, self._params.self_loss_clamp_ratio)
        quantile = values(self.network, batch.image, batch.floats, tau)[rows, :, batch.action]
        loss = quantile_huber(quantile, tau, target, kappa)
        self._optimizer.zero_grad()
        (loss * weight * batch.weight).sum().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm)
        self._optimizer.step()
        with torch.no_grad():
            for slow, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.copy_(slow + self._params.target_tau * (online - slow))
        return loss.detach()


def values(network: IqnNetwork, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
    """Returns quantiles [B, T, A], layer by layer from the network's weights."""
    weights = dict(network.named_parameters())

    def linear(name: str, rows: Tensor) -> Tensor:
        return functional.linear(rows, weights[f"{name}.weight"], weights[f"{name}.bias"])

    features = (image.float() - 128.0) / 128.0
    for index, stride in ((0, 2), (2, 2), (4, 2), (6, 1)):
        name = f"encoder.layers.{index}"
        features = functional.conv2d(features, weights[f"{name}.weight"], weights[f"{name}.bias"], stride)
        features = functional.leaky_relu(features, SLOPE)
    hidden = (floats - network.float_mean) / network.float_std
    for index in (0, 2):
        hidden = functional.leaky_relu(linear(f"float_head.{index}", hidden), SLOPE)
    state = torch.cat([features.flatten(1), hidden], dim=1)
    num_cosines = weights["tau_embed.0.weight"].shape[1]
    cosine = torch.cos(math.pi * torch.arange(1, num_cosines + 1) * tau[:, :, None])
    mixed = state[:, None, :] * functional.leaky_relu(linear("tau_embed.0", cosine), SLOPE)

    def head(name: str) -> Tensor:
        return linear(f"{name}.2", functional.leaky_relu(linear(f"{name}.0", mixed), SLOPE))

    advantage = head("advantage_head")
    return head("value_head") + advantage - advantage.mean(dim=2, keepdim=True)


def quantile_huber(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Returns the quantile Huber losses [B] of quantiles [B, T] against targets [B, S]."""
    error = target[:, None, :] - quantile[:, :, None]
    huber = kappa * functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa) / kappa**2
    return ((tau[:, :, None] - (error < 0).float()).abs() * huber).mean(dim=2).sum(dim=1)
