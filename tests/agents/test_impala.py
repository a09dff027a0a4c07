"""IMPALA: what it learns from, in which order and how old; and each correction."""

from __future__ import annotations

import math

import pytest
import torch

from rulka.agents.advantages import Endings
from rulka.agents.impala import corrected, log_prob_in_loss
from rulka.agents.params import EpsilonParams, NoCorrectionParams, OneStepParams, VtraceParams
from tests.agents.conftest import learner_and_actor

NONE = NoCorrectionParams(kind="none")
EPSILON = EpsilonParams(kind="epsilon", epsilon=0.01)
ONE_STEP = OneStepParams(kind="one_step", rho_bar=1.5)
VTRACE = VtraceParams(kind="vtrace", rho_bar=1.5, c_bar=1.0)
CORRECTIONS = pytest.mark.parametrize("correction", [NONE, EPSILON, ONE_STEP, VTRACE], ids=lambda each: each.kind)


def test_corrections_by_hand():
    """gamma 0.5, weights pi/mu 3 and 0.5, values 1, 2, then 4, rewards 1 and 3: surprises 1 and 3.

    Uncorrected, v_1 = 2 + 3 and v_0 = 1 + 1 + 0.5 * 3; advantages 2.5 and 3. One step multiplies these by 1.5 and 0.5.
    V-trace: v_1 = 2 + 0.5 * 3, v_0 = 1 + 1.5 * 1 + 0.5 * 1 * 1.5; advantages 1.5 * (1 + 0.5 * 3.5 - 1) and 0.5 * 3.
    """
    none = torch.zeros(2, 1, dtype=torch.bool)
    given = (torch.tensor([[3.0], [0.5]]).log(), torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [2.0], [4.0]]))
    found = {
        each.kind: [column[:, 0].tolist() for column in corrected(each, *given, Endings(none, none, none), 0.5)]
        for each in (NONE, EPSILON, ONE_STEP, VTRACE)
    }
    assert found["none"] == found["epsilon"] == [[3.5, 5.0], [2.5, 3.0]]
    assert found["one_step"] == [[3.5, 5.0], pytest.approx([3.75, 1.5])]
    assert found["vtrace"] == [pytest.approx([3.25, 3.5]), pytest.approx([2.625, 1.5])]


@CORRECTIONS
def test_epsilon_alone_bounds_the_gradient_of_unlikely_actions(correction):
    """d log(p + 0.01) / d log p = p / (p + 0.01): 1/2 at 0.01, next to nothing at 1e-6; 1 for all others."""
    log_prob = torch.tensor([math.log(0.01), math.log(1e-6)], requires_grad=True)
    loss = log_prob_in_loss(correction, log_prob)
    loss.sum().backward()
    is_floored = correction is EPSILON
    assert loss.tolist() == pytest.approx([math.log(0.02), math.log(0.010001)] if is_floored else log_prob.tolist())
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == pytest.approx([0.5, 1e-4] if is_floored else [1.0, 1.0], rel=1e-3)


def test_the_first_step_by_hand(lab, step):
    """One decision of a race each, paid 1, value 0 at first: the gradient of the paper's three terms.

    The advantage is 1 for every action, so the gradient at the output layer is that of -mean log pi(a), and for the
    value (0 - 1) times its weight, in units of the root mean square target, which is 1.
    """
    races = lab.races(lambda _state, _action: step(1.0, 0, "terminated"))
    spec = lab.spec("impala", batch_size=256, entropy_weight=lab.constant(0.1), max_grad_norm=lab.constant(1e9))
    learner, actor = learner_and_actor(spec)
    with torch.no_grad():
        for tensor in (learner.network.value_head.weight, learner.network.value_head.bias):
            tensor.zero_()
        learner.network.policy_head.weight.zero_()
        learner.network.policy_head.bias.copy_(torch.tensor([0.2, 0.5, 0.3]).log())
    actor.load_network(learner.network.state_dict())
    block = races.drive(actor)
    learner.insert(block, 0, 0)
    metrics = learner.update()
    is_kept = ~block.is_reset
    share = torch.bincount(torch.from_numpy(block.action[is_kept].astype("int64")), minlength=3) / is_kept.sum()
    policy = torch.tensor([0.2, 0.5, 0.3])
    entropy = -(policy * policy.log()).sum()
    expected = (policy - share) + 0.1 * policy * (policy.log() + entropy)
    torch.testing.assert_close(learner.network.policy_head.bias.grad, expected, rtol=1e-4, atol=1e-6)
    assert learner.network.value_head.bias.grad.item() == pytest.approx(-0.5)
    assert metrics["policy_loss"] == pytest.approx(-float((share * policy.log()).sum()), rel=1e-5)
    assert (metrics["value_loss"], metrics["entropy"]) == (pytest.approx(0.5), pytest.approx(float(entropy)))
    assert (metrics["overlap"], metrics["approx_kl"]) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-6))
    assert metrics["num_decisions"] == metrics["num_samples"] == is_kept.sum()


def test_an_update_goes_once_through_all_rows_in_whole_rows(lab, races, monkeypatch):
    """256 decisions of 16 cars in batches of about 64: four steps of four cars each."""
    learner, actor = learner_and_actor(lab.spec("impala"))
    block = races.drive(actor)
    block.floats[:, :, 2] = range(16)  # every car has its number
    learner.insert(block, 0, 0)
    seen = []
    forward = learner.network.forward

    def watched(image, floats):
        seen.append(floats[:, 2].view(17, -1))
        return forward(image, floats)

    monkeypatch.setattr(learner.network, "forward", watched)
    assert learner.update()["gradient_steps"] == 4
    assert all((rows == rows[0]).all() for rows in seen), "observations of a car, first to last"
    assert sorted(torch.cat([rows[0] for rows in seen]).tolist()) == list(range(16))
    assert learner.update() is None, "experience is used once"


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_forced_lag_is_exact_after_as_many_updates(lab, races, lag):
    """Blocks of 256 decisions, one for each update: version v learns from what version v - lag did."""
    learner, actor = learner_and_actor(lab.spec("impala", forced_lag=lag))
    behind = []
    while learner.version < lag + 4:
        assert learner.num_env_steps < learner.num_allowed_env_steps(), "it asks for no more than it learns from"
        learner.insert(races.drive(actor), 0, learner.version)
        metrics = learner.update()
        if metrics is not None:
            behind.append(metrics["versions_behind"])
            assert learner.num_env_steps == (learner.version + lag) * 256
    assert behind == [min(version, lag) for version in range(lag + 4)]
