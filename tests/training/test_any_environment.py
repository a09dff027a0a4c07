"""Training in Gymnasium environments, from the parameters to the folder of the agent."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rulka.agents.load import load_policy
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.networks import build_actor_critic
from rulka.contracts import artifacts
from rulka.contracts.artifacts import META_FILE, WEIGHTS_FILE, Artifact, ArtifactError
from rulka.envs.episodes import read_facts
from rulka.machine.errors import UserError
from rulka.params.presets import environment_params
from rulka.runtime.live import METRICS_FILE
from rulka.runtime.metrics_log import read_metrics
from rulka.runtime.stop import StopRequestedError
from rulka.training.gymnasium_environment import (
    FINAL_SEED,
    load_environment_agent,
    race_in_environment,
    train_in_environment,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
small = importlib.import_module("small_environments")

QUICK = {"num_checks": 2, "check_races": 4, "final_check_races": 6, "check_candidates": 2, "block_steps": 16}


def train(environment: str, runs: Path, ppo: dict[str, Any] | None = None, **changes: Any) -> Artifact:
    """Trains in the only folder of `runs`, with few greedy episodes.

    `changes` are of section `train`, but for `extras`, sections of any name.
    """
    sections = {"ppo": ppo or {}, **changes.pop("extras", {})}
    facts = read_facts(environment)
    params = environment_params(facts.environment, {"train": QUICK | {"seed": 1} | changes, **sections})
    _, agent = train_in_environment(facts, params, runs)
    return agent


def small_updates(**changes: Any) -> dict[str, Any]:
    return {"steps_per_update": 128, "batch_size": 64, "epochs": 4, "encoder_epochs": 0} | changes


def folder_in(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def returns_of(agent: Artifact) -> list[float]:
    return agent.provenance["training"]["returns"]


def value_of(agent: Artifact, *observations: list[float]) -> list[float]:
    """What the agent thinks that situations are worth; the clock is added."""
    observation, sizes = agent.observation.params(), NetworkParams.model_validate(agent.config["network"])
    network = build_actor_critic(
        observation, agent.encoder, sizes, agent.normalisation, agent.actions.space.num_outputs
    )
    network.load_state_dict(agent.tensors)
    image = torch.zeros(len(observations), *observation.image_shape, dtype=torch.uint8)
    floats = torch.tensor([[0.0, *each] for each in observations])
    with torch.no_grad():
        return network(image, floats).value.tolist()


@pytest.mark.slow
def test_time_limits_have_a_future(tmp_path: Path) -> None:
    """Reward 2 and a cut after each decision: worth 2 / (1 - 0.5) = 4 each; as an end it would be 2."""
    changes = small_updates(gamma=0.5, learning_rate=0.003)
    cut = small.register_with("CutEach", small.Paid, length=1, end="truncated")
    ended = small.register_with("EndsEach", small.Paid, length=1)
    values = [
        value_of(train(each, tmp_path / each[6:], changes, max_env_steps=4000), [0.0])[0] for each in (cut, ended)
    ]
    assert values == pytest.approx([4.0, 2.0], abs=0.4)


def test_two_numbers_are_learned(tmp_path: Path) -> None:
    """Untrained greedy decisions are the middles, 1 and 5, which cost 17; the best cost nothing."""
    agent = train("small/Target-v0", tmp_path / "run", small_updates(learning_rate=0.003), max_env_steps=6000)
    assert np.mean(returns_of(agent)) > -1.0
    assert len(returns_of(agent)) == QUICK["final_check_races"]
    last = read_metrics(folder_in(tmp_path / "run") / METRICS_FILE)[-1]
    assert last["check_mean_return"] > -1.0
    assert last["finish_rate"] is None, "an episode is no race that could finish"
    assert not list(folder_in(tmp_path / "run").glob("checkpoint-*")), "nobody goes on from a finished run"


@pytest.mark.slow
def test_pictures_and_numbers_with_collector_processes(tmp_path: Path) -> None:
    """A process registers `benchmarks.qrdqn.catch` by itself."""
    updates = small_updates(encoder_epochs=1)
    agent = train(
        "benchmarks.qrdqn.catch:rulka/Catch64-v0", tmp_path / "run", updates, max_env_steps=512, num_collectors=1
    )
    assert all(-5.0 <= each <= 5.0 for each in returns_of(agent))


def test_it_acts_again_as_it_did(tmp_path: Path) -> None:
    agent = train("CartPole-v1", tmp_path / "run", max_env_steps=512)
    again = load_environment_agent(folder_in(tmp_path / "run"))
    assert (again.environment, again.config, again.actions) == (agent.environment, agent.config, agent.actions)
    assert again.provenance == agent.provenance
    seed = (1 << 8) + FINAL_SEED
    assert race_in_environment(again, len(returns_of(agent)), seed) == returns_of(agent)
    assert len(race_in_environment(again, 7, 0)) == 7


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    small.Interrupted.num_decisions = 0
    with pytest.raises(StopRequestedError):
        train("small/Interrupted-v0", tmp_path / "run", small_updates(), max_env_steps=1024)
    assert list(folder_in(tmp_path / "run").glob("checkpoint-*"))
    agent = train("small/Interrupted-v0", tmp_path / "run", small_updates(), max_env_steps=1024)
    assert agent.provenance["training"]["repeats"] == "it was interrupted, and began races or experience anew"
    assert agent.provenance["training"]["env_steps"] >= 1024


def test_greedy_episodes_that_never_end_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first 40 decisions pay 2, 3, ..., 41."""
    monkeypatch.setattr("rulka.runtime.greedy_check.MOST_DECISIONS", 40)
    endless = small.register_with("Endless", small.Counting, length=10**9)
    agent = train(endless, tmp_path, small_updates(), max_env_steps=256)
    assert returns_of(agent) == [860.0] * QUICK["final_check_races"]
    assert "greedy episodes are cut after 40 decisions" in caplog.text


