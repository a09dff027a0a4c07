"""Every benchmark to its end, on next to nothing. What it measured is any number above zero."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import (
    agents,
    cluster,
    drive,
    folds,
    gpu,
    learners,
    link,
    order,
    ppo_peers,
    pretraining,
    recordings,
    runtime,
    shipped,
    suite,
    takeovers,
    values,
)
from rulka.agents.algorithms import make_actor
from rulka.agents.shared.networks import build_actor_critic
from rulka.contracts.artifacts import Artifact, load_artifact, network_input_contract, write_artifact
from rulka.contracts.observation import NUM_FLOATS
from rulka.datasets.formats.frames import FrameDataset
from rulka.evaluation.race import EvaluationRaces
from rulka.machine.device import CPU
from rulka.params import Params, read_params
from rulka.simulator.race_settings import RaceSettings
from rulka.training.environment import agent_config
from tasks.capture import capture
from tasks.races import races
from tests.conftest import straight_track
from tests.tasks.conftest import SMALL_NETWORK, write_pretrained
from tests.waiting import PATIENCE_S

Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a benchmark's command with some of its constants changed, and returns its JSON."""

    def run(module: ModuleType, *arguments: str, **constants: Any) -> Any:
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(sys, "argv", [module.__name__, "--json", *arguments])
        module.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def small_params() -> Params:
    params = read_params().model_dump()
    params["track"] |= {"length_m": 150.0}
    params["capture"] |= {"num_workers": 1}
    for level in ("pretrain", "clone"):
        params[level] |= {"batch_size": 8, "precision": "float32"}
    for algorithm in ("ppo", "iqn"):
        params[algorithm] |= {"batch_size": 32}
    params["evaluate"] |= {"num_races": 2}
    return Params.model_validate(params)


@pytest.mark.slow
def test_a_trained_agent_has_a_row_for_each_precision(
    write_frames: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "ACT_TRIES", 1)
    params = small_params()
    params = params.model_copy(update={"race_end": params.race_end.model_copy(update={"max_race_s": 1.0})})
    spec = agents.agent_spec(params, "ppo", "float32")
    tensors = dict(make_actor(spec, 0).network.state_dict())
    races = EvaluationRaces.of(straight_track(), params)
    sight, table = network_input_contract(params.observation), races.settings.table
    artifact = Artifact("agent", tensors, agent_config(spec), sight, table, spec.normalisation)
    rows = agents.measure_agent(artifact, FrameDataset(write_frames()[0], "train"), races, params)
    exact = rows.pop("float32")
    assert (exact["same_action"], exact["finish_rate"]) == (1.0, 0.0)
    assert exact["decisions_per_s_1"] > 0.0
    for low in rows.values():  # those that this processor knows
        assert 0.8 < low["same_action"] <= 1.0
        assert low["version_bytes"] < 0.6 * exact["version_bytes"]


def short_race(algorithm: str, folder: Path) -> tuple[Params, Path]:
    """Parameters of races of two seconds, and a random agent."""
    params = small_params()
    params = params.model_copy(update={"race_end": params.race_end.model_copy(update={"max_race_s": 2.0})})
    spec = agents.agent_spec(params, algorithm, "float32")
    tensors = dict(make_actor(spec, 0).network.state_dict())
    table = EvaluationRaces.of(straight_track(), params).settings.table
    sight = network_input_contract(params.observation)
    folder.mkdir()
    write_artifact(folder, Artifact("agent", tensors, agent_config(spec), sight, table, spec.normalisation))
    return params, folder


def test_returns_from_saved_states_are_those_of_the_race(tmp_path: Path) -> None:
    """A car that takes the agent's own action in a state ends as the race that the state is of."""
    params, folder = short_race("iqn", tmp_path / "agent")
    artifact, gamma = load_artifact(folder, ("agent",)), 0.9
    spec = agents.spec_of(artifact, params)
    actor = make_actor(spec, 0)
    actor.load_network(artifact.tensors)
    policy = agents.Greedy(actor, artifact)
    ends = params.observation, params.actions, params.simulator, params.race_end, params.rewards, params.train
    settings = RaceSettings.for_training(*ends, 1).decided_by(artifact.table).at_line()
    one = values.GreedyRaces(straight_track(), settings, 1, policy)
    states, chosen, rewards, potentials = [], [], [], [one.potential[0]]
    while True:
        states.append(one.cars.state_dict())
        chosen += one.choose().tolist()
        result = one.cars.step_into(one.choose(), one.image, one.floats, one.potential)
        rewards.append(float(result.reward[0]))
        potentials.append(0.0 if result.terminated[0] else one.potential[0])
        if result.terminated[0] or result.truncated[0]:
            break
    assert len(states) == 40
    to_go, expected = 0.0, []
    for reward, before, after in zip(rewards[::-1], potentials[-2::-1], potentials[:0:-1], strict=True):
        to_go = reward + gamma * after - before + gamma * to_go
        expected.append(to_go)
    many = values.GreedyRaces(straight_track(), settings, 2 * len(states), policy)
    many.load(states, 2)
    first = np.stack([chosen, (np.array(chosen) + 5) % 12], axis=1).ravel()
    returns = many.returns(first, gamma).reshape(-1, 2)
    np.testing.assert_allclose(returns[:, 0], expected[::-1], atol=1e-5)
    assert (np.abs(returns[:-1, 0] - returns[:-1, 1]) > 1e-6).mean() > 0.5, "another action has another return"


