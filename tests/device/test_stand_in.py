"""The stand-in refuses what a GPU refuses; else a test that passes on it would say nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

HERE = torch.ones(3)

REFUSED: dict[str, Callable[[Tensor], object]] = {
    "adding": lambda there: there + HERE,
    "adding the other way": lambda there: HERE * there,
    "joining": lambda there: torch.cat([there, HERE]),
    "choosing": lambda there: torch.where(there > 0, there, HERE),
    "in place": lambda there: there.add_(HERE),
    "a layer of elsewhere": lambda there: torch.nn.Linear(3, 2)(there),
    "index from afar": lambda there: HERE.index_select(0, there.long()),
    "generator of elsewhere": lambda there: torch.rand(3, device=there.device, generator=torch.Generator()),
    "permutation of elsewhere": lambda there: torch.randperm(3, device=there.device, generator=torch.Generator()),
    "array": lambda there: there.numpy(),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_implicit_transfer_is_refused(device: torch.device, case: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED[case](torch.ones(3, device=device))


def test_what_crosses_over_on_purpose_arrives(device: torch.device) -> None:
    there = torch.arange(3.0).to(device, non_blocking=True)
    assert there.device.type == device.type
    assert (there + torch.ones(3, device=device)).cpu().tolist() == [1.0, 2.0, 3.0]
    assert float(there.sum()) == 3.0
    there[1:].copy_(torch.zeros(2))
    assert there.cpu().numpy().tolist() == [0.0, 0.0, 0.0]


def test_autocast_computes_there_in_bfloat16(device: torch.device) -> None:
    with torch.autocast(device.type, torch.bfloat16):
        assert torch.nn.Linear(3, 1).to(device)(torch.ones(4, 3, device=device)).dtype == torch.bfloat16
