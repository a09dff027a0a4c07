"""One whole update of each learner of a policy against a naive twin, see `tests.agents.twins`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from rulka.buffers.experience import PreferencePairs
from rulka.params import read_sections
from tests.agents.conftest import learner_and_actor, random_races, small_spec
from tests.agents.twins import (
    CARS,
    Place,
    Scene,
    Stream,
    T,
    Twin,
    assert_updated,
    disturbed,
    divergence,
    entropy,
    record,
    scene,
    steps_of,
    stream_of,
)

# PPO, Schulman et al. 2017, arXiv:1707.06347 --------------------------------------------------------------------------


def values_of(twin: Twin, scene: Scene) -> list[tuple[Tensor, Tensor]]:
    """Returns outputs [S + 1, N, P] and values [S + 1, N] of all observations of each collector."""
    found = []
    for stream in scene.streams:
        image, floats = torch.from_numpy(stream.image).flatten(0, 1), torch.from_numpy(stream.floats).flatten(0, 1)
        with torch.no_grad():
            columns = twin.outputs(twin.network, image, floats)
        found.append(tuple(column.unflatten(0, stream.floats.shape[:2]) for column in columns))
    return found


def of(column: Mapping[Place, float], places: list[Place]) -> Tensor:
    return torch.tensor([column[place] for place in places], dtype=torch.float64)


def clipped(here: Scene, places: list[Place], outputs: Tensor, advantage: Tensor) -> Tensor:
    """The surrogate [M] with ratios clipped at 0.9 and 1.1."""
    ratio = here.ratio(places, outputs)
    return torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)


def error_of(stream: Stream, value: Tensor, step: int, car: int, gamma: float) -> float:
    """delta_t = r_t + gamma V(s_(t+1)) - V(s_t)."""
    follows = 0.0 if stream.terminated[step, car] else float(value[step + 1, car])
    return stream.shaped(step, car, gamma) + gamma * follows - float(value[step, car])


def behind(stream: Stream, step: int, car: int) -> Iterator[int]:
    """Yields this step and those behind it, to the end of the race or of the block."""
    while True:
        yield step
        if stream.has_ended(step, car) or (step + 1) % T == 0:
            return
        step += 1


@pytest.mark.parametrize(
    ("decisions", "value_clip", "max_kl"),
    [("choices", 0.05, 10.0), ("choices", None, 0.01), ("chunks", 0.05, 10.0), ("numbers", 0.05, 10.0)],
)
def test_ppo(decisions: str, value_clip: float | None, max_kl: float) -> None:
    """Equations 7, 9 and 11; Schulman et al. 2015, arXiv:1506.02438, equation 16."""
    own = {"gae_lambda": 0.8, "clip": 0.1, "value_weight": 0.7, "epochs": 3, "encoder_epochs": 1}
    here = scene("ppo", decisions, value_clip=value_clip, max_kl=max_kl, **own)
    learner, gamma, actions = here.learner, 0.9, here.actions
    twin, steps = Twin(learner, 0.3, 0.001), record(learner)
    decided = values_of(twin, here)
    metrics = learner.update()
    assert metrics["versions_behind"] == 0.5
    advantage: dict[Place, float] = {}
    for number, step, car in here.places():
        stream, value = here.streams[number], decided[number][1]
        errors = [error_of(stream, value, later, car, gamma) for later in behind(stream, step, car)]
        advantage[number, step, car] = sum(error * (gamma * 0.8) ** power for power, error in enumerate(errors))
    old = {place: decided[place[0]][1][place[1:]] for place in advantage}
    returns = {place: advantage[place] + float(old[place]) for place in advantage}
    scale = math.sqrt(np.mean([each**2 for each in returns.values()]))
    mean, deviation = np.mean([*advantage.values()]), np.std([*advantage.values()], ddof=1)
    standard = {place: (each - mean) / deviation for place, each in advantage.items()}
    parts, num_steps = steps_of(here, steps, here.places()), 0
    for places, epoch in parts:
        outputs, value = twin.outputs(twin.network, *here.seen(places))
        begun, wanted = torch.stack([decided[place[0]][0][place[1:]] for place in places]), of(returns, places)
        error = (value - wanted) ** 2
        if value_clip is not None:
            before, limit = of(old, places), value_clip * scale
            held = before + (value - before).clamp(-limit, limit)
            error = torch.maximum(error, (held - wanted) ** 2)
        loss = (
            -clipped(here, places, outputs, of(standard, places))
            + 0.7 * 0.5 * error / scale**2
            - 0.3 * entropy(actions, outputs)
            + 0.4 * divergence(actions, twin.first_outputs(*here.seen(places)), outputs)
        )
        twin.step(loss.mean(), twin.learning(with_encoder=epoch == 2))
        num_steps += 1
        if divergence(actions, begun, outputs.detach()).mean() > max_kl:
            break
    assert num_steps == len(parts) == metrics["gradient_steps"]
    assert_updated(learner, twin)


# IMPALA, Espeholt et al. 2018, arXiv:1802.01561 -----------------------------------------------------------------------

VTRACE = {"kind": "vtrace", "rho_bar": 1.1, "c_bar": 0.9}


@pytest.mark.parametrize(
    ("decisions", "correction"),
    [
        ("choices", VTRACE),
        ("chunks", VTRACE),
        ("numbers", VTRACE),
        ("choices", {"kind": "one_step", "rho_bar": 1.1}),
        ("choices", {"kind": "epsilon", "epsilon": 0.3}),
        ("choices", {"kind": "none"}),
    ],
)
def test_impala(decisions: str, correction: dict[str, Any]) -> None:
    """Section 4: equation 1, and the three terms of 4.2; the corrections of section 5.2.2."""
    here = scene("impala", decisions, correction=correction, value_weight=0.7)
    learner, actions, gamma, kind = here.learner, here.actions, 0.9, correction["kind"]
    twin, recorded = Twin(learner, 0.3, 0.001), record(learner)
    metrics = learner.update()
    assert metrics["versions_behind"] == 0.5
    parts = steps_of(here, recorded, here.places())
    assert [epoch for _, epoch in parts] == [0] * 3
    assert sum(len(places) for places, _ in parts) == len(here.places()), "once through all"
    for places, _ in parts:
        after = [(number, step + 1, car) for number, step, car in places]
        outputs, value = twin.outputs(twin.network, *here.seen(places))
        follows = dict(zip(places, twin.outputs(twin.network, *here.seen(after))[1].tolist(), strict=True))
        known, ratio = (
            dict(zip(places, column.tolist(), strict=True)) for column in (value, here.ratio(places, outputs))
        )
        rho, c = (dict.fromkeys(places, 1.0) for _ in range(2))
        if kind == "vtrace":
            rho = {place: min(1.1, each) for place, each in ratio.items()}
            c = {place: min(0.9, each) for place, each in ratio.items()}
        target: dict[Place, float] = {}
        surprise: dict[Place, float] = {}
        for place in places:
            number, step, car = place
            next_value = 0.0 if here.at("terminated", place) else follows[place]
            surprise[place] = here.streams[number].shaped(step, car, gamma) + gamma * next_value - known[place]
        for place in places:
            number, step, car = place
            target[place] = known[place]
            traced = [(number, later, car) for later in behind(here.streams[number], step, car)]
            for count, later in enumerate(traced):
                carried = gamma**count * math.prod(c[earlier] for earlier in traced[:count])
                target[place] += carried * rho[later] * surprise[later]
        scale = math.sqrt(np.mean([each**2 for each in target.values()]))
        advantage: dict[Place, float] = {}
        for place in places:
            number, step, car = place
            stream = here.streams[number]
            *_, last = behind(stream, step, car)
            beyond = follows[place] if last == step else target[number, step + 1, car]
            beyond = 0.0 if stream.terminated[step, car] else beyond
            advantage[place] = stream.shaped(step, car, gamma) + gamma * beyond - known[place]
            advantage[place] *= min(1.1, ratio[place]) if kind in {"vtrace", "one_step"} else 1.0
        followed = here.log_prob(places, outputs)
        followed = (followed.exp() + 0.3).log() if kind == "epsilon" else followed
        loss = (
            -of(advantage, places) / scale * followed
            + 0.7 * 0.5 * ((value - of(target, places)) / scale) ** 2
            - 0.3 * entropy(actions, outputs)
            + 0.4 * divergence(actions, twin.first_outputs(*here.seen(places)), outputs)
        )
        twin.step(loss.mean(), twin.learning())
    assert_updated(learner, twin)


def test_without_lag_and_correction_impala_is_a2c() -> None:
    """Mnih et al. 2016, arXiv:1602.01783, section 4.3, on all trajectories at once.

    d loss / d logit_b = (R - V) / s (pi_b - 1{b = a}) + beta pi_b (log pi_b + H), d loss / d V = c (V - R) / s^2, and
    the chain rule behind both.
    """
    preset = read_sections(Path("presets/a2c.yaml"))["impala"]
    assert preset["batch_size"] == preset["steps_per_update"]
    sizes = {"steps_per_update": 2 * T * CARS, "batch_size": 2 * T * CARS}
    own = {"gamma": 0.9, "value_weight": 0.7, "entropy_weight": 0.3, "max_grad_norm": 1e6}
    learner, actor = learner_and_actor(small_spec("impala", **preset | sizes | own))
    learner.load_network(disturbed(learner.network, 30.0).state_dict())
    network = copy.deepcopy(learner.network)
    actor.load_network(network.state_dict())
    blocks = [random_races(learner._spec, seed, num_cars=CARS, num_steps=T).drive(actor) for seed in range(2)]
    for number, block in enumerate(blocks):
        assert learner.update() is None, "it waits for all collectors"
        learner.insert(block, number, 0)
    assert learner.num_env_steps == learner.num_allowed_env_steps(), "and they wait for it"
    metrics = learner.update()
    assert (metrics["gradient_steps"], metrics["versions_behind"]) == (1, 0)

    here = Scene(learner, [stream_of([block]) for block in blocks], learner._spec.actions)
    places = here.places()
    with torch.no_grad():
        after = [
            network(torch.from_numpy(block.image).flatten(0, 1), torch.from_numpy(block.floats).flatten(0, 1))[
                1
            ].unflatten(0, (T + 1, CARS))
            for block in blocks
        ]
        image, floats = here.seen(places)
        before = network.trunk[:2](network.join(network.encode(image), floats))
        hidden = network.trunk[2:](before)
        outputs, value = network.read_out(hidden)
    returns = []
    for number, step, car in places:
        stream, passed = here.streams[number], [*behind(here.streams[number], step, car)]
        found = sum(0.9**count * stream.shaped(later, car, 0.9) for count, later in enumerate(passed))
        last = passed[-1]
        beyond = 0.0 if stream.terminated[last, car] else float(after[number][last + 1, car])
        returns.append(found + 0.9 ** len(passed) * beyond)
    wanted, pi = torch.tensor(returns), outputs.softmax(dim=1)
    scale = wanted.square().mean().sqrt()
    taken = one_hot(here.column("action", places)[:, 0].long(), 3)
    spread = -(pi * pi.log()).sum(dim=1, keepdim=True)
    by_logit = ((wanted - value) / scale)[:, None] * (pi - taken) + 0.3 * pi * (pi.log() + spread)
    by_value = (0.7 * (value - wanted) / scale**2)[:, None]
    by_hidden = (by_logit @ network.policy_head.weight + by_value @ network.value_head.weight) * (hidden > 0)
    rows = ((learner.network.policy_head, by_logit, hidden), (learner.network.value_head, by_value, hidden))
    for layer, gradient, entered in (*rows, (learner.network.trunk[2], by_hidden, before)):
        torch.testing.assert_close(layer.weight.grad, gradient.T @ entered / len(places), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(layer.bias.grad, gradient.mean(dim=0), rtol=1e-4, atol=1e-6)


# GRPO, Shao et al. 2024, arXiv:2402.03300 -----------------------------------------------------------------------------


def races_of(here: Scene) -> dict[float, list[list[Place]]]:
    """Returns the decisions of all races that are over, by the state that those of a group began in."""
    groups: dict[float, list[list[Place]]] = {}
    for number, stream in enumerate(here.streams):
        for car in range(CARS):
            race: list[Place] = []
            for step in range(2 * T):
                if not stream.is_reset[step, car]:
                    race.append((number, step, car))
                if stream.has_ended(step, car):
                    groups.setdefault(float(here.at("floats", race[0])[1]), []).append(race)
                    race = []
    return groups


def worth(here: Scene, race: list[Place], gamma: float, cut_worth: float) -> float:
    """What a race was paid, without shaping."""
    total = sum(gamma**count * float(here.at("reward", place)) for count, place in enumerate(race))
    return total + (gamma ** len(race) * cut_worth if here.at("truncated", race[-1]) else 0.0)


@pytest.mark.parametrize(
    ("decisions", "max_kl"), [("choices", 10.0), ("choices", 0.01), ("chunks", 10.0), ("numbers", 10.0)]
)
def test_grpo(decisions: str, max_kl: float) -> None:
    """Equation 3 with the outcome's advantages, section 4.1.2; the divergence from the reference is exact."""
    own = {"clip": 0.1, "cut_worth": -0.7, "epochs": 3, "encoder_epochs": 1, "max_kl": max_kl}
    here = scene("grpo", decisions, 4, group_size=4, steps_per_update=24, batch_size=24, **own)
    learner, actions = here.learner, here.actions
    twin, recorded = Twin(learner, 0.3, 0.001), record(learner)
    decided = values_of(twin, here)
    metrics = learner.update()
    groups = [races for races in races_of(here).values() if len(races) == 4]
    races = [race for group in groups for race in group]
    mean_length = np.mean([len(race) for race in races])
    advantage: dict[Place, float] = {}
    weight: dict[Place, float] = {}
    for group in groups:
        paid = [worth(here, race, 0.9, -0.7) for race in group]
        for race, each in zip(group, paid, strict=True):
            advantage |= dict.fromkeys(race, (each - np.mean(paid)) / np.std(paid, ddof=1))
            weight |= dict.fromkeys(race, mean_length / len(race))
    parts, num_steps = steps_of(here, recorded, [*advantage]), 0
    for places, epoch in parts:
        outputs, first = twin.outputs(twin.network, *here.seen(places))[0], twin.first_outputs(*here.seen(places))
        begun = torch.stack([decided[place[0]][0][place[1:]] for place in places])
        gain = clipped(here, places, outputs, of(advantage, places))
        bonus = 0.3 * entropy(actions, outputs) - 0.4 * divergence(actions, outputs, first)
        twin.step(-(of(weight, places) * (gain + bonus)).mean(), twin.learning(with_encoder=epoch == 2))
        num_steps += 1
        if divergence(actions, begun, outputs.detach()).mean() > max_kl:
            break
    assert num_steps == len(parts) == metrics["gradient_steps"]
    assert len({len(race) for race in races}) > 1
    assert_updated(learner, twin)


