"""The learner of implicit quantile networks with mini-races; begin with `update`, and `_learn` below it.

Sources: Dabney et al. 2018, arXiv:1806.06923; van Hasselt et al. 2015 (double DQN), arXiv:1509.06461; Linesight.
Demonstrations may fill a part of every batch (Ball et al. 2023, arXiv:2302.02948). Logits of the cloned policy are
never taken for Q-values. docs/algorithms/iqn.md compares all of it with Linesight, item by item.

Two things go through all files here. While the encoder is frozen as it was given, the ring keeps image features, and a
batch's `image` holds these; from its first update on the ring keeps images alone. Where the network carries a guide,
the cloned policy, `_set_limits` writes the floor of the moment into its weights: actors read it with them, `targets`
choose next actions within it by the likelihoods that the ring keeps (`Batch.next_guide`).
Dimensions: B batch, T quantile fractions, A actions, E image features, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.iqn import IqnNetwork, draw_fractions, fixed_fractions
from models.noisy import clear_noise, draw_noise
from rulka.agents.averaging import RunningAverage
from rulka.agents.iqn.inspection import inspect_priorities, inspect_values
from rulka.agents.iqn.network import PARTS, fresh_network
from rulka.agents.iqn.replay import IqnReplay
from rulka.agents.iqn.targets import Networks, quantiles_of, sampled_returns
from rulka.agents.metrics import MetricMeans, inspect_training
from rulka.agents.part_rates import PartRates
from rulka.agents.precision import Precision, autocast, faster_precision
from rulka.agents.ranks import ALONE, Ranks, fewest, mean_of, seed_of_rank, sum_gradients
from rulka.agents.spec import AgentSpec, Experience
from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.sampler import GUIDE, Batch
from rulka.device import CPU, Generators, state_on_host, upload, weights_on_host
from rulka.losses.margin import margin_loss
from rulka.losses.quantile import SelfLoss, initial_self_loss, quantile_huber_loss, self_loss_weights
from rulka.params import IqnParams, ResetParams
from rulka.schedule import Moment

RADAM_EPSILON = 1e-4


class IqnLearner:
    """Keeps experience in a ring and learns from random parts of it, as often as `samples_per_insert` says.

    Attributes:
        network: the online network, which collectors act with.
        target: its slow copy.
        replay: the experience.
        version: grows by one with every update.
        num_env_steps: decisions inserted so far, resets included.
        precision: in which the body of the networks learns.
    """

    OWN_STATE: ClassVar[tuple[str, ...]] = (
        "generator",
        "device_generator",
        "num_env_steps",
        "num_learned",
        "num_start_steps",
        "num_reset_samples",
    )

    def __init__(self, spec: AgentSpec[IqnParams], seed: int = 0, device: torch.device = CPU) -> None:
        self.network = fresh_network(spec, seed).to(device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.version = 0
        self.num_env_steps = 0
        self._budget_share, self._env_steps_elsewhere = 0.0, 0
        self._ranks: Ranks = ALONE
        self._spec, self._seed = spec, seed
        params: IqnParams = spec.settings
        self._params = params
        self._average = RunningAverage(self.network, params.racer_tau)
        self._device, self._generators = device, Generators(device, seed)
        self.replay = IqnReplay(spec, seed, device, self._generators.host)
        self._rates = PartRates(self.network, PARTS, params.rate_of)
        self._is_encoder_as_given = True
        self._optimizer = torch.optim.RAdam(
            self._rates.groups,
            lr=0.0,
            eps=RADAM_EPSILON,
            weight_decay=params.weight_decay,
            decoupled_weight_decay=True,
            foreach=True,
        )
        if self.network.guide is not None and params.has_limits:
            self.replay.keep(GUIDE, self._guide_log_probs)
        self._num_gradient_steps = 0
        self._num_resets = 0
        # Learning goes on while _num_learned <= samples_per_insert * (num_env_steps - _num_start_steps)
        # + _num_reset_samples. Demonstrations are not counted as learned, nor the decisions that fill an empty ring as
        # inserted; each reset allows some samples more.
        self._num_learned = 0
        self._num_start_steps = params.start_steps
        self._num_reset_samples = 0
        self._self_loss = initial_self_loss()
        self._tau_choosing = fixed_fractions(params.num_quantiles).to(device)
        self.precision: Precision = spec.precision
        if self.precision == "measured":
            self.precision = self._measure()

    @property
    def racer(self) -> IqnNetwork:
        """The network itself, or a running average of its weights."""
        return self._average.network

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes initial weights for the online and the target network."""
        self.network.load_state_dict(dict(tensors))
        self.target.load_state_dict(dict(tensors))
        self._set_limits()
        self._average.begin()

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block into the ring."""
        del version
        self._keep_features_while_frozen()
        self.replay.insert(block, collector, self.num_env_steps)
        self.num_env_steps += block.is_reset.size

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Stores demonstrations, `demonstration_share` of every batch from now on; replaces earlier ones.

        Raises:
            AgentError: if they show something else than the agent sees.
            ValueError: if there are none.
        """
        self._keep_features_while_frozen()
        self.replay.insert_demonstrations(blocks)

    def join(self, ranks: Ranks) -> None:
        """Learns as one with others from now on; see `rulka.agents.spec.LearnsInRanks`."""
        self._ranks = ranks
        self._generators.seed(seed_of_rank(self._seed, ranks.rank))

    def set_budget_share(self, share: float, env_steps_elsewhere: int = 0) -> None:
        """Tells which share of the run's budget is used, and what other ranks have inserted, for schedules."""
        self._budget_share, self._env_steps_elsewhere = share, env_steps_elsewhere

    @property
    def moment(self) -> Moment:
        """How far learning has come."""
        return Moment(self.num_env_steps + self._env_steps_elsewhere, self._budget_share)

    @property
    def allowed_lag(self) -> None:
        """Any: replayed experience is old anyhow."""

    def num_allowed_env_steps(self) -> int:
        """Decisions to start with, those that learning has kept up with, and as many ahead as there were to start."""
        learned = int((self._num_learned - self._num_reset_samples) / self._params.samples_per_insert)
        return self._num_start_steps + learned + self._params.start_steps

    def is_ready(self) -> bool:
        """Whether there is enough experience, and it was not learned from enough."""
        num_samples_due = self._num_inserts * self._params.samples_per_insert + self._num_reset_samples
        return self.replay.num_rows >= self._params.start_steps and self._num_learned <= num_samples_due

    @property
    def _num_inserts(self) -> int:
        """Decisions inserted that count for `samples_per_insert`."""
        return self.num_env_steps - self._num_start_steps

    def update(self) -> dict[str, float] | None:
        """Makes some gradient steps, or returns None while the experience is too little or learned from enough."""
        if not self.is_ready():
            return None
        self._keep_features_while_frozen()
        learning_rate = self._params.learning_rate.at(self.moment)
        self._rates.apply(self._optimizer, learning_rate, self.moment)
        self._set_limits()
        self._reset_when_due()  # after the rates, which say what is frozen
        means = MetricMeans()
        for _ in range(self._params.gradient_steps_per_update):
            self._learn(self._draw(), means)
            self._test_when_due(means)
        self._average.move()
        self.version += 1
        return means.result() | {
            "learning_rate": learning_rate,
            "epsilon": self._params.epsilon.at(self.moment),
            "boltzmann_epsilon": self._params.boltzmann_epsilon.at(self.moment),
            "gamma": self._params.gamma.at(self.moment),
            "buffer_decisions": float(self.replay.num_rows),
            "samples_per_insert": self._num_learned / max(1, self._num_inserts),
            "typical_self_loss": self._self_loss.typical,
            "num_resets": float(self._num_resets),
            "num_samples": float(self._params.batch_size * self._params.gradient_steps_per_update),
        }

    def _set_limits(self) -> None:
        """Sets what the guides leave to the agent to what is due now."""
        for network in (self.network, self.target):
            if network.guide is not None:
                network.guide.floor.fill_(self._params.guide_floor.at(self.moment))

    def _keep_features_while_frozen(self) -> None:
        """Has the ring keep image features until the encoder learns for the first time."""
        self._is_encoder_as_given &= self._rates.factor("encoder", self.moment) == 0.0
        if self._is_encoder_as_given == self.replay.has_features:
            return
        if self._is_encoder_as_given:
            dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
            self.replay.keep_features(self._encode, self.network.num_encoded, dtype)
        else:
            self.replay.drop_features()

    def _encode(self, image: Tensor, _floats: Tensor) -> Tensor:
        """Maps images [B, L, H, W] uint8 to features [B, E], as collectors see them."""
        self.network.eval()  # spectral norms must not move on
        with torch.no_grad(), autocast(self.precision, self._device):
            parts = [self.network.encode(part.to(self._device)) for part in image.split(self._params.batch_size)]
        self.network.train()
        return torch.cat(parts)

    def _guide_log_probs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns the log-probabilities [B, A] of the cloned policy, in float32 as evaluation has them."""
        assert self.network.guide is not None
        parts = zip(image.split(self._params.batch_size), floats.split(self._params.batch_size), strict=True)
        with torch.no_grad():
            return torch.cat([self.network.guide.log_probs(*upload(part, self._device)) for part in parts])

    def _draw(self) -> Batch:
        batch = self.replay.draw(self.moment)
        if self._ranks.size > 1 and self._params.prioritised is not None:
            # Importance is relative to the largest of the batch, which is that of all ranks.
            own = self.replay.largest_importance
            batch.weight[: self.replay.num_own] *= own / self._ranks.largest(own)
        self._num_learned += self.replay.num_own
        return batch

    def _learn(self, batch: Batch, means: MetricMeans) -> None:
        """Makes one gradient step and moves the target network."""
        params = self._params
        for network in (self.network, self.target):
            draw_noise(network, self._generators.device)
        tau = self._draw_fractions()
        target_bt, target_tau = self._targets(batch)
        with autocast(self.precision, self._device):
            quantile_bt = quantiles_of(self.network, batch.image, batch.floats, tau, batch.action)
        loss_b = quantile_huber_loss(quantile_bt, tau, target_bt, params.kappa)
        # A wide target costs even the network that predicts it exactly: its loss against itself says how much.
        self_loss_b = quantile_huber_loss(target_bt, target_tau, target_bt, params.kappa)
        weight_b, self._self_loss = self_loss_weights(
            self_loss_b, self._self_loss, params.self_loss_clamp_ratio, lambda values: mean_of(values, self._ranks)
        )
        self._optimizer.zero_grad(set_to_none=True)
        # The sum over the batch, not its mean: learning rate and clip are those of Linesight, which sums.
        (loss_b * weight_b * batch.weight).sum().add(self._margin_loss(batch, means)).backward()
        sum_gradients(self.network, self._ranks)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), params.max_grad_norm)
        if params.max_grad_value is not None:
            nn.utils.clip_grad_value_(self.network.parameters(), params.max_grad_value)
        self._optimizer.step()
        self._num_gradient_steps += 1
        self._move_target()
        error_b = (quantile_bt.detach().mean(dim=1) - target_bt.mean(dim=1)).abs()
        self.replay.note_errors(error_b)  # of the batch drawn last, which is this one
        means.add(
            loss=loss_b.mean(),
            weighted_loss=(loss_b * weight_b).mean(),
            td_error=error_b.mean(),
            q_mean=quantile_bt.mean(),
            target_mean=target_bt.mean(),
            importance=batch.weight.mean(),
            grad_norm=norm,
        )

    def _margin_loss(self, batch: Batch, means: MetricMeans) -> Tensor | float:
        """Returns the weighted sum of how far demonstrated actions are from being worth a margin more than others."""
        params, shown = self._params.demonstration_margin, slice(self.replay.num_own, None)
        if params is None or not len(batch.action[shown]):
            return 0.0
        with autocast(self.precision, self._device):
            value = self.network.advantages(batch.image[shown], batch.floats[shown], self._tau_choosing)
        loss = margin_loss(value, batch.action[shown], params.margin)
        means.add(margin_loss=loss.mean())
        return params.weight * loss.sum()

    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns sampled returns [B, T] of the transitions, and their fractions [B, T] or [T]."""
        tau = self._draw_fractions()
        networks = Networks(self.network, self.target)
        with autocast(self.precision, self._device):
            return sampled_returns(networks, batch, tau, self._tau_choosing, self._params), tau

    def _draw_fractions(self) -> Tensor:
        """Returns fractions [B, T]; or [T] for the whole batch where only embedding them depends on rows."""
        num_quantiles, generator = self._params.num_quantiles, self._generators.device
        if self.network.embedding_at == "hidden":
            return draw_fractions(1, num_quantiles, generator)[0]
        return draw_fractions(self._params.batch_size, num_quantiles, generator)

    @torch.no_grad()
    def _move_target(self) -> None:
        if self._num_gradient_steps % self._params.target_every:
            return
        for target, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
            if online.requires_grad:
                target.lerp_(online, self._params.target_tau)

    def _reset_when_due(self) -> None:
        """Mixes fresh weights in once for each `every_env_steps`; the target follows by itself."""
        resets = self._params.resets
        if resets is None or self.moment.env_steps // resets.every_env_steps <= self._num_resets:
            return
        self._num_resets = self.moment.env_steps // resets.every_env_steps
        fresh = fresh_network(self._spec, self._seed + self._num_resets).to(self._device)
        reset_weights(self.network, fresh, resets)
        self._num_reset_samples += resets.further_samples

    @torch.no_grad()
    def _test_when_due(self, means: MetricMeans) -> None:
        """Measures the loss on races that are held out, in `held_out_share` of all batches."""
        share, count = self._params.held_out_share, self._num_gradient_steps
        if int(share * count) == int(share * (count - 1)):
            return
        if not fewest(self.replay.has_held_out(), self._ranks):  # spectral norms move with it, so all do it or none
            return
        batch = self.replay.draw_held_out(self.moment)
        for network in (self.network, self.target):
            clear_noise(network)
        tau = self._draw_fractions()
        target_bt, _ = self._targets(batch)
        with autocast(self.precision, self._device):
            quantile_bt = quantiles_of(self.network, batch.image, batch.floats, tau, batch.action)
        means.add(held_out_loss=quantile_huber_loss(quantile_bt, tau, target_bt, self._params.kappa).mean())

    def inspect(self) -> dict[str, float]:
        """Looks closer at gradients, weights, values and priorities; see `rulka.agents.iqn.inspection`."""
        if not self._num_gradient_steps:
            return {}
        batch = self.replay.batch
        shape = self._spec.choices.decision_shape
        values = inspect_values(self.network, batch.image, batch.floats, self._tau_choosing, shape)
        return inspect_training(self.network, self._optimizer) | values | inspect_priorities(self.replay.priorities())

    def _measure(self) -> Precision:
        batch, tau = self.replay.batch, self._draw_fractions()
        batch.image.zero_()
        floats = self.network.float_mean.expand(self._params.batch_size, -1)

        def run(precision: Precision) -> None:
            with autocast(precision, self._device):
                value = quantiles_of(self.network, batch.image, floats, tau, torch.zeros_like(batch.action))
            value.sum().backward()
            self._optimizer.zero_grad(set_to_none=True)

        return faster_precision(run, self._device)

    def state_dict(self) -> dict[str, Any]:
        """Weights, target, optimizer, counters, running averages and random state; not the experience."""
        return {
            "network": weights_on_host(self.network),
            "target": weights_on_host(self.target),
            "average": self._average.state_dict(),
            "optimizer": state_on_host(self._optimizer.state_dict()),
            **self._generators.state_dict(),
            "version": self.version,
            "num_env_steps": self.num_env_steps,
            "num_gradient_steps": self._num_gradient_steps,
            "num_resets": self._num_resets,
            "num_learned": self._num_learned,
            "num_start_steps": self._num_start_steps,
            "num_reset_samples": self._num_reset_samples,
            "is_encoder_as_given": self._is_encoder_as_given,
            "self_loss": list(self._self_loss),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned; `load_experience` or `forget_experience` has to follow."""
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self._average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:  # which it holds too; the settings may be those of another turn
            group["weight_decay"] = self._params.weight_decay
        self._generators.load_state_dict(state)
        self.version, self.num_env_steps = int(state["version"]), int(state["num_env_steps"])
        self._num_gradient_steps, self._num_resets = int(state["num_gradient_steps"]), int(state["num_resets"])
        self._num_learned = int(state["num_learned"])
        self._num_start_steps = int(state["num_start_steps"])
        self._num_reset_samples = int(state["num_reset_samples"])
        self._self_loss = SelfLoss(*state["self_loss"])
        self._is_encoder_as_given = bool(state["is_encoder_as_given"])

    def experience(self) -> Experience:
        """What the ring holds; see `rulka.agents.spec.Learner`."""
        return self.replay.experience()

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        self._keep_features_while_frozen()
        self.replay.load_experience(experience)

    def forget_experience(self) -> None:
        """Empties the ring, which is filled anew before learning goes on."""
        self.replay.clear()
        # What fills it counts as little as it did the first time, or all of it would be learned from at once.
        self._num_start_steps += self._params.start_steps


@torch.no_grad()
def reset_weights(network: IqnNetwork, fresh: IqnNetwork, resets: ResetParams) -> None:
    """Mixes fresh weights into a network, in place, against what it can no longer unlearn.

    Ash and Adams 2020 (shrink and perturb), arXiv:1910.08475; Nikishin et al. 2022 (last layers), arXiv:2205.07802; the
    mixture of both is Linesight's.

    Every parameter becomes (1 - fresh_share) of itself plus fresh_share of the fresh one; those of the last layers of
    both heads after that last_layer_kept of themselves plus the rest of the fresh ones. Frozen parts stay as they are.

    Args:
        network: changed.
        fresh: of the same shape, newly initialised.
        resets: the shares.
    """
    for parameter, new in zip(network.parameters(), fresh.parameters(), strict=True):
        if parameter.requires_grad:
            parameter.lerp_(new, resets.fresh_share)
    for parameter, new in zip(_last(network), _last(fresh), strict=True):
        if parameter.requires_grad:
            parameter.lerp_(new, 1.0 - resets.last_layer_kept)


def _last(network: IqnNetwork) -> list[Tensor]:
    return [parameter for layer in network.output_layers() for parameter in layer.parameters()]
