"""Small agents and tiny environments for the agents' tests.

A *probe* is an environment so small that its values are known; each is designed to expose one kind of bug. All actors
and learners are driven through the interface that the runtime uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from models.encoders.config import ENCODER_CONFIG, ConvConfig
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.params import ALGORITHMS, Algorithm
from rulka.agents.pql.learner import PqlLearner
from rulka.agents.shared.acting import NetworkActor
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.network_params import IqnNetworkParams, NetworkParams
from rulka.agents.shared.params import AlgorithmParams, OffPolicyParams, PolicyParams
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.contracts.actions import Choices
from rulka.contracts.observation import Normalisation
from rulka.contracts.schedule import Moment, Schedule
from rulka.envs.starts import EqualStarts
from tests.conftest import sees

NUM_FLOATS = 4
SIZE = 34
NUM_ACTIONS = 3


def constant(value: float) -> Schedule:
    return Schedule(interpolation="linear", points=((0, value),))


COMMON: dict[type[AlgorithmParams], dict[str, Any]] = {
    AlgorithmParams: {
        "action_repeat": 1,
        "batch_size": 64,
        "learning_rate": constant(0.001),
        "rate_of": dict.fromkeys(("encoder", "float_head", "trunk", "heads"), constant(1.0)),
        "gamma": constant(0.5),
        "max_grad_norm": constant(0.5),
        "racer_tau": 1.0,
    },
    PolicyParams: {
        "steps_per_update": 256,
        "entropy_weight": constant(0.003),
        "initial_kl_weight": constant(0.0),
        "max_versions_behind": 0,
        "value_warmup_steps": 0,
        "max_kl": constant(1.0),
    },
    OffPolicyParams: {
        "n_steps": 1,
        "start_steps": 256,
        "buffer_steps": 4096,
        "target_tau": 0.1,
        "epsilon": constant(0.3),
        "learning_rate": constant(0.002),
        "gradient_steps_per_update": 8,
        "max_grad_norm": constant(10.0),
    },
}
"""Settings of small agents, by base class of their section and where it has the key; all others keep their defaults."""
OWN: dict[Algorithm, dict[str, Any]] = {
    "ppo": {"gae_lambda": constant(0.9), "value_clip": constant(10.0)},
    "grpo": {"steps_per_update": 192, "gamma": constant(1.0), "group_size": 4, "cut_worth": 0.0},
    "dpo": {
        "steps_per_update": 192,
        "epochs": 4,
        "pairs": {"kind": "online", "group_size": 4, "gamma": 1.0, "cut_worth": 0.0, "min_gap": 0.0},
        "beta": constant(0.5),
        "pairs_per_step": 8,
    },
    "iqn": {
        "num_quantiles_acting": 8,
        "batch_size": 16,
        "learning_rate": constant(0.003),
        "buffer_steps": 1024,
        "warmup_steps": 0,
        "guide_floor": constant(0.0),
        "weight_decay": 0.0,
        "max_grad_norm": 30.0,
    },
    "pql": {
        "steps_per_critic_update": 16,
        "critic_updates_per_version": 16,
        "critic_warmup_updates": 0,
        "max_steps_ahead": 0,
        "policy_learning_rate": constant(0.002),
        "noise_least": constant(0.05),
        "noise_most": constant(0.5),
        "entropy_weight": constant(0.01),
    },
}
"""What some algorithms change of that. A new one needs no entry to run on all probes."""
PRIORITISED: dict[str, Any] = {
    "alpha": 0.6,
    "beta": {"interpolation": "linear", "points": [[0, 0.4], [10000, 1.0]]},
    "epsilon": 0.002,
    "min_actions_left": 40,
}
MUNCHAUSEN = {"alpha": 0.9, "temperature": 0.03, "floor": -1.0}
CONV = ConvConfig(kind="conv", adaptive_pool=0)
PLAIN = IqnNetworkParams(
    tau_embedding=16,
    embedding_at="state",
    guided=False,
    layer_norm=False,
    noisy_sigma=0.0,
)


class Step(NamedTuple):
    """Result of one decision; `end` is "terminated", "truncated" or empty."""

    reward: float
    state: float
    end: str = ""


Probe = Callable[[int, Any], Step]
"""Maps state and action (or chunk) to a `Step`; races start in state 0, or in one of `starts` if given."""


class Races:
    """Races of many cars in a probe, with gymnasium's next-step autoreset; the state is float 1.

    Images and potentials are zeros, or `noise` if that is given.
    """

    def __init__(
        self,
        probe: Probe,
        num_cars: int = 16,
        starts: tuple[float, ...] | np.ndarray = (0,),
        num_steps: int = 16,
        noise: np.random.Generator | None = None,
    ) -> None:
        self.probe, self.starts, self.noise = probe, starts, noise
        self.spec = BlockSpec(num_steps, num_cars, SIZE, SIZE, NUM_FLOATS)
        self.rng = np.random.default_rng(0)
        self.last: ExperienceBlock | None = None
        self.state = self.rng.choice(starts, num_cars)
        self.is_over = np.zeros(num_cars, np.bool_)
        self.dealt: EqualStarts | None = None

    def deal(self, races_per_start: int) -> None:
        """Gives groups of `races_per_start` races the same start, as an environment does; restarts all races."""
        self.dealt = EqualStarts(self.spec.num_cars, races_per_start, 1)
        self._begin(np.ones(self.spec.num_cars, np.bool_))

    def drive(self, actor: NetworkActor, *, explore: bool = True) -> ExperienceBlock:
        block = new_block(self.spec)
        if self.noise is not None:
            block.image[...] = self.noise.integers(0, 256, block.image.shape)
            block.potential[...] = self.noise.standard_normal(block.potential.shape)
        if self.last is not None:
            block.image[0], block.potential[0] = self.last.image[-1], self.last.potential[-1]
            block.number[...] = self.last.number + 1
        self.last = block
        for t in range(self.spec.num_steps):
            block.floats[t, :, 1] = self.state
            decision = actor.act(torch.from_numpy(block.image[t]), torch.from_numpy(block.floats[t]), explore=explore)
            block.action[t], block.is_greedy[t] = decision.action, decision.is_greedy
            block.log_prob[t] = decision.log_prob
            block.is_reset[t] = self.is_over
            self._begin(self.is_over)
            for car in np.flatnonzero(~self.is_over):
                self._step(block, t, int(car))
            self.is_over = block.terminated[t] | block.truncated[t]
        block.floats[-1, :, 1] = self.state
        return block

    def _begin(self, which: np.ndarray) -> None:
        if self.dealt is None:
            for car in np.flatnonzero(which):
                self.state[car] = self.rng.choice(self.starts)
        else:
            chance = self.dealt.draw(which, [self.rng] * len(which))[which, 0]
            self.state[which] = np.asarray(self.starts)[(chance * len(self.starts)).astype(int)]

    def _step(self, block: ExperienceBlock, t: int, car: int) -> None:
        action = block.action[t, car]
        is_single = len(action) == 1 and not self.spec.continuous
        step = self.probe(int(self.state[car]), int(action[0]) if is_single else action)
        self.state[car] = step.state
        block.reward[t, car] = step.reward
        block.terminated[t, car], block.truncated[t, car] = step.end == "terminated", step.end == "truncated"


def random_races(spec: AgentSpec, seed: int, **shape: int) -> Races:
    """Returns races of pure noise: rewards, states, ends, images and potentials are random.

    All observed states differ, except the shared starts of a group's races.
    """
    rng = np.random.default_rng(seed)

    def probe(_state: float, _action: object) -> Step:
        end = rng.choice(["terminated", "truncated", ""], p=[0.15, 0.1, 0.75])
        return Step(float(rng.standard_normal()), float(rng.standard_normal()), str(end))

    races = Races(probe, starts=rng.standard_normal(20_000), noise=np.random.default_rng(100 + seed), **shape)
    continuous, size = not isinstance(spec.actions, Choices), math.prod(spec.actions.decision_shape)
    races.spec, races.rng = replace(races.spec, decision_size=size, continuous=continuous), rng
    return races


class Trained(NamedTuple):
    learner: Learner
    actor: NetworkActor
    metrics: dict[str, float]

    def values(self, *states: int) -> list[float]:
        """The value of each state, at the start of a mini-race: V, or the best mean Q of actors that compare these."""
        image = torch.zeros(len(states), 1, SIZE, SIZE, dtype=torch.uint8)
        floats = torch.zeros(len(states), NUM_FLOATS)
        floats[:, 1] = torch.tensor(states)
        rated = self.actor.action_values(image, floats)
        if rated is not None and rated.name == "q_value":
            return rated.value.max(axis=1).tolist()
        with torch.no_grad():
            if isinstance(self.learner, PqlLearner):
                network = self.learner.network
                state = network.state(image, floats)
                outputs = network.read_out(network.trunk(state))
                seen = self.learner._decisions.rate(self.learner.critics, state, outputs)
                return (seen.probability * seen.values[0]).sum(dim=1).tolist()
            return self.learner.network(image, floats).value.tolist()

    def actions(self, *states: int) -> list[int]:
        image = torch.zeros(len(states), 1, SIZE, SIZE, dtype=torch.uint8)
        floats = torch.zeros(len(states), NUM_FLOATS)
        floats[:, 1] = torch.tensor(states)
        return self.actor.act(image, floats, explore=False).for_environment.tolist()


def small_spec(algorithm: Algorithm, extras: dict[str, object] | None = None, **changes: object) -> AgentSpec:
    """A tiny float32 agent.

    `changes` override settings of its algorithm; `extras` those of IQN's network, `encoder`, `fusion` or
    `actions_per_decision`.
    """
    section = ALGORITHMS[algorithm]
    given = {name: value for base in COMMON if issubclass(section, base) for name, value in COMMON[base].items()}
    common = {name: value for name, value in given.items() if name in section.model_fields}
    settings = section.model_validate(common | OWN.get(algorithm, {}) | changes)
    normalisation = Normalisation(np.zeros(NUM_FLOATS, np.float32), np.array([70, 1, 1, 1], np.float32))
    extras = {"encoder": CONV, "fusion": {"kind": "concat"}} | (extras or {})
    encoder, fusion = ENCODER_CONFIG.validate_python(extras.pop("encoder")), extras.pop("fusion")
    places: Any = extras.pop("actions_per_decision", 1)
    sizes = {"float_hidden": 32, "dense_hidden": 64, "actions_per_decision": places, "analog": False}
    network = NetworkParams.model_validate(sizes | {"fusion": fusion, "iqn": PLAIN.model_dump() | extras})
    observation = sees(SIZE, SIZE)
    seen = (observation, encoder, network)
    return AgentSpec(algorithm, *seen, settings, Choices(NUM_ACTIONS, places), normalisation, precision="float32")


def train(spec: AgentSpec, races: Races, num_updates: int) -> Trained:
    """Trains serially like the runtime: drive while allowed, learn while possible, publish."""
    learner, actor = make_learner(spec, seed=0), make_actor(spec, seed=1)
    actor.load_network(learner.network.state_dict())
    if spec.params.races_per_start > 1:
        races.deal(spec.params.races_per_start)
    metrics: dict[str, float] = {}
    while learner.version < num_updates:
        before = learner.num_env_steps, learner.version
        if learner.num_env_steps < learner.num_allowed_env_steps():
            actor.set_moment(Moment(learner.num_env_steps))
            learner.insert(races.drive(actor), 0, learner.version)
        latest = learner.update()
        if latest is not None:
            metrics = latest
            actor.load_network(learner.network.state_dict())
        assert before != (learner.num_env_steps, learner.version), "neither side may go on"
    return Trained(learner, actor, metrics)


def learner_and_actor(spec: AgentSpec) -> tuple[Any, Any]:
    """Returns a learner, and an actor with the learner's weights."""
    learner, actor = make_learner(spec, seed=0), make_actor(spec, seed=1)
    actor.load_network(learner.network.state_dict())
    return learner, actor


