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
from real_run import run_spec

from rulka.agents.algorithms import ALGORITHMS, make_actor
from rulka.device import CPU
from rulka.params import read_params
from rulka.runtime.central import Inference, InferenceClient
from rulka.runtime.connect import train_run
from rulka.runtime.messages import Stop
from rulka.runtime.shared import SharedBlocks, SharedWeights, layout_of
from rulka.runtime.specs import RunSpec
from rulka.tracks.generate import generate_track
from tests.waiting import PATIENCE_S


def small_run(tmp_path: Path, algorithm: str, device: torch.device, max_env_steps: int = 96) -> RunSpec:
    params = read_params()
    track = tmp_path / "track.npz"
    generate_track(**params.track.model_dump() | {"length_m": 150.0}).save(track)
    train = {
        "algorithm": algorithm,
        "num_collectors": 0,
        "cars_per_collector": 3,
        "block_steps": 8,
        "max_env_steps": max_env_steps,
        "max_minutes": None,
        "num_checks": 2,
        "check_races": 2,
        "check_candidates": 2,
        "final_check_races": 2,
    }
    body = params.network.iqn.model_copy(update={"tau_embedding": 8})
    network = {"float_hidden": 16, "dense_hidden": 32, "iqn": body}
    ppo = {"steps_per_update": 24, "batch_size": 24, "epochs": 1, "value_warmup_steps": 0}
    iqn = {"start_steps": 24, "buffer_steps": 96, "batch_size": 8, "warmup_steps": 0, "demonstration_share": 0.0}
    iqn |= {"gradient_steps_per_update": 1, "samples_per_insert": 1.0}  # the stand-in is slow
    pql = {"start_steps": 24, "buffer_steps": 96, "batch_size": 8, "critic_warmup_updates": 1, "max_steps_ahead": 0}
    pql |= {"steps_per_critic_update": 24, "critic_updates_per_version": 1}
    groups = {"steps_per_update": 24, "batch_size": 24}
    pairs = params.dpo.pairs.model_copy(update={"group_size": 3})
    params = params.model_copy(
        update={
            "train": params.train.model_copy(update=train),
            "network": params.network.model_copy(update=network),
            "race_end": params.race_end.model_copy(update={"max_race_s": 1.0}),
            "ppo": params.ppo.model_copy(update=ppo),
            "impala": params.impala.model_copy(update={"steps_per_update": 24, "value_warmup_steps": 0}),
            "grpo": params.grpo.model_copy(update=groups | {"group_size": 3}),
            "dpo": params.dpo.model_copy(update=groups | {"pairs": pairs}),
            "iqn": params.iqn.model_copy(update=iqn),
            "pql": params.pql.model_copy(update=pql),
        }
    )
    spec = run_spec(params, track, tmp_path / "run")
    return replace(spec, device=device)


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=[] if name == "ppo" else pytest.mark.slow) for name in sorted(ALGORITHMS)],
)
def test_a_run_begun_there_goes_on_here_and_back(tmp_path: Path, device: torch.device, algorithm: str) -> None:
    for place, until in ((device, 96), (CPU, 192), (device, 288)):
        outcome = train_run(small_run(tmp_path, algorithm, place, until))
        assert outcome.state.env_steps == until
        assert {tensor.device for tensor in outcome.best.tensors.values()} == {CPU}


@pytest.mark.parametrize("algorithm", [pytest.param("ppo", marks=pytest.mark.slow), "iqn"])
def test_central_inference_decides_there(tmp_path: Path, device: torch.device, algorithm: str) -> None:
    spec = small_run(tmp_path, algorithm, device)
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
        remote.ask(image, floats)
        decision = remote.answer()
        assert decision.action.shape == (3,)
        assert remote.version == 4
    ours.send(Stop())
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    there, here = inference._actor, make_actor(spec.make_actor.args[0], 5)
    here.load_network(weights)
    one, other = (actor.act(image, floats, explore=False) for actor in (here, there))
    np.testing.assert_array_equal(one.action, other.action)
