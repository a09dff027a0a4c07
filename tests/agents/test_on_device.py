"""Agents on another device: they learn and act as on the CPU, and what they save goes on anywhere.

On the stand-in the sums are those of the CPU, and the numbers are equal; a GPU draws and rounds in its own way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.params import ALGORITHMS
from rulka.buffers.ring import BlockRing
from rulka.machine.device import CPU, Generators, make_generator
from tests.agents.conftest import MUNCHAUSEN, PRIORITISED, Races, Step, small_spec
from tests.buffers.conftest import check_links

FEW_STEPS = {"gradient_steps_per_update": 2}
"""The stand-in takes many times as long as the CPU for a step of IQN, and a fault shows in the first."""
LESS_WORK: dict[str, dict[str, Any]] = {
    "grpo": {"epochs": 2},
    "dpo": {"epochs": 2},
    "iqn": FEW_STEPS,
    "pql": {"critic_updates_per_version": 4},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, LESS_WORK.get(name, {})) for name in ALGORITHMS},
    "ppo, value solved first": ("ppo", {"value_warmup_steps": 256}),
    "iqn, prioritised and held out": ("iqn", {"prioritised": PRIORITISED, "held_out_share": 0.3} | FEW_STEPS),
}


def twin(spec: Any, seed: int) -> Any:
    """The same learner on the CPU, drawing numbers for the device from a generator of their own as others do."""
    learner = make_learner(spec, seed)
    learner._generators.device = make_generator(CPU, seed)
    return learner


@pytest.fixture
def blocks() -> list[Any]:
    """Races of five decisions, four from each start, so that those who learn from whole ones have some."""

    def probe(state: int, action: int) -> Any:
        return Step(1.0 if action == state % 4 else 0.0, state + 1, "terminated" if state == 4 else "")

    races = Races(probe, num_cars=8)
    races.deal(4)
    actor = make_actor(small_spec("ppo"), 5)
    return [races.drive(actor) for _ in range(6)]


def learned(learner: Any, blocks: list[Any]) -> list[dict[str, float]]:
    found = []
    for block in blocks:
        learner.insert(block, 0, learner.version)
        while (values := learner.update()) is not None and len(found) < 4:
            found.append(values)
    assert found
    return found


@pytest.mark.parametrize("case", CASES)
def test_learning_there_is_learning_here(blocks, device: torch.device, case: str) -> None:
    algorithm, changes = CASES[case]
    spec = small_spec(algorithm, **changes)
    here, there = twin(spec, 3), make_learner(spec, 3, device)
    expected, found = learned(here, blocks), learned(there, blocks)
    assert {p.device.type for p in there.network.parameters()} == {device.type}
    assert there.inspect().keys() == here.inspect().keys()
    if device.type == "cuda":
        assert all(np.isfinite(value) for values in found for value in values.values())
        return
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=2e-3, abs=1e-4)
    for name, tensor in here.network.state_dict().items():
        torch.testing.assert_close(there.network.state_dict()[name].cpu(), tensor, rtol=1e-3, atol=1e-4)


def test_random_numbers_go_on_where_they_were_and_begin_anew_elsewhere(device: torch.device) -> None:
    one, same, here = Generators(device, 1), Generators(device, 2), Generators(CPU, 3)
    torch.rand(3, generator=one.device, device=device)
    same.load_state_dict(one.state_dict())
    draws = [torch.rand(4, generator=each.device, device=device).cpu() for each in (one, same)]
    assert torch.equal(*draws)
    here.load_state_dict(one.state_dict())
    assert torch.equal(torch.rand(4, generator=here.host), torch.rand(4, generator=one.host))
    one.load_state_dict(here.state_dict())  # which has no state for that device
    assert one.device is not one.host


@pytest.mark.parametrize("shown", [False, True], ids=["own", "own and shown"])
def test_a_ring_on_the_device_gives_the_batches_of_one_in_main_memory(
    blocks, standin: torch.device, caplog: pytest.LogCaptureFixture, shown: bool
) -> None:
    """On the device, and in main memory where it does not fit; both with demonstrations that fit."""
    import stand_in

    spec = small_spec("iqn", batch_size=32, prioritised=PRIORITISED, demonstration_share=0.25 if shown else 0.0)
    batches = []
    for place, free_bytes in ((CPU, 0), (standin, stand_in.FREE_BYTES), (standin, 1 << 20)):
        stand_in.backend.free_bytes = stand_in.FREE_BYTES
        learner = make_learner(spec, 3, place)
        if shown:
            learner.insert_demonstrations(blocks[:1])
        stand_in.backend.free_bytes = free_bytes
        for block in blocks:
            learner.insert(block, 0, 0)
        ring: BlockRing = learner.replay.ring
        check_links(ring)
        assert (ring.observations["floats"].device != CPU) == (free_bytes == stand_in.FREE_BYTES)
        batch = learner.sample()
        batches.append([column.cpu().clone() for column in batch])
    for other in batches[1:]:
        assert all(torch.equal(one, two) for one, two in zip(batches[0], other, strict=True))
    assert "experience lies on standin:0: 0.0 GB of 1.1 GB that were free" in caplog.text
    assert "experience lies in main memory: its 0.0 GB are more than 50% of the 0.0 GB that are free" in caplog.text


SHOWN = {"demonstration_share": 0.25, "demonstration_margin": {"margin": 0.1, "weight": 1.0}}
LOOKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "iqn": ("iqn", FEW_STEPS, 0),
    "iqn, demonstrations with a margin": ("iqn", FEW_STEPS | SHOWN, 0),
    "iqn, munchausen": ("iqn", FEW_STEPS | {"munchausen": MUNCHAUSEN, "use_double_dqn": False}, 0),
    "iqn, prioritised": ("iqn", FEW_STEPS | {"prioritised": PRIORITISED}, 2 * 2),  # errors, and time left, of two steps
    "ppo": ("ppo", {"epochs": 3}, 3),  # whether to go on, after each epoch
}


@pytest.mark.parametrize("case", LOOKS)
def test_an_update_reads_all_metrics_at_once_and_else_next_to_nothing(blocks, standin: torch.device, case: str) -> None:
    """Whoever adds a read, or a shape that depends on values, has to look here: a GPU has to be waited for."""
    import stand_in

    algorithm, changes, num_looks = LOOKS[case]
    learner = make_learner(small_spec(algorithm, **changes), 3, standin)
    if algorithm == "iqn":
        learner.insert_demonstrations(blocks[:1])
    for _ in range(2):
        while not learner.is_ready():
            learner.insert(blocks[0], 0, learner.version)
        stand_in.crossings.clear()
        learner.update()
    # Metrics of the update, and those of its steps.
    assert stand_in.crossings["down"] + stand_in.crossings["numbers"] == 2 + num_looks
    assert stand_in.crossings["shapes"] == 0
    if algorithm == "ppo":
        assert stand_in.crossings["up"] == 0


@pytest.mark.parametrize(("algorithm", "max_kl"), [("ppo", 1e-4), ("grpo", 1e-4)])
def test_the_device_skips_the_steps_after_the_last_one(
    blocks, standin: torch.device, algorithm: str, max_kl: float
) -> None:
    """The host looks once an epoch; weights, metrics and numbers of samples are those of a look after each step."""
    spec = small_spec(algorithm, epochs=4, encoder_epochs=1, batch_size=16, max_kl=max_kl)
    here, there = twin(spec, 3), make_learner(spec, 3, standin)
    (expected, *_), (found, *_) = learned(here, blocks), learned(there, blocks)
    steps_an_epoch = expected["num_decisions"] // 16
    assert 1.0 < expected["gradient_steps"] < 4 * steps_an_epoch
    assert expected["gradient_steps"] % steps_an_epoch, "it ends within an epoch"
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-4)