# DPO, Rafailov et al. 2023, arXiv:2305.18290 --------------------------------------------------------------------------

ONLINE = {"kind": "online", "group_size": 2, "gamma": 0.9, "cut_worth": -0.7, "min_gap": 0.5}
GIVEN = {"kind": "file", "path": "pairs.jsonl", "pairs_per_update": 4}


@pytest.mark.parametrize(
    ("decisions", "pairs"),
    [("choices", ONLINE), ("chunks", ONLINE), ("numbers", ONLINE), ("choices", GIVEN), ("chunks", GIVEN)],
)
def test_dpo(decisions: str, pairs: dict[str, Any]) -> None:
    """Equation 7, with log-probabilities of whole races; the reference is the policy that learning began with."""
    own = {"pairs": pairs, "beta": 0.3, "pairs_per_step": 2, "epochs": 3, "encoder_epochs": 1}
    here = scene("dpo", decisions, pairs.get("group_size", 1), steps_per_update=16, batch_size=3, **own)
    learner = here.learner
    groups = [group for group in races_of(here).values() if len(group) == 2]
    wanted = []
    for group in groups:
        paid = [worth(here, race, 0.9, -0.7) for race in group]
        if abs(paid[0] - paid[1]) > 0.5:
            wanted.append((group[int(np.argmax(paid))], group[int(np.argmin(paid))]))
    if pairs is GIVEN:  # any two races that began differently
        single = [race for group in races_of(here).values() for race in group][:12]
        wanted = [*zip(single[::2], single[1::2], strict=True)]
        stretches = [race for pair in wanted for race in pair]
        places = [place for race in stretches for place in race]
        action = np.stack([np.atleast_1d(here.at("action", place)) for place in places]).astype(np.int64)
        columns = [column.numpy() for column in here.seen(places)]
        lengths = np.array([len(race) for race in stretches])
        learner.insert_pairs(PreferencePairs(*columns, action, lengths, np.arange(len(stretches)).reshape(-1, 2)))
    else:
        assert 2 < len(wanted) < len(groups)
    assert any(len(better) != len(worse) for better, worse in wanted)
    twin, recorded = Twin(learner, 0.3, 0.001), record(learner)
    metrics = learner.update()
    assert metrics["num_pairs"] == (4 if pairs is GIVEN else len(wanted))
    used = 0
    for states in recorded:
        terms = []
        for better, worse in wanted:
            if float(here.at("floats", better[0])[1]) not in states:
                continue
            margin = torch.zeros((), dtype=torch.float64)
            for sign, race in ((1.0, better), (-1.0, worse)):
                outputs = twin.outputs(twin.network, *here.seen(race))[0]
                ratio = here.log_prob(race, outputs) - here.log_prob(race, twin.first_outputs(*here.seen(race)))
                margin = margin + sign * 0.3 * ratio.sum()
            terms.append(-(1 / (1 + (-margin).exp())).log())
        assert 1 <= len(terms) <= 3
        twin.step(torch.stack(terms).mean(), twin.learning(with_encoder=used >= 2 * metrics["num_pairs"]))
        used += len(terms)
    assert used == 3 * metrics["num_pairs"]
    assert_updated(learner, twin)
