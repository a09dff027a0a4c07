"""The fast update against the one that is written plainly: same losses, same gradients, in both precisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rulka.agents.algorithms import make_learner
from rulka.agents.iqn import Sample
from rulka.agents.learner import MetricMeans
from rulka.buffers.replay import Batch
from tests.agents.naive_iqn import NaiveIqn

BATCH, SIZE, FLOATS, ACTIONS = 64, 34, 4, 3  # large enough for the fused layers


def random_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, BATCH, 1, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    floats = torch.randn(2, BATCH, FLOATS, generator=generator)
    return Batch(
        image=images[0],
        floats=floats[0],
        action=torch.randint(ACTIONS, (BATCH,), generator=generator),
        n_step_return=torch.randn(BATCH, generator=generator),
        bootstrap_discount=torch.rand(BATCH, generator=generator),
        next_image=images[1],
        next_floats=floats[1],
        weight=torch.rand(BATCH, generator=generator),
        next_guide=torch.zeros(BATCH, 0),
    )


def step_both(lab, precision: str):
    """Returns a learner and its twin after one step on the same batch, and their mean losses."""
    learner = make_learner(replace(lab.spec("iqn", batch_size=BATCH, target_tau=0.3), precision=precision), seed=0)
    with torch.no_grad():
        for parameter in learner.network.parameters():  # biases start at 0, which would hide mistakes
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    learner.target.load_state_dict(learner.network.state_dict())
    twin = NaiveIqn(learner.network, learner._params, learning_rate=0.0)
    state = learner._generators.host.get_state()
    tau, target_tau = learner._draw_fractions(), learner._draw_fractions()
    learner._generators.host.set_state(state)
    means = MetricMeans()
    batch = random_batch()
    learner._gradient_step(Sample(batch, torch.arange(BATCH), torch.zeros(BATCH)), means)
    loss = twin.learn(random_batch(), tau, target_tau, learner._tau_choosing.expand(BATCH, -1))
    return learner, twin, means.result()["loss"], float(loss.mean())


def test_float32_steps_are_those_of_the_twin(lab):
    learner, twin, loss, expected = step_both(lab, "float32")
    assert loss == pytest.approx(expected, rel=1e-5)
    assert learner._self_loss == pytest.approx(twin.self_loss, rel=1e-5)
    pairs = zip(learner.network.named_parameters(), twin.network.parameters(), strict=True)
    for (name, fast), naive in pairs:
        scale = float(naive.grad.abs().max())
        torch.testing.assert_close(fast.grad, naive.grad, rtol=1e-4, atol=1e-5 * scale, msg=name)


def test_without_double_dqn_each_quantile_has_its_own_best_action(lab):
    """r + gamma' max Z(s', a) at each fraction."""
    learner, batch = make_learner(lab.spec("iqn", batch_size=BATCH, use_double_dqn=False), seed=0), random_batch()
    targets, tau = learner._targets(batch)
    with torch.no_grad():
        best = learner.target(batch.next_image, batch.next_floats, tau).value.amax(dim=2)
    torch.testing.assert_close(targets, batch.n_step_return[:, None] + batch.bootstrap_discount[:, None] * best)
