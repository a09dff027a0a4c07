"""The pull of weights back to those that training began with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import ALGORITHMS, make_actor, make_learner
from rulka.agents.initial_pull import InitialPull
from rulka.params import Algorithm, ByPartParams
from rulka.schedule import Moment

NONE = dict.fromkeys(ByPartParams.model_fields, 0.0)


def test_it_goes_a_share_of_the_way_back() -> None:
    """By hand: rate 0.1 times pull 2 is a fifth of the way from 5 to 1, and from 3 to 3."""
    near, far = torch.nn.Parameter(torch.tensor([1.0, 3.0])), torch.nn.Parameter(torch.tensor([1.0]))
    groups = [{"part": "encoder", "params": [near]}, {"part": "heads", "params": [far]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    pull = InitialPull(groups, ByPartParams.model_validate(NONE | {"encoder": 2.0}))
    with torch.no_grad():
        near[0], far[0] = 5.0, 5.0
    pull.apply(optimizer, Moment(0))
    torch.testing.assert_close(near.detach(), torch.tensor([4.2, 3.0]))
    assert far.item() == 5.0, "no pull"
    pull.begin()
    pull.apply(optimizer, Moment(0))
    torch.testing.assert_close(near.detach(), torch.tensor([4.2, 3.0]))


def test_it_never_goes_beyond() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    groups = [{"part": "trunk", "params": [weight]}]
    pull = InitialPull(groups, ByPartParams.model_validate(NONE | {"trunk": 1e6}))
    with torch.no_grad():
        weight[0] = 7.0
    pull.apply(torch.optim.SGD(groups, lr=0.1), Moment(0))
    assert weight.item() == 1.0


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "iqn", "pql"])
def test_a_part_that_is_held_stays_and_the_others_learn(lab, races, algorithm: Algorithm) -> None:
    """And the same weights come back after a checkpoint, though the new process begins at others."""
    spec = lab.spec(algorithm, pull_of=NONE | {"encoder": 1e6})
    learner, actor, rng = make_learner(spec, 0), make_actor(spec, 1), np.random.default_rng(0)
    initial = {name: tensor.clone() for name, tensor in make_learner(spec, 3).network.state_dict().items()}
    learner.load_network(initial)

    def learn(pupil) -> dict[str, torch.Tensor]:
        version = pupil.version
        while pupil.version == version:
            block = races.drive(actor)
            block.image[...] = rng.integers(0, 256, block.image.shape)
            pupil.insert(block, 0, pupil.version)
            pupil.update()
        return pupil.network.state_dict()

    resumed = make_learner(spec, 5)
    resumed.load_state_dict(learner.state_dict())
    resumed.forget_experience()
    for pupil in (learner, resumed):
        learned = learn(pupil)
        beginnings = ALGORITHMS[algorithm].parts["encoder"]
        for name, tensor in learned.items():
            if name.startswith(beginnings):
                assert torch.equal(tensor, initial[name]), name
        assert not torch.equal(learned["float_head.0.weight"], initial["float_head.0.weight"])
