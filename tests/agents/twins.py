"""What naive twins of learners have in common: races in which all is random, distributions, gradient steps.

A twin was written from the paper and not from the code. It reads what cars did number by number, has torch's
distributions, and makes the steps of a whole update; it shares nothing but the networks' forward pass with the learner,
and IQN's not even that. Two collectors drive several blocks each, the second one with the weights that learning began
with. A *place* is one decision: collector, step and car.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    Categorical,
    Normal,
    TanhTransform,
    TransformedDistribution,
    kl_divergence,
)

from rulka.agents.algorithms import make_actor, make_learner
from rulka.buffers.experience import ExperienceBlock
from rulka.contracts.actions import ActionSpace, Choices, Intervals
from rulka.params import Params
from tests.agents.conftest import random_races, small_spec

T, CARS = 8, 4
"""Decisions of a block, and cars of a collector."""
RATES = {"encoder": 0.5, "float_head": 1.0, "trunk": 1.5, "heads": 2.0}
COMMON: dict[str, Any] = {
    "rate_of": RATES,
    "steps_per_update": 4 * T * CARS,
    "batch_size": 40,
    "learning_rate": 0.001,
    "max_grad_norm": 0.3,
    "gamma": 0.9,
    "entropy_weight": 0.3,
    "initial_kl_weight": 0.4,
    "racer_tau": 0.25,
    "max_kl": 10.0,
}
NUMBERS = Intervals((-1.0, 0.0), (1.0, 3.0))
DECISIONS = {"choices": Choices(3), "chunks": Choices(3, 2), "numbers": NUMBERS}
Place = tuple[int, int, int]


class Stream(NamedTuple):
    """What the cars of one collector did: observations [S + 1, N], everything else [S, N]."""

    image: NDArray
    floats: NDArray
    potential: NDArray
    action: NDArray
    reward: NDArray
    terminated: NDArray
    truncated: NDArray
    is_reset: NDArray
    is_greedy: NDArray
    log_prob: NDArray

    def has_ended(self, step: int, car: int) -> bool:
        return bool(self.terminated[step, car] or self.truncated[step, car])

    def shaped(self, step: int, car: int, gamma: float) -> float:
        """r + gamma phi(s') - phi(s), Ng et al. 1999; the potential is 0 behind an end for good."""
        follows = 0.0 if self.terminated[step, car] else float(self.potential[step + 1, car])
        return float(self.reward[step, car]) + gamma * follows - float(self.potential[step, car])


def stream_of(blocks: list[ExperienceBlock]) -> Stream:
    """Lays blocks that continue each other end to end."""
    last = len(blocks) - 1
    columns = (
        [getattr(block, name)[: None if number == last else T] for number, block in enumerate(blocks)]
        for name in Stream._fields
    )
    return Stream(*map(np.concatenate, columns))


class Scene(NamedTuple):
    """A learner that was given experience, and the same experience for its twin."""

    learner: Any
    streams: list[Stream]
    actions: Any

    def places(self) -> list[Place]:
        """All decisions that are no resets."""
        return [
            (number, step, car)
            for number, stream in enumerate(self.streams)
            for step, car in np.argwhere(~stream.is_reset).tolist()
        ]

    def at(self, name: str, place: Place) -> Any:
        """Returns a column at a place."""
        number, step, car = place
        return getattr(self.streams[number], name)[step, car]

    def column(self, name: str, places: list[Place]) -> Tensor:
        """Returns a column at some places."""
        return torch.from_numpy(np.stack([self.at(name, place) for place in places]))

    def seen(self, places: list[Place]) -> tuple[Tensor, Tensor]:
        """Returns images and floats at some places."""
        return self.column("image", places), self.column("floats", places)

    def log_prob(self, places: list[Place], outputs: Tensor) -> Tensor:
        """Returns the log-probabilities [M] of what was done at some places, by a policy's outputs [M, P] there."""
        return log_prob(self.actions, outputs, self.column("action", places))

    def ratio(self, places: list[Place], outputs: Tensor) -> Tensor:
        """Returns how much likelier it is [M] than under the policy that acted."""
        return (self.log_prob(places, outputs) - self.column("log_prob", places)).exp()


def scene(
    algorithm: str,
    decisions: str,
    races_per_start: int = 1,
    extras: dict[str, Any] | None = None,
    **changes: Any,
) -> Scene:
    """Has two collectors drive two blocks each, one with older weights; `COMMON` goes where there is such a key."""
    places = {"actions_per_decision": 2 if decisions == "chunks" else 1}
    keys = Params.model_fields[algorithm].annotation.model_fields
    common = {name: value for name, value in COMMON.items() if name in keys}
    spec = small_spec(algorithm, places | (extras or {}), **common | changes)
    spec = replace(spec, actions=DECISIONS[decisions])
    learner = make_learner(spec, seed=0)
    begun = disturbed(learner.network, 10.0 if decisions == "numbers" else 30.0)
    if decisions == "numbers":  # deviations of e^-1: float32 tells little of decisions near the ends of their interval
        begun.policy_head.bias.data[2:] -= 1.0
    learner.load_network(begun.state_dict())
    if hasattr(learner, "_initial_policy"):  # the policy that is held on to comes with the weights
        kept = learner._initial_policy.parameters()
        assert all(torch.equal(*pair) for pair in zip(kept, begun.parameters(), strict=True))
    older = copy.deepcopy(learner.network)
    learner.network.load_state_dict(disturbed(learner.network, 1.0).state_dict())
    learner._average.begin()
    streams: list[list[ExperienceBlock]] = [[], []]
    worlds = [random_races(spec, seed, num_cars=CARS, num_steps=T) for seed in range(2)]
    for number, (network, races) in enumerate(zip((learner.network, older), worlds, strict=True)):
        if races_per_start > 1:
            races.deal(races_per_start)
        actor = make_actor(spec, seed=number)
        actor.load_network(network.state_dict())
        streams[number] = [races.drive(actor) for _ in range(2)]
    learner.version = 2
    for blocks in zip(*streams, strict=True):
        for number, block in enumerate(blocks):
            learner.insert(block, number, 2 - number)
    return Scene(learner, [stream_of(blocks) for blocks in streams], spec.actions)


def disturbed(network: nn.Module, factor: float) -> nn.Module:
    """Returns a network with noise on all weights, biases included, and a policy that prefers some decisions."""
    other, generator = copy.deepcopy(network), torch.Generator().manual_seed(int(factor))
    with torch.no_grad():
        if hasattr(other, "policy_head"):
            other.policy_head.weight.mul_(factor)
        for name, parameter in other.named_parameters():
            noise = 0.3 if name == "advantage_head.2.weight" else 0.03
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return other


# Decisions by outputs [M, P], as torch's own distributions see them --------------------------------------------------


def distribution(actions: ActionSpace, outputs: Tensor) -> Categorical | Normal:
    """Returns that of each place, or of each number before it is squashed."""
    if isinstance(actions, Choices):
        return Categorical(logits=outputs.unflatten(1, (-1, actions.num_choices)))
    mean, log_std = outputs.chunk(2, dim=1)
    return Normal(mean, log_std.exp())


def log_prob(actions: ActionSpace, outputs: Tensor, action: Tensor) -> Tensor:
    found = distribution(actions, outputs)
    if isinstance(actions, Intervals):
        low, high = torch.tensor(actions.low).double(), torch.tensor(actions.high).double()
        found = TransformedDistribution(found, [TanhTransform(), AffineTransform((high + low) / 2, (high - low) / 2)])
        action = action.double()
    return found.log_prob(action.reshape(len(action), -1)).sum(dim=1)


def entropy(actions: ActionSpace, outputs: Tensor) -> Tensor:
    """Of numbers, the mean logarithm of the slope of tanh is a sum over points twelve deviations wide."""
    found = distribution(actions, outputs)
    if isinstance(found, Categorical):
        return found.entropy().sum(dim=1)
    points = (torch.arange(240).double() - 119.5) * 0.05
    raw = found.mean[..., None] + found.stddev[..., None] * points
    slope = TanhTransform().log_abs_det_jacobian(raw, torch.tanh(raw)) @ points.square().mul(-0.5).softmax(dim=0)
    half = (torch.tensor(actions.high) - torch.tensor(actions.low)) / 2
    return (found.entropy() + slope + half.log()).sum(dim=1)


def divergence(actions: ActionSpace, first: Tensor, second: Tensor) -> Tensor:
    """KL(first, second)."""
    return kl_divergence(distribution(actions, first), distribution(actions, second)).sum(dim=1)


# The network's steps --------------------------------------------------------------------------------------------------


class Twin:
    """Copies of the networks before the update, and Adam (Kingma and Ba 2015) with the gradient's norm bounded."""

    def __init__(self, learner: Any, max_grad_norm: float, learning_rate: float) -> None:
        self.network = copy.deepcopy(learner.network)
        self.begun = copy.deepcopy(learner.network)
        self.racer = copy.deepcopy(learner.racer)
        self.first = copy.deepcopy(getattr(learner, "_initial_policy", None))
        self.actions = learner._spec.actions
        self.max_grad_norm, self.learning_rate = max_grad_norm, learning_rate
        self.moments: dict[str, tuple[Tensor, Tensor, int]] = {}

    def outputs(self, network: nn.Module, image: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
        decided = network(image, floats)
        return decided.outputs.double(), decided.value.double()

    def first_outputs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns those of the policy that learning began with."""
        with torch.no_grad():
            return self.outputs(self.first, image, floats)[0]

    def step(self, loss: Tensor, named: Mapping[str, nn.Parameter], learning_rate: float | None = None) -> None:
        """Makes one step of the weights named."""
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        gradients = {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}
        norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in gradients.values()))
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, self.max_grad_norm / norm)
            zeros = torch.zeros_like(gradient)
            first, second, count = self.moments.get(name, (zeros, zeros, 0))
            first, second, count = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2, count + 1
            self.moments[name] = first, second, count
            first, second = first / (1 - 0.9**count), second / (1 - 0.999**count)
            rate = (learning_rate or self.learning_rate) * RATES.get(part_of(name), 1.0)
            named[name].data -= rate * first / (second.sqrt() + 1e-5)

    def learning(self, *, with_encoder: bool = True) -> dict[str, nn.Parameter]:
        named = dict(self.network.named_parameters())
        return named if with_encoder else {name: each for name, each in named.items() if part_of(name) != "encoder"}


def part_of(name: str) -> str:
    part = name.split(".")[0]
    heads = dict.fromkeys(("policy_head", "value_head", "advantage_head"), "heads")
    return (heads | {"tau_embed": "trunk"}).get(part, part)


def assert_same(found: nn.Module, expected: nn.Module, begun: nn.Module) -> None:
    """Each weight has moved as far, to the accuracy of float32."""
    triples = zip(found.named_parameters(), expected.parameters(), begun.parameters(), strict=True)
    for (name, one), other, before in triples:
        moved, wanted = one.detach() - before.detach(), other.detach() - before.detach()
        error = float((moved - wanted).norm() / wanted.norm().clamp(min=1e-12))
        assert error < 1e-3, f"{name} is {error:.1e} of its way off"


def assert_updated(learner: Any, twin: Twin) -> None:
    assert_same(learner.network, twin.network, twin.begun)
    with torch.no_grad():  # Polyak and Juditsky 1992
        for average, weight in zip(twin.racer.parameters(), twin.network.parameters(), strict=True):
            average += 0.25 * (weight - average)
    assert_same(learner.racer, twin.racer, twin.begun)


def record(learner: Any) -> list[list[float]]:
    """Notes which decisions every gradient step learns from: by the log-probability or, without one, by the state."""
    steps: list[list[float]] = []
    make = learner._gradient_step

    def noting(*given: Any) -> Any:
        part = next(each for each in given if hasattr(each, "floats"))
        column = part.log_prob if hasattr(part, "log_prob") else part.floats[..., 1]
        steps.append(column.flatten().tolist())
        return make(*given)

    learner._gradient_step = noting
    return steps


def steps_of(scene: Scene, recorded: list[list[float]], places: list[Place]) -> list[tuple[list[Place], int]]:
    """Returns the places that each gradient step learned from, and its epoch; an epoch has every place once."""
    keys = {float(scene.at("log_prob", place)): place for place in places}
    assert len(keys) == len(places)
    found: list[tuple[list[Place], int]] = []
    for step in recorded:
        before = sum(len(each) for each, _ in found)
        found.append(([keys[key] for key in step if key in keys], before // len(places)))
    used = [place for each, _ in found for place in each]
    epochs = [used[first : first + len(places)] for first in range(0, len(used), len(places))]
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    return found
