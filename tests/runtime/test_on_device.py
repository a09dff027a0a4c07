"""A run on another device: greedy checks and central inference there, collectors here, checkpoints anywhere."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
from real_run import run_spec, small_params

from rulka.agents.algorithms import make_actor
from rulka.agents.params import ALGORITHMS
from rulka.machine.device import CPU
from rulka.runtime.central import Inference, InferenceClient
from rulka.runtime.connect import train_run
from rulka.runtime.messages import Stop
from rulka.runtime.shared import SharedBlocks, SharedWeights, layout_of
from rulka.runtime.specs import RunSpec
from tests.waiting import PATIENCE_S


def small_run(folder: Path, track: Path, algorithm: str, device: torch.device, max_env_steps: int = 240) -> RunSpec:
    params = small_params(algorithm, {}, max_env_steps=max_env_steps, num_checks=2, checkpoint_s=60.0)
    return replace(run_spec(params, track, folder), device=device)


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=[] if name == "ppo" else pytest.mark.slow) for name in sorted(ALGORITHMS)],
)
def test_a_run_begun_there_goes_on_here_and_back(
    tmp_path: Path, track: Path, device: torch.device, algorithm: str
) -> None:
    for place, until in ((device, 240), (CPU, 480), (device, 720)):
        outcome = train_run(small_run(tmp_path, track, algorithm, place, until))
        assert outcome.state.env_steps == until
        assert {tensor.device for tensor in outcome.best.tensors.values()} == {CPU}


@pytest.mark.parametrize("algorithm", [pytest.param("ppo", marks=pytest.mark.slow), "iqn"])
def test_central_inference_decides_there(tmp_path: Path, track: Path, device: torch.device, algorithm: str) -> None:
    spec = small_run(tmp_path, track, algorithm, device)
    slot, weights = replace(spec.block, num_steps=1), spec.make_learner().network.state_dict()
    weights = {name: tensor.cpu() for name, tensor in weights.items()}
    slots = [SharedBlocks(slot, 1) for _ in range(2)]
    shared = SharedWeights(layout_of(weights))
    shared.publish(4, weights)
    pipes, (ours, theirs) = [Pipe() for _ in slots], Pipe()
    ends = tuple(end for _, end in pipes)
    inference = Inference(partial(spec.make_actor, 5, device), device, slots, shared, ends, theirs)
    thread = threading.Thread(target=inference.run)
    thread.start()
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 256, (3, 1, slot.height, slot.width), np.uint8))
    floats = torch.from_numpy(rng.normal(size=(3, slot.num_floats)).astype(np.float32))
    asking = [InferenceClient(each, pipe[0], 0, lambda: None) for each, pipe in zip(slots, pipes, strict=True)]
    for remote in asking:
        decision = remote.act(image, floats)
        assert decision.for_environment.shape == (3,)
        assert remote.version == 4
    ours.send(Stop())
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    there, here = inference._actor, make_actor(spec.make_actor.args[0], 5)
    here.load_network(weights)
    one, other = (actor.act(image, floats, explore=False) for actor in (here, there))
    np.testing.assert_array_equal(one.action, other.action)