UNGUARDED = """
from pathlib import Path
from rulka.envs.episodes import read_facts
from rulka.params.presets import environment_params
from rulka.training.gymnasium_environment import train_in_environment
params = environment_params("CartPole-v1", {"train": {"num_collectors": 1, "max_env_steps": 256}})
train_in_environment(read_facts("CartPole-v1"), params, Path("runs"))
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    answer = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert 'put what it does below `if __name__ == "__main__":`' in answer.stderr.splitlines()[-1]
    assert answer.stderr.count("Traceback") == 1
    assert "starting it again" not in answer.stderr


def test_a_run_is_known_by_what_decides_it(tmp_path: Path) -> None:
    facts, folders = read_facts("CartPole-v1"), []
    for steps in (256, 256, 512):
        params = environment_params("CartPole-v1", {"train": QUICK | {"max_env_steps": steps}})
        folders.append(train_in_environment(facts, params, tmp_path)[0])
    assert folders[0] == folders[1] != folders[2]
    assert folders[0].name.startswith("CartPole-v1-ppo-")


def test_recordings_that_an_environment_brings_are_learned_from(tmp_path: Path) -> None:
    """One class in one file brings environment and recordings."""
    iqn = {"iqn": {"demonstration_share": 0.5}}
    agent = train("small/Recorded-v0", tmp_path, algorithm="iqn", max_env_steps=1500, extras=iqn)
    assert agent.provenance["training"]["gradient_steps"] > 0
    with pytest.raises(UserError, match="goes on behind the end of its episode, seed 2"):
        train("small/RecordedTooLong-v0", tmp_path / "long", algorithm="iqn", max_env_steps=1500, extras=iqn)


BACKBONE = {"kind": "backbone", "source": {"kind": "folder", "path": "somewhere"}}


@pytest.mark.parametrize(
    ("algorithm", "extras", "said"),
    [
        ("iqn", {"iqn": {"demonstration_share": 0.1}}, "iqn learns from demonstrations, and"),
        ("grpo", {}, "grpo compares episodes that begin alike"),
        ("dpo", {"dpo": {"pairs": {"kind": "demonstrations"}}}, "dpo learns from pairs of captured races"),
        ("ppo", {"network": {"actions_per_decision": 5}}, "network.actions_per_decision is more than 1"),
        ("ppo", {"ppo": {"action_repeat": 2}}, "ppo.action_repeat is more than 1, and steps"),
        ("ppo", {"encoder": BACKBONE}, "encoder.kind is backbone"),
    ],
)
def test_parameters_that_cannot_be_are_named(tmp_path: Path, algorithm: str, extras: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        train("benchmarks.qrdqn.catch:rulka/Catch64-v0", tmp_path / "run", algorithm=algorithm, extras=extras)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("trained")
    train("CartPole-v1", folder / "run", max_env_steps=256)
    return {name: (folder_in(folder / "run") / name).read_bytes() for name in (META_FILE, WEIGHTS_FILE)}


def lay(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("names", "said"),
    [((), "holds no complete agent: meta.json is missing"), ((META_FILE,), "weights.safetensors cannot be read")],
)
def test_a_damaged_agent_is_refused(
    tmp_path: Path, trained: dict[str, bytes], names: tuple[str, ...], said: str
) -> None:
    lay(tmp_path, {name: trained[name] for name in names})
    with pytest.raises(UserError, match=said) as refused:
        load_environment_agent(tmp_path)
    assert refused.value.hint == "`rulka env train` makes one, and says where."


def test_an_agent_of_an_environment_races_nowhere(tmp_path: Path, trained: dict[str, bytes]) -> None:
    lay(tmp_path, trained)
    with pytest.raises(ArtifactError, match="environment is 'CartPole-v1', expected 'races'") as refused:
        load_policy(tmp_path)
    assert "rulka env evaluate" in refused.value.hint


def test_an_environment_that_has_changed_is_refused(tmp_path: Path, trained: dict[str, bytes]) -> None:
    meta = json.loads(trained[META_FILE]) | {"environment": "Acrobot-v1"}
    meta["meta_sha256"] = artifacts._meta_hash(meta)
    lay(tmp_path, trained | {META_FILE: json.dumps(meta).encode()})
    with pytest.raises(UserError, match="Acrobot-v1 shows or takes something else than when"):
        race_in_environment(load_environment_agent(tmp_path), 1, 0)
