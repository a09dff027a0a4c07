"""One whole update of parallel Q-learning and of IQN against a naive twin, see `tests.agents.twins`."""

from __future__ import annotations

import copy
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rulka.agents.algorithms import make_actor
from rulka.contracts.actions import Choices
from tests.agents.conftest import random_races
from tests.agents.twins import (
    CARS,
    RATES,
    Place,
    Stream,
    T,
    Twin,
    assert_same,
    assert_updated,
    disturbed,
    part_of,
    scene,
    stream_of,
)

# Parallel Q-learning, Li et al. 2023, arXiv:2307.12983 ----------------------------------------------------------------


def drawn_by_state(learner: Any) -> list[tuple[str, list[float]]]:
    """Notes the states of transitions that critics learn from, and of observations that the policy learns from."""
    drawn: list[tuple[str, list[float]]] = []
    sample, sample_states = learner._sample, learner.replay.sample_states

    def noting() -> Any:
        batch = sample()
        drawn.append(("critics", batch.floats[:, 1].tolist()))
        return batch

    def noting_states(count: int) -> Any:
        image, floats = sample_states(count)
        drawn.append(("policy", floats[:, 1].tolist()))
        return image, floats

    learner._sample, learner.replay.sample_states = noting, noting_states
    return drawn


def ahead(stream: Stream, step: int, car: int, most: int, *, greedy: bool = False) -> list[int]:
    """Returns the steps of a transition of so many decisions at most: to the end of the race or of what is known.

    Where `greedy`, it ends before the first later decision that was not.
    """
    found = [step]
    while len(found) < most and not stream.has_ended(found[-1], car) and found[-1] + 1 < len(stream.reward):
        if greedy and not stream.is_greedy[found[-1] + 1, car]:
            break
        found.append(found[-1] + 1)
    return found


