"""Runs whose collectors act with quantised versions: what is stored is the quantised policy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_run import assert_equal, run_spec, small_params
from runtime_fakes import drive

from models.prepared import quantised_weight
from rulka.agents.shared.quantisation import ActingPrecisionError
from rulka.agents.shared.spec import AgentError
from rulka.envs.episodes import read_facts
from rulka.params import Params
from rulka.params.presets import environment_params, merge_overlay
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.shared import layout_of
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals
from rulka.training.agent_run import AgentRun, Folders
from rulka.training.gymnasium_environment import train_in_environment


def params_of(algorithm: str, precision: str | None, **train: Any) -> Params:
    return small_params(algorithm, {"network": {"embedding_at": "hidden"}}, acting_precision=precision, **train)


Stored = list[tuple[int, list[np.ndarray]]]
CENTRAL = {"inference": "central", "order": "free"}


def run_and_keep(loop: LearnerLoop) -> Stored:
    """Runs, and returns of each block its version, and of its first decision image, floats, action, log-probability."""
    stored: Stored = []
    insert = loop._learner.insert

    def keep(block: Any, collector: int, version: int) -> None:
        first = (block.image, block.floats, block.action, block.log_prob)
        stored.append((version, [each[0].copy() for each in first]))
        insert(block, collector, version)

    loop._learner.insert = keep  # type: ignore[method-assign]
    loop.run()
    return stored


def run_of_versions(spec: RunSpec, *, are_shared: bool) -> tuple[dict[int, list[dict[str, torch.Tensor]]], Stored]:
    """Runs, and returns of each version what was published and the learner's own weights; and the blocks."""
    versions: dict[int, list[dict[str, torch.Tensor]]] = {}
    with StopSignals() as stop, connect(spec, stop) as loop:
        publish, own = loop._collectors.publish, loop._learner.network

        def keep_version(version: int, tensors: Any) -> None:
            both = (tensors, own.state_dict())
            versions[version] = [{name: x.clone() for name, x in each.items()} for each in both]
            publish(version, tensors)

        loop._collectors.publish = keep_version  # type: ignore[method-assign]
        if are_shared:
            assert loop._collectors._weights._layout.num_bytes < layout_of(own.state_dict()).num_bytes
        stored = run_and_keep(loop)
    assert len(versions) > 3
    return versions, stored


def log_prob(actor: Any, tensors: Any, image: np.ndarray, floats: np.ndarray, action: np.ndarray) -> np.ndarray:
    actor.load_network(tensors)
    values = actor.action_values(torch.from_numpy(image), torch.from_numpy(floats)).value
    return np.log(values[np.arange(len(action)), action[:, 0]])


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("algorithm", "precision", "train"),
    [
        ("ppo", "int8", {}),
        *(pytest.param(name, "int8", {}, marks=SLOW) for name in ("impala", "grpo")),
        *(pytest.param(name, "bfloat16", {}, marks=SLOW) for name in ("ppo", "impala", "grpo")),
        ("ppo", "int8", {"num_collectors": 1}),
        pytest.param("ppo", "int8", {"num_collectors": 2, **CENTRAL}, marks=SLOW),
        # One collector: sums in bfloat16 may depend on how many cars are decided for together.
        pytest.param("ppo", "bfloat16", {"num_collectors": 1, **CENTRAL}, marks=SLOW),
    ],
)
def test_what_is_stored_is_of_the_quantised_policy(
    tmp_path: Path, track: Path, algorithm: str, precision: str, train: dict[str, Any]
) -> None:
    """The blocks' log-probabilities are those of whoever acted, of a version that is some updates old, too.

    Collectors act in this process, in their own and by the policy worker; there a version takes fewer bytes.
    """
    spec = run_spec(params_of(algorithm, precision, **train), track, tmp_path)
    versions, stored = run_of_versions(spec, are_shared=bool(train))
    acting, exact, differences = spec.collecting_actor(0), spec.make_actor(0), []
    for version, (image, floats, action, found) in stored:
        quantised, own = versions[version]
        np.testing.assert_allclose(found, log_prob(acting, quantised, image, floats, action), atol=1e-5)
        differences.append(np.abs(found - log_prob(exact, own, image, floats, action)).max())
    assert max(differences) > 1e-5, "not those of the learner's weights"