@pytest.mark.parametrize("algorithm", ["iqn", "ppo"])
def test_values(algorithm: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params, folder = short_race(algorithm, tmp_path / "agent")
    monkeypatch.setattr(values, "read_params", lambda: params)
    found = run(values, folder.as_posix(), "--other", folder.as_posix(), "--track", "copper-oval", "--every", "10")
    assert found["states"] == 4
    assert -1.0 <= found["correlation"] <= 1.0
    assert found["regret"]["agent"] == found["regret"][folder.as_posix()] >= 0.0
    assert found["regret"]["random"] > 0.0
    assert set(found["level"]) == ({"true", "predicted"} if algorithm == "iqn" else {"true"})


@pytest.mark.slow
def test_takeovers(run: Run, tmp_path: Path) -> None:
    """A clone of one epoch needs help, and what the planner drives are labels of the next one."""
    small = small_params().model_dump()
    small["network"] |= SMALL_NETWORK
    small["races"] |= {"num_demonstrations": 2, "reference_decisions": 0}
    small["capture"] |= {"validation_fraction": 0.0, "test_fraction": 0.0}
    small["clone"] |= {"num_races": 2}
    params = Params.model_validate(small)
    (tmp_path / "recordings").mkdir()
    races(params, recordings_dir=tmp_path / "recordings", out_dir=tmp_path / "races")
    capture(params, races_dir=tmp_path / "races", out_dir=tmp_path / "frames", runs_dir=tmp_path / "runs")
    folders = {"RACES": tmp_path / "races", "FRAMES": tmp_path / "frames"}
    folders["ENCODER"], _ = write_pretrained(tmp_path, params.encoder)
    options = ["--seeds", "1", "--minutes", "0.2", "--epochs", "1"]
    found = run(takeovers, *options, read_params=lambda: params, **folders)["seed 1"]
    assert 0.0 < found["by the person"] <= found["minutes driven"]
    assert 0 < found["labels"] <= found["by the person"] * 60 * 20
    assert {0.0 <= found[f"finished {when}"] <= 1.0 for when in ("before", "after")} == {True}


@pytest.mark.slow
def test_recordings(run: Run, corpus: Path) -> None:
    assert all(value > 0.0 for value in run(recordings, str(corpus), TRIES=1).values())


def test_shipped(run: Run) -> None:
    found = run(shipped, "--roads", "1", KINDS=("easy",), WIDTHS_M=(16.0,))["roads"]
    assert set(found) == {"all", "easy", "16 m wide"}
    assert found["all"]["finished"] == found["all"]["the planner finished"] == 1.0
    assert 1.0 < found["all"]["time over the planner's"] < 1.5


@pytest.mark.slow
def test_a_driver_on_the_maps_of_recordings(run: Run, corpus: Path) -> None:
    found = run(shipped, "--roads", "0", "--maps", str(corpus), MAP_RACES=1)["maps"]
    finished = found.pop("finished")
    assert len(found) > 1
    assert finished == np.mean([each["finished"] for each in found.values()])
    for each in found.values():
        assert each["finished"] in {0.0, 1.0}
        assert ("fastest, s" in each) == (each["finished"] == 1.0)
    assert found["StadiumA3"]["fastest recording, s"] == 9.69


FEW: dict[ModuleType, dict[str, Any]] = {
    agents: {
        "CARS": (2,),
        "REFERENCE_BATCHES": (16,),
        "UPDATE_TRIES": 1,
        "ACT_TRIES": 1,
        "PRECISIONS": ("float32",),
        "read_params": small_params,
    },
    pretraining: {"NUM_ROUNDS": 1, "NUM_BATCHES": 2, "NUM_DEMONSTRATIONS": 2, "read_params": small_params},
    runtime: {"CENTRAL_CARS": (8,)},
    drive: {"NUM_PICTURES": 1},
    link: {"TRIES": 1, "TRY_S": 0.05, "HELD_S": 0.1},
}
"""Constants of a short run."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "options", "parts"),
    [
        (agents, "--device cpu", {"update", "update, reference, batch 16", "draw", "act, 2 cars"}),
        (pretraining, "", {"frames_per_s"}),
        (runtime, "--seconds 2", {"alone", "together", "inference", "central"}),
        (learners, "--env-steps 16384 --rounds 1", {f"ppo, learners {n}, collectors {c}" for n, c in learners.PLANS}),
        (cluster, "--blocks 1 --rounds 1", {"processes", "cluster"}),
        (order, "--env-steps 8192 --rounds 1 --uneven-ms 0", {"ppo, exact beside free", "iqn, exact beside free"}),
        (order, "--env-steps 4096 --rounds 0 --uneven-ms 1", {"synchronous steps", "decoupled"}),
        (link, "", {"target_cycles_per_s", "with the state"}),
        (drive, "--presses 5", {"alone", "with a ghost", "picture"}),
        (link, "--engine", {"target_cycles_per_s", "with the state", "the plugin"}),
    ],
)
def test_it_comes_to_its_end(run: Run, module: ModuleType, options: str, parts: set[str]) -> None:
    params = read_params()
    at_once = {
        "ppo": params.ppo.model_copy(update={"value_warmup_steps": 0}),
        "iqn": params.iqn.model_copy(update={"buffer_steps": 20_000, "start_steps": 1024, "warmup_steps": 0}),
    }
    learning = {"read_params": lambda: params.model_copy(update=at_once)} if hasattr(module, "read_params") else {}
    assert parts <= set(run(module, *options.split(), **learning | FEW.get(module, {})))


def full_gas(observation: dict[str, np.ndarray]) -> np.ndarray:
    """An agent that never steers: the walls of the oval lead it round."""
    return np.zeros(len(observation["floats"]), np.int64)


def test_folds(run: Run, tmp_path: Path) -> None:
    calibration = tmp_path / "calibration.json"
    calibration.write_text(json.dumps({"folds": {"a map": {}, "weak": {"push_mps2": [9.0, 6.0, 4.0, 3.0]}}}))
    agent = f"{__name__}:full_gas"
    found = run(folds, agent, "--calibration", str(calibration), "--track", "copper-oval", "--races", "2")[agent]
    assert list(found) == ["shipped", "a map", "weak"]
    assert [result["finish_rate"] for result in found.values()] == [1.0, 1.0, 1.0]
    assert found["weak"]["median_time_s"] > found["shipped"]["median_time_s"] + 1.0


def test_ppo_peers(run: Run) -> None:
    """Rulka's side: an update is measured."""
    few = {"CARS": 4, "ROLLOUT": 8, "BATCH": 16}
    found = run(ppo_peers, "--side", "every layer", "--updates", "1", **few)
    assert found["steps_per_cpu_s"] > 0.0
    assert 0.0 < found["environment_share"] < 1.0


def test_the_peer_of_ppo_has_the_same_layers() -> None:
    """With the same weights they give the same features; what is missing are the heads alone."""
    spec, layers = ppo_peers.agent_spec(1), ppo_peers.Layers()
    network = spec.fresh_network(build_actor_critic, 3)
    heads = ("policy_head.", "value_head.")
    body = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith(heads)}
    layers.network.load_state_dict(body)
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 256, (4, *spec.observation.image_shape), np.uint8))
    floats = torch.from_numpy(rng.normal(size=(4, NUM_FLOATS)).astype(np.float32))
    with torch.no_grad():
        found = layers({"image": image.float(), "floats": floats})
        torch.testing.assert_close(found, network.hidden(network.encode(image), floats))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["update", "end to end", "acting", "reference", "levels"])