class NaivePql(Twin):
    """Policy, critics and slow copies of both."""

    def __init__(self, learner: Any) -> None:
        super().__init__(learner, 0.3, 0.001)
        self.critics, self.slow_critics = copy.deepcopy(learner.critics), copy.deepcopy(learner._slow_critics)
        self.slow_network = copy.deepcopy(learner._slow_network)
        self.begun_others = [copy.deepcopy(each) for each in (self.critics, self.slow_critics, self.slow_network)]
        self.num_critic_updates = 0

    def policy(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns outputs [B, P]; what is seen is the critics' to learn."""
        return self.network.read_out(self.network.trunk(self.network.state(image, floats).detach())).double()

    def rate(self, critics: nn.Module, state: Tensor, decision: Tensor) -> Tensor:
        """Returns [2, B, A] of both critics: all choices, or the one decision [B, 2] of numbers."""
        return (critics(state) if isinstance(self.actions, Choices) else critics(state, decision.float())).double()

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Returns [B, A] of all choices, or the 1 of a decision of numbers."""
        return outputs.softmax(dim=1) if isinstance(self.actions, Choices) else torch.ones(len(outputs), 1).double()

    def learn_policy(self, image: Tensor, floats: Tensor) -> None:
        """Ascends what the first critic says of the policy's decisions, and the entropy of choices."""
        outputs = self.policy(image, floats)
        state = self.network.state(image, floats).detach()
        rated, probability = self.rate(self.critics, state, torch.tanh(outputs[:, :2]))[0], self.probabilities(outputs)
        named = {name: each for name, each in self.learning().items() if part_of(name) in {"trunk", "heads"}}
        self.step((probability * (0.3 * probability.log() - rated)).sum(dim=1).mean(), named, 0.002)

    def learn_critics(
        self, before: tuple[Tensor, Tensor], action: NDArray, after: tuple[Tensor, Tensor], worth: list[tuple]
    ) -> None:
        """Descends the errors of both critics; `worth` is what each transition was paid, and the factor behind it."""
        with torch.no_grad():
            outputs = self.policy(*after)
            slow = self.rate(self.slow_critics, self.slow_network.state(*after), torch.tanh(outputs[:, :2]))
        state = self.network.state(*before)
        is_choice = isinstance(self.actions, Choices)
        taken = state if is_choice else torch.from_numpy((action - np.array([0.0, 1.5])) / np.array([1.0, 1.5]))
        found = self.rate(self.critics, state if self.num_critic_updates else state.detach(), taken)
        said = found[:, torch.arange(len(action)), torch.from_numpy(action[:, 0]).long() if is_choice else 0]
        paid, factor = torch.tensor(worth, dtype=torch.float64).T
        opinion = (self.probabilities(outputs) * slow).sum(dim=2).amin(dim=0)
        loss = 0.5 * ((said - (paid + factor * opinion)) ** 2).sum(dim=0).mean()
        named = {f"critics.{name}": each for name, each in self.critics.named_parameters()}
        named |= {name: each for name, each in self.learning().items() if part_of(name) in {"encoder", "float_head"}}
        self.step(loss, named)
        self.num_critic_updates += 1
        with torch.no_grad():
            for kept, learning in ((self.slow_network, self.network), (self.slow_critics, self.critics)):
                for old, new in zip(kept.parameters(), learning.parameters(), strict=True):
                    old += 0.3 * (new - old)


@pytest.mark.parametrize("decisions", ["choices", "numbers"])
def test_pql(decisions: str) -> None:
    """Section 3: three updates of two critics, the first of which leaves all else alone, and two of the policy."""
    own = {"critic_updates_per_version": 3, "critic_updates_per_policy_update": 1, "critic_warmup_updates": 1}
    own |= {"start_steps": 64, "n_steps": 3, "target_tau": 0.3, "policy_learning_rate": 0.002}
    here, gamma = scene("pql", decisions, **own), 0.9
    learner, streams = here.learner, here.streams
    learner._slow_critics.load_state_dict(disturbed(learner.critics, 1.0).state_dict())
    twin, drawn = NaivePql(learner), drawn_by_state(learner)
    learner.update()
    assert [who for who, _ in drawn] == ["critics", "critics", "policy", "critics", "policy"]
    place_at = {float(here.at("floats", place)[1]): place for place in here.places()}
    for who, states in drawn:
        places = [place_at[state] for state in states]
        if who == "policy":
            twin.learn_policy(*here.seen(places))
            continue
        paths = [ahead(streams[number], step, car, 3) for number, step, car in places]
        worth = []
        for (number, _, car), path in zip(places, paths, strict=True):
            paid = sum(gamma**count * streams[number].shaped(step, car, gamma) for count, step in enumerate(path))
            worth.append((paid, 0.0 if streams[number].terminated[path[-1], car] else gamma ** len(path)))
        after = [(number, path[-1] + 1, car) for (number, _, car), path in zip(places, paths, strict=True)]
        action = np.stack([here.at("action", place) for place in places])
        twin.learn_critics(here.seen(places), action, here.seen(after), worth)
    assert_updated(learner, twin)
    found = learner.critics, learner._slow_critics, learner._slow_network
    expected = twin.critics, twin.slow_critics, twin.slow_network
    for one, other, before in zip(found, expected, twin.begun_others, strict=True):
        assert_same(one, other, before)


# IQN, Dabney et al. 2018, arXiv:1806.06923 ----------------------------------------------------------------------------

HORIZON, NUM_QUANTILES, SLOPE = 20, 8, 0.01
MUNCHAUSEN = {"alpha": 0.9, "temperature": 0.3, "floor": -0.5}
MARGIN = {"demonstration_margin": {"margin": 0.2, "weight": 0.3}}


@pytest.mark.parametrize(
    ("decisions", "embedding_at", "changes"),
    [
        ("choices", "state", MARGIN),
        ("choices", "hidden", {"use_double_dqn": False} | MARGIN),
        ("choices", "state", {"use_double_dqn": False, "munchausen": MUNCHAUSEN}),
        ("chunks", "hidden", {}),
        ("chunks", "state", {"use_double_dqn": False}),
        ("chunks", "hidden", {"use_double_dqn": False, "munchausen": MUNCHAUSEN}),
    ],
)
def test_iqn(decisions: str, embedding_at: str, changes: dict[str, Any]) -> None:
    """Three gradient steps from mini-races, by priority (Schaul et al. 2015, section 3), a quarter demonstrated."""
    own = {"n_steps": 3, "mini_race_ms": 50.0 * HORIZON, "kappa": 0.05, "target_tau": 0.3}
    own |= {"prioritised": {"alpha": 0.6, "beta": 0.5, "epsilon": 0.002, "min_actions_left": 8}}
    own |= {"demonstration_share": 0.25, "gradient_steps_per_update": 3, "start_steps": 64, "batch_size": 32}
    own |= {"weight_decay": 0.1, "max_grad_norm": 3.0, "max_grad_value": 0.05}
    own |= {"num_quantiles": NUM_QUANTILES}
    here = scene("iqn", decisions, extras={"embedding_at": embedding_at}, **own, **changes)
    learner, gamma = here.learner, 0.9
    shown = random_races(learner._spec, 2, num_cars=CARS, num_steps=T).drive(make_actor(learner._spec, seed=2))
    learner.insert_demonstrations([shown])
    own_places = here.places()
    here.streams.append(stream_of([shown]))
    place_at = {float(here.at("floats", place)[1]): place for place in here.places()}
    twin, samples, fractions = NaiveIqn(learner, changes), [], []
    make, draw_fractions = learner._gradient_step, learner._draw_fractions

    def noting(batch: Any, means: Any) -> None:
        samples.append((batch.floats[:, 1].tolist(), batch.floats[:, 0].tolist(), int((batch.row >= 0).sum())))
        make(batch, means)

    def noting_fractions() -> Tensor:
        fractions.append(draw_fractions())
        return fractions[-1]

    learner._gradient_step, learner._draw_fractions = noting, noting_fractions
    learner.update()
    measured: dict[Place, float] = {}
    waiting = 1.0
    for number_of_step, (states, clocks, num_own) in enumerate(samples):
        places = [place_at[state] for state in states]
        image, floats = here.seen(places)
        floats[:, 0] = torch.tensor(clocks)
        after, returns, factors, lengths = [], [], [], []
        for (number, step, car), clock in zip(places, clocks, strict=True):
            stream = here.streams[number]
            path = ahead(stream, step, car, 3, greedy=True)
            paid = [float(stream.reward[each, car]) for count, each in enumerate(path) if clock + count < HORIZON]
            is_over = clock + len(path) >= HORIZON or stream.terminated[path[-1], car]
            factor = 0.0 if is_over else gamma ** len(path)
            shaping = factor * float(stream.potential[path[-1] + 1, car]) - float(stream.potential[step, car])
            returns.append(sum(gamma**count * each for count, each in enumerate(paid)) + shaping)
            after.append((number, path[-1] + 1, car))
            factors.append(factor)
            lengths.append(len(path))
        next_image, next_floats = here.seen(after)
        next_floats[:, 0] = torch.tensor(clocks) + torch.tensor(lengths)
        powers = {place: measured.get(place, waiting) ** 0.6 for place in own_places}
        total = sum(powers.values())
        importance = [(len(powers) * powers[place] / total) ** -0.5 for place in places[:num_own]]
        weight = [each / max(importance) for each in importance] + [1.0] * (len(places) - num_own)
        error = twin.learn(
            (image, floats),
            np.stack([here.at("action", place) for place in places]),
            (next_image, next_floats),
            (torch.tensor(returns), torch.tensor(factors), torch.tensor(weight)),
            *(each.expand(len(places), -1) for each in fractions[2 * number_of_step :][:2]),  # the online one's first
            slice(num_own, None),
        )
        noted = {
            place: float(each) + 0.002
            for place, clock, each in zip(places[:num_own], clocks, error, strict=False)
            if clock < HORIZON - 8
        }
        waiting = waiting if measured else max(noted.values())
        measured |= noted
    assert (len(samples), learner._num_learned) == (3, 3 * 24), "demonstrations are not counted"
    assert_updated(learner, twin)
    assert_same(learner.target, twin.target, twin.begun_target)
    found = learner.replay.priorities.measured
    np.testing.assert_allclose(np.sort(found[found > 0]), np.sort([*measured.values()]), rtol=1e-4)


class NaiveIqn(Twin):
    """Three passes through the whole network in each step, with the quantiles of every action each time.

    B batch, T quantile fractions, D decisions: A actions, or all chunks of K of them.
    """

    def __init__(self, learner: Any, changes: dict[str, Any]) -> None:
        super().__init__(learner, 3.0, 0.001)
        self.target, self.begun_target = copy.deepcopy(learner.target), copy.deepcopy(learner.target)
        self.changes, self.typical, self.typical_clamped = changes, 0.01, 0.01
        groups = [
            {"params": [each for name, each in self.learning().items() if part_of(name) == part], "lr": 0.001 * rate}
            for part, rate in RATES.items()
        ]
        self.optimizer = torch.optim.RAdam(
            groups, eps=1e-4, weight_decay=0.1, decoupled_weight_decay=True, foreach=False
        )

    def values(self, network: nn.Module, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Returns quantiles [B, T, D] of all decisions: of chunks V + sum over places of the centred advantage."""
        value = quantiles(network, image, floats, tau)
        places = value.unflatten(2, (-1, self.actions.num_choices))
        centred = places - places.mean(dim=3, keepdim=True)
        each = [sum(centred[:, :, place, action] for place, action in enumerate(chunk)) for chunk in self.chunks()]
        return torch.stack(each, dim=2) + value.mean(dim=2, keepdim=True)

    def chunks(self) -> list[tuple[int, ...]]:
        return [*product(range(self.actions.num_choices), repeat=self.actions.num_places)]

    def learn(
        self,
        before: tuple[Tensor, Tensor],
        action: NDArray,
        after: tuple[Tensor, Tensor],
        worth: tuple[Tensor, Tensor, Tensor],
        tau: Tensor,
        target_tau: Tensor,
        shown: slice,
    ) -> Tensor:
        """Makes one gradient step and returns the errors [B] of the mean return before it.

        Args:
            before: images and floats of the observations.
            action: [B, K].
            after: those that follow.
            worth: [B] returns of the transitions, factors of what follows, and importance.
            tau: [B, T] fractions of the online network's values.
            target_tau: [B, T] fractions of the target's.
            shown: rows that are demonstrations.
        """
        rows, (paid, factor, importance) = torch.arange(len(tau)), worth
        middles = ((torch.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES).expand(len(tau), -1)
        taken = torch.tensor([self.chunks().index(tuple(each)) for each in action.tolist()])
        with torch.no_grad():
            following = self.values(self.target, *after, target_tau)
            if "munchausen" in self.changes:  # Vieillard et al. 2020, equation 4
                log_policy = (self.values(self.target, *before, middles).mean(dim=1) / 0.3).log_softmax(dim=1)
                paid = paid + 0.9 * (0.3 * log_policy[rows, taken]).clamp(-0.5, 0.0)
                next_log_policy = (following.mean(dim=1) / 0.3).log_softmax(dim=1)[:, None]
                following = (next_log_policy.exp() * (following - 0.3 * next_log_policy)).sum(dim=2)
            elif "use_double_dqn" in self.changes:
                following = following.amax(dim=2)
            else:  # van Hasselt et al. 2015: the online network chooses
                choice = self.values(self.network, *after, middles).mean(dim=1).argmax(dim=1)
                assert (choice != following.mean(dim=1).argmax(dim=1)).any(), "or it would not matter which one does"
                following = following[rows, :, choice]
            target = paid[:, None] + factor[:, None] * following
            width = quantile_huber(target, target_tau, target, 0.05).sqrt()
            self.typical = 0.99 * self.typical + 0.01 * float(width.mean())
            width = width.clamp(min=self.typical / 4.0)
            self.typical_clamped = 0.99 * self.typical_clamped + 0.01 * float(width.mean())
        quantile = self.values(self.network, *before, tau)[rows, :, taken]
        loss = (quantile_huber(quantile, tau, target, 0.05) * self.typical_clamped / width * importance).sum()
        if "demonstration_margin" in self.changes:  # Hester et al. 2018, equation 3
            value = self.values(self.network, *before, middles).mean(dim=1)[shown]
            margin = torch.full_like(value, 0.2)
            margin[torch.arange(len(value)), taken[shown]] = 0.0
            loss = loss + 0.3 * ((value + margin).amax(dim=1) - value[torch.arange(len(value)), taken[shown]]).sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 3.0)
        nn.utils.clip_grad_value_(self.network.parameters(), 0.05)
        self.optimizer.step()
        with torch.no_grad():
            for slow, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.copy_(slow + 0.3 * (online - slow))
        return (quantile.detach().mean(dim=1) - target.mean(dim=1)).abs()


def quantiles(network: nn.Module, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
    """Returns quantiles [B, T, K A], layer by layer from the network's weights."""
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
    state = torch.cat([features.flatten(1), hidden], dim=1)[:, None]
    num_cosines = weights["tau_embed.0.weight"].shape[1]
    cosine = torch.cos(math.pi * torch.arange(1, num_cosines + 1) * tau[:, :, None])
    factor = functional.leaky_relu(linear("tau_embed.0", cosine), SLOPE)

    def head(name: str, own: Tensor) -> Tensor:
        if network.embedding_at == "state":
            return linear(f"{name}.2", functional.leaky_relu(linear(f"{name}.0", state * factor), SLOPE))
        return linear(f"{name}.2", functional.leaky_relu(linear(f"{name}.0", state), SLOPE) * own)

    of_value, of_advantage = factor.chunk(2, dim=2)
    advantage = head("advantage_head", of_advantage)
    return head("value_head", of_value) + advantage - advantage.mean(dim=2, keepdim=True)


def quantile_huber(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Returns the quantile Huber losses [B] of quantiles [B, T] against targets [B, S], equation 3."""
    error = target[:, None, :] - quantile[:, :, None]
    huber = functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa) / kappa
    return ((tau[:, :, None] - (error < 0).float()).abs() * huber).mean(dim=2).sum(dim=1)