def filled(spec: AgentSpec, races: Races, num_blocks: int = 2) -> Any:
    """Returns a learner with `num_blocks` blocks inserted."""
    learner, actor = make_learner(spec, seed=0), make_actor(spec, seed=1)
    for _ in range(num_blocks):
        learner.insert(races.drive(actor), 0, 0)
    return learner


def weights(of: Any) -> dict[str, torch.Tensor]:
    """Returns a copy of the weights of a network, or of a learner's network."""
    return {name: tensor.clone() for name, tensor in getattr(of, "network", of).state_dict().items()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Returns the parts of a network in which any weight differs."""
    return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}


def update(learner: Any, actor: Any, races: Races, log_prob: float = 0.0) -> dict[str, float]:
    """Drives until there is an update; groups of four races share their start.

    `log_prob` is added to the actions' log-probabilities.
    """
    if races.dealt is None:
        races.deal(4)
    while (metrics := learner.update()) is None:
        block = races.drive(actor)
        block.log_prob[...] += log_prob
        learner.insert(block, 0, learner.version)
    return metrics


def views(num_cars: int, seed: int | None = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns random images and floats for `num_cars` cars; zeros without a seed."""
    if seed is None:
        return torch.zeros(num_cars, 1, SIZE, SIZE, dtype=torch.uint8), torch.zeros(num_cars, NUM_FLOATS)
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (num_cars, 1, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    return image, torch.randn(num_cars, NUM_FLOATS, generator=generator)


@pytest.fixture
def races() -> Races:
    """Races of three decisions whose reward is the action's index; images and potentials are noise."""

    def probe(state: float, action: int) -> Step:
        return Step(float(action), state + 1, "terminated" if state == 2 else "")

    return Races(probe, noise=np.random.default_rng(1))
