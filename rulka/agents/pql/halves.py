"""How the critics learn, and how the policy does: the paper's V-learner and P-learner, each by itself.

Both see by one torso (encoder, float head, fusion), which the critics teach, as DrQ-v2 does (Yarats et al. 2021,
arXiv:2107.09645): what a critic says of a policy's decisions is a poor teacher of seeing. So all weights have one owner
each: torso and critics the one half, trunk and heads of the policy the other; and a half reads what the other owns.
Dimensions: B batch, D numbers of the state.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.actor_critic import ClonePolicy
from models.critics import Critics
from rulka.agents.metrics import MetricMeans
from rulka.agents.part_rates import PartRates
from rulka.agents.pql.decisions import Decisions
from rulka.agents.pql.network import PARTS
from rulka.agents.pql.replay import States
from rulka.agents.pql.returns import Returns
from rulka.agents.precision import Precision, autocast
from rulka.buffers.sampler import Batch
from rulka.device import device_of, state_on_host, weights_on_host
from rulka.params import PqlParams
from rulka.schedule import Moment

ADAM_EPSILON = 1e-5
SEEING, DECIDING = ("encoder", "float_head"), ("trunk", "heads")
"""Parts of the network that the critics teach, and those that the policy learns."""
MOMENTS = "exp_avg", "exp_avg_sq"
"""What Adam keeps of each weight, beside the number of its steps."""


class _Part:
    """Parts of the network with an optimizer of their own."""

    def __init__(self, network: ClonePolicy, names: tuple[str, ...], params: PqlParams) -> None:
        self._rates = PartRates(network, PARTS, params.rate_of)
        groups = [group for group in self._rates.groups if group["part"] in names]
        self.optimizer = torch.optim.Adam(groups, lr=0.0, eps=ADAM_EPSILON, foreach=True)

    def apply(self, learning_rate: float, moment: Moment) -> None:
        self._rates.apply(self.optimizer, learning_rate, moment)

    def learning(self) -> list[nn.Parameter]:
        """Returns what is not frozen."""
        weights = (weight for group in self.optimizer.param_groups for weight in group["params"])
        return [weight for weight in weights if weight.requires_grad]

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": state_on_host(self.optimizer.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])


class CriticHalf:
    """Teaches two critics, and what they see by, what decisions are worth while the policy goes on as it is.

    Attributes:
        num_updates: so far.
    """

    def __init__(
        self,
        network: ClonePolicy,
        critics: Critics,
        decisions: Decisions,
        returns: Returns,
        params: PqlParams,
        precision: Precision,
    ) -> None:
        self._network, self._critics = network, critics
        self._slow_network = copy.deepcopy(network).requires_grad_(False)
        self._slow_critics = copy.deepcopy(critics).requires_grad_(False)
        self._decisions, self._returns, self._params = decisions, returns, params
        self._torso = _Part(network, SEEING, params)
        self._optimizer = torch.optim.Adam(critics.parameters(), lr=0.0, eps=ADAM_EPSILON, foreach=True)
        self._device = device_of(network)
        self._precision: Precision = precision
        self.num_updates = 0

    def begin(self) -> None:
        """Begins at the weights of now."""
        self._slow_network.load_state_dict(self._network.state_dict())

    def set_rates(self, moment: Moment) -> None:
        """Sets the learning rates of a moment of the run."""
        rate = self._params.learning_rate.at(moment)
        self._torso.apply(rate, moment)
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def learn(self, batch: Batch, moment: Moment, means: MetricMeans) -> None:
        """Makes one gradient step and moves the slow copies."""
        is_warm = self.num_updates >= self._params.critic_warmup_updates
        with autocast(self._precision, self._device):
            target = self._target(batch)
            with torch.set_grad_enabled(is_warm):  # before that the cloned policy goes on seeing what it has seen
                state = self._network.state(batch.image, batch.floats)
            rated = self._decisions.rate_taken(self._critics, state, batch.action)
        loss = self._returns.loss(rated, target).mean()
        self._torso.optimizer.zero_grad(set_to_none=True)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        weights = [*self._critics.parameters(), *self._torso.learning()]
        norm = nn.utils.clip_grad_norm_(weights, self._params.max_grad_norm.at(moment))
        self._optimizer.step()
        if is_warm:
            self._torso.optimizer.step()
        self.num_updates += 1
        self._move_slow()
        with torch.no_grad():
            value = self._returns.mean(rated.detach())
            means.add(
                critic_loss=loss,
                q_mean=value.mean(),
                q_apart=(value[0] - value[1]).abs().mean(),
                target_mean=self._returns.mean(self._as_rated(target)).mean(),
                grad_norm=norm,
            )

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Returns what the critics are to say [B, Z]: slow ones rate what the policy would do next."""
        seen = batch.next_image, batch.next_floats
        outputs = self._network.read_out(self._network.trunk(self._network.state(*seen)))
        rated = self._decisions.rate(self._slow_critics, self._slow_network.state(*seen), outputs)
        return self._returns.target(rated.numbers, rated.probability, batch.reward, batch.discount)

    def _as_rated(self, target: Tensor) -> Tensor:
        """Returns a target in the numbers of a critic: probabilities as their logarithms."""
        return target if self._returns.num_atoms == 1 else target.clamp(min=1e-12).log()

    @torch.no_grad()
    def _move_slow(self) -> None:
        pairs = (self._slow_critics, self._critics), (self._slow_network, self._network)
        for slow, learning in pairs:
            for kept, weight in zip(slow.parameters(), learning.parameters(), strict=True):
                kept.lerp_(weight, self._params.target_tau)

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        """Those of the torso and of the critics."""
        return self._torso.optimizer, self._optimizer

    def state_dict(self) -> dict[str, Any]:
        """All but the weights of network and critics."""
        return {
            "slow_network": weights_on_host(self._slow_network),
            "slow_critics": weights_on_host(self._slow_critics),
            "torso": self._torso.state_dict(),
            "optimizer": state_on_host(self._optimizer.state_dict()),
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._slow_network.load_state_dict(state["slow_network"])
        self._slow_critics.load_state_dict(state["slow_critics"])
        self._torso.load_state_dict(state["torso"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.num_updates = int(state["num_updates"])


class PolicyHalf:
    """Teaches the policy what the first critic thinks most of.

    Attributes:
        num_updates: so far.
    """

    def __init__(
        self,
        network: ClonePolicy,
        critics: Critics,
        decisions: Decisions,
        returns: Returns,
        params: PqlParams,
        precision: Precision,
    ) -> None:
        self._network, self._critics = network, critics
        self._decisions, self._returns, self._params = decisions, returns, params
        self._part = _Part(network, DECIDING, params)
        self._device = device_of(network)
        self._precision: Precision = precision
        self.num_updates = 0

    def set_rates(self, moment: Moment) -> None:
        """Sets the learning rates of a moment of the run."""
        self._part.apply(self._params.policy_learning_rate.at(moment), moment)

    def learn(self, states: States, moment: Moment, means: MetricMeans) -> None:
        """Makes one gradient step."""
        self.num_updates += 1
        with autocast(self._precision, self._device):
            with torch.no_grad():
                state = self._network.state(*states)
            outputs = self._network.read_out(self._network.trunk(state))
            rated = self._decisions.rate(self._critics, state, outputs)
        value = (rated.probability * self._returns.mean(rated.numbers[0])).sum(dim=1).mean()
        entropy = rated.entropy.mean()
        means.add(policy_value=value, entropy=entropy)
        weights = self._part.learning()
        if not weights:  # all of it is frozen
            return
        self._part.optimizer.zero_grad(set_to_none=True)
        (-value - self._params.entropy_weight.at(moment) * entropy).backward(inputs=weights)
        means.add(policy_grad_norm=nn.utils.clip_grad_norm_(weights, self._params.max_grad_norm.at(moment)))
        self._part.optimizer.step()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """That of trunk and heads."""
        return self._part.optimizer

    def tensors(self) -> dict[str, Tensor]:
        """Returns trunk and heads and the state of their optimizer, which is zeros before its first step."""
        found: dict[str, Tensor] = {}
        for name, weight in self._named():
            state = self._part.optimizer.state.get(weight, {})
            found[f"weight.{name}"] = weight.detach()
            found[f"step.{name}"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32)
            for moment in MOMENTS:
                found[f"{moment}.{name}"] = state[moment] if moment in state else torch.zeros_like(weight)
        return found

    @torch.no_grad()
    def take(self, num_updates: int, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from the `tensors` of another one that has made so many updates; copies them."""
        self.num_updates = num_updates
        for name, weight in self._named():
            weight.copy_(tensors[f"weight.{name}"])
            step = tensors[f"step.{name}"]
            if float(step) > 0.0:
                state = {moment: tensors[f"{moment}.{name}"].to(weight, copy=True) for moment in MOMENTS}
                self._part.optimizer.state[weight] = {"step": step.clone(), **state}

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        beginnings = tuple(beginning for part in DECIDING for beginning in PARTS[part])
        return [(name, weight) for name, weight in self._network.named_parameters() if name.startswith(beginnings)]

    def state_dict(self) -> dict[str, Any]:
        """All but the weights of network and critics."""
        return self._part.state_dict() | {"num_updates": self.num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._part.load_state_dict(state)
        self.num_updates = int(state["num_updates"])