@pytest.mark.parametrize(
    ("precision", "train"),
    [
        ("int8", {}),
        pytest.param("bfloat16", {}, marks=SLOW),
        pytest.param("int8", {"num_collectors": 1, "order": "free"}, marks=SLOW),
    ],
)
def test_pql_drives_by_the_quantised_policy(tmp_path: Path, track: Path, precision: str, train: dict[str, Any]) -> None:
    """Without noise, continuous decisions are the policy's own; in free order it has a process of its own."""
    data = params_of("pql", precision, **train).model_dump()
    data["network"]["analog"] = True
    data["pql"] |= {"noise_least": 0.0, "noise_most": 0.0, "policy_process": bool(train)}
    spec = run_spec(Params.model_validate(data), track, tmp_path)
    versions, stored = run_of_versions(spec, are_shared=bool(train))
    acting, exact, differences = spec.collecting_actor(0), spec.make_actor(0), []
    for version, (image, floats, action, _) in stored:
        quantised, own = versions[version]
        np.testing.assert_allclose(action, decided(acting, quantised, image, floats), atol=1e-5)
        differences.append(np.abs(action - decided(exact, own, image, floats)).max())
    assert max(differences) > 1e-5, "not those of the learner's weights"


def decided(actor: Any, tensors: Any, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
    actor.load_network(tensors)
    return actor.act(torch.from_numpy(image), torch.from_numpy(floats), explore=False).action


def test_the_learners_own_weights_race_and_are_saved(tmp_path: Path, track: Path) -> None:
    """Greedy checks and the chosen weights have nothing of int8: rounded to its steps they would be others."""
    outcome, loop = drive(run_spec(params_of("ppo", "int8"), track, tmp_path))
    assert outcome is not None
    raced, racer = loop._check._actor.network.state_dict(), loop._learner.racer.state_dict()
    assert_equal(dict(raced), dict(racer))
    saved = outcome.best.tensors["trunk.2.weight"]
    assert float((quantised_weight(saved).dequantised() - saved).abs().max()) > 1e-4


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
def test_a_training_is_refused_before_it_reads_or_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """On an old processor; an environment without images has nothing to see in int8 on any."""
    folders = Folders(*(tmp_path / name for name in ("init", "races", "frames", "runs", "out")))
    facts = read_facts("CartPole-v1")
    params = environment_params(facts.environment, {"train": {"acting_precision": precision}})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with pytest.raises(ActingPrecisionError, match=precision):
        AgentRun("ppo", params_of("ppo", precision), folders)
    with pytest.raises(ActingPrecisionError, match=precision):
        train_in_environment(facts, params, tmp_path / "run")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": True})
    if precision == "int8":
        with pytest.raises(AgentError, match="cannot act in int8"):
            train_in_environment(facts, params, tmp_path / "run")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder": {"kind": "impala", "width": 1}}, "encoder.kind conv, but it is impala"),
        ({"encoder": {"kind": "conv", "adaptive_pool": 2}}, "encoder.adaptive_pool 0, but it is 2"),
        ({"network": {"fusion": {"kind": "projected"}}}, "network.fusion.kind concat, but it is projected"),
        ({"observation": {"frames": 2}}, "observation.frames 1, but it is 2"),
        ({"observation": {"withheld": ["image"]}}, "observation.withheld has image"),
        ({"network": {"iqn": {"embedding_at": "state"}}}, "network.iqn.embedding_at hidden, but it is state"),
    ],
)
def test_int8_of_another_network_is_refused_when_parameters_are_read(changes: dict[str, Any], words: str) -> None:
    once = {"action_repeat": 1}  # several frames at once exclude repeated actions for another reason
    params = params_of("ppo", "int8", compared=("iqn",)).model_dump()
    data = merge_overlay(params, {"ppo": once, "iqn": once} | changes, "these")
    with pytest.raises(ValueError, match=rf"train\.acting_precision int8 needs [\s\S]*{words}"):
        Params.model_validate(data)
    data["train"]["acting_precision"] = "bfloat16"
    Params.model_validate(data)
