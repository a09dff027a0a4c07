"""The closer look at a network in training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from models.encoders.config import ConvConfig
from models.iqn import IqnNetwork, IqnSizes, fixed_fractions
from models.torso import InputShape
from rulka.agents.iqn.extras import inspect_values
from rulka.agents.shared.diagnostics import inspect_training
from rulka.buffers.priorities import inspect_priorities

CONV = ConvConfig(kind="conv", adaptive_pool=0)


def test_norms_of_one_step_worked_by_hand() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
    optimizer = torch.optim.RAdam(layer.parameters(), lr=0.0, eps=1.0)
    layer(torch.tensor([[6.0, -8.0]])).sum().backward()
    optimizer.step()
    found = inspect_training(layer, optimizer)
    assert found["Network/weights/weight/L2"] == 5.0
    assert found["Gradients/by_layer/weight/L2"] == 10.0
    assert found["Gradients/by_layer/weight/Linf"] == 8.0
    assert found["Network/optimizer/weight/exp_avg_L2"] == pytest.approx(0.1 * 10.0)
    assert found["Network/optimizer/weight/exp_avg_sq_L2"] == pytest.approx(0.001 * np.hypot(36.0, 64.0))
    assert found["Network/optimizer/weight/adaptive_lr_L2"] == 0.0


def test_lead_of_a_block_over_the_second_best_block() -> None:
    """Places (1, 5, 3) and (9, 9.5, 2): the best block leads the next best, which differs in the second place, by 0.5.

    Over all outputs at once, the two best would be 9.5 and 9 of one place, also where the other place decides.
    """
    network = IqnNetwork(
        InputShape(34, 34, torch.zeros(3), torch.ones(3)), CONV, IqnSizes(8, 16, 4, actions_per_decision=2), 6
    )
    image, floats = torch.zeros(5, 1, 34, 34, dtype=torch.uint8), torch.zeros(5, 3)
    for second, lead in (([9.0, 9.5, 2.0], 0.5), ([90.0, 95.0, 2.0], 2.0)):
        with torch.no_grad():
            for layer in network.output_layers():
                layer.weight.zero_()
                layer.bias.zero_()
            network.output_layers()[0].bias.copy_(torch.tensor([1.0, 5.0, 3.0, *second]))
        found = inspect_values(network, image, floats, fixed_fractions(4))
        assert found["RL/action_gap"] == pytest.approx(lead)
    names = {f"IQN/quantile_std_action_{place}_{action}" for place in range(2) for action in range(3)}
    assert names < set(found)


def test_quantiles_of_the_priorities_that_there_are() -> None:
    found = inspect_priorities(np.array([0.0, 1.0, 2.0, 6.0, 0.0]))
    assert found["Buffer/priorities_min"] == 1.0
    assert found["Buffer/priorities_median"] == 2.0
    assert found["Buffer/priorities_mean"] == 3.0
    assert found["Buffer/priorities_max"] == 6.0
    assert inspect_priorities(np.zeros(4)) == inspect_priorities(np.zeros(0)) == {}