def test_a_part_of_a_gpus_table(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"CARS_ON_DEVICE": (2,), "REFERENCE_BATCHES": (16,), "TRIES": 1, "ACT_TRIES": 1, "TRAIN_S": 2.0}
    constants: dict[ModuleType, dict[str, Any]] = {gpu: few, agents: FEW[agents], pretraining: FEW[pretraining]}
    for module, changes in constants.items():
        for name, value in changes.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    found: dict[str, Any] = {}
    for more in gpu.PARTS[part][1](small_params(), CPU):
        found |= more
    assert found
    assert all(value if isinstance(value, dict) else value > 0.0 for value in found.values())


def test_numbers_of_a_gpu_are_judged_beside_the_cpu() -> None:
    """Beside itself the CPU differs in nothing."""
    found = {name: value for each in gpu.correctness(small_params(), CPU) for name, value in each.items()}
    assert found == {"iqn, gradient": "0.0e+00", "ppo, metrics": "0.0e+00"}
    assert gpu._judged(0.002) == "2.0e-03, more than 0.001"


def test_parts_of_a_gpus_table_end_at_their_limits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here before they have begun; one that fails says so. All of it stands in the file."""
    out = tmp_path / "gpu.json"
    found = run(gpu, "--device", "cpu", "--limits", "0.001", "--out", str(out))
    assert found == json.loads(out.read_text())
    assert list(found) == ["device", "torch", *gpu.PARTS]
    assert found["update"] == {"ended": "at its limit of 0.06 s"}
    assert sum(limit_s for limit_s, _ in gpu.PARTS.values()) <= 360.0
    with pytest.raises(SystemExit, match="cannot be used"):
        run(gpu, "--device", "cuda:9")
    monkeypatch.setattr(sys, "executable", "false")
    assert gpu.measure("update", "cpu", PATIENCE_S) == {"ended": "with exit code 1: "}


@pytest.mark.slow
def test_the_suite_runs_a_tier_and_names_what_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    assert not suite.run("fast", 1, ["-p", "no:cacheprovider", str(file)])
    said = capfd.readouterr().out
    assert "1 failed, 1 passed" in said
    assert "test_two.py::test_bad" in said
