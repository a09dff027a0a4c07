"""Runs whose collectors act with quantised versions: what is stored is the quantised policy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_run import run_spec
from test_exact_resume import assert_equal, drive, small_params

from models.prepared import quantised_weight
from rulka.agents.quantisation import ActingPrecisionError, Quantiser
from rulka.agents.spec import AgentError
from rulka.envs.episodes import read_facts
from rulka.params import Params
from rulka.presets import environment_params
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.shared import layout_of
from rulka.runtime.stop import StopSignals
from rulka.training.any_environment import train_in_environment
from rulka.training.racing import AgentRun, Folders


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


def log_prob(actor: Any, tensors: Any, image: np.ndarray, floats: np.ndarray, action: np.ndarray) -> np.ndarray:
    actor.load_network(tensors)
    values = actor.action_values(torch.from_numpy(image), torch.from_numpy(floats)).value
    return np.log(values[np.arange(len(action)), action])


@pytest.mark.parametrize(
    "algorithm", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("impala", "grpo"))]
)
@pytest.mark.parametrize("precision", ["int8", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_what_is_stored_is_of_the_quantised_policy(tmp_path: Path, track: Path, algorithm: str, precision: str) -> None:
    """Of a version that is some updates old, too: the blocks' log-probabilities are those of whoever acted."""
    spec, versions = run_spec(params_of(algorithm, precision), track, tmp_path), {}
    with StopSignals() as stop, connect(spec, stop) as loop:
        publish = loop._collectors.publish

        def keep_version(version: int, tensors: Any) -> None:
            own = loop._learner.network.state_dict()
            versions[version] = [{name: x.clone() for name, x in each.items()} for each in (tensors, own)]
            publish(version, tensors)

        loop._collectors.publish = keep_version  # type: ignore[method-assign]
        stored = run_and_keep(loop)
    assert len(versions) > 3
    acting, exact, differences = spec.collecting_actor(0), spec.make_actor(0), []
    for version, (image, floats, action, found) in stored:
        quantised, own = versions[version]
        np.testing.assert_allclose(found, log_prob(acting, quantised, image, floats, action), atol=1e-5)
        differences.append(np.abs(found - log_prob(exact, own, image, floats, action)).max())
    assert max(differences) > 1e-5, "not those of the learner's weights"


@pytest.mark.parametrize(
    ("train", "precision"),
    [
        ({"num_collectors": 1}, "int8"),
        pytest.param({"num_collectors": 2, **CENTRAL}, "int8", marks=pytest.mark.slow),
        # One collector: sums in bfloat16 may depend on how many cars are decided for together.
        pytest.param({"num_collectors": 1, **CENTRAL}, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_processes_load_what_was_published(tmp_path: Path, track: Path, train: dict[str, Any], precision: str) -> None:
    """In collectors' own processes and in the policy worker; a version in shared memory has fewer bytes."""
    spec = run_spec(params_of("ppo", precision, checkpoint_s=60.0, num_checks=1, **train), track, tmp_path)
    with StopSignals() as stop, connect(spec, stop) as loop:
        initial = {name: x.clone() for name, x in loop._learner.network.state_dict().items()}
        quantiser = Quantiser(loop._learner.network, precision)
        quantiser.load_state_dict(loop._quantiser.state_dict())
        assert loop._collectors._weights._layout.num_bytes < layout_of(initial).num_bytes
        published = quantiser.quantise(0, initial)
        stored = [each for version, each in run_and_keep(loop) if version == 0]
    assert stored
    for image, floats, action, found in stored:
        expected = log_prob(spec.collecting_actor(0), published, image, floats, action)
        np.testing.assert_allclose(found, expected, atol=1e-5)


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
    ("section", "values", "words"),
    [
        (
            "encoder",
            {"kind": "impala", "width": 1, "adaptive_pool": 0, "spectral_norm": False},
            "encoder.kind is impala",
        ),
        ("encoder", {"kind": "conv", "adaptive_pool": 2}, "encoder.adaptive_pool is not 0"),
        ("network", {"fusion": {"kind": "projected"}}, "network.fusion.kind is not concat"),
        ("observation", {"frames": 2}, "observation.frames is not 1"),
        ("observation", {"withheld": ["image"]}, "observation.withheld has image"),
        ("network", {"iqn": {"embedding_at": "state"}}, "network.iqn.embedding_at is state"),
    ],
)
def test_int8_of_another_network_is_refused_when_parameters_are_read(
    section: str, values: dict[str, Any], words: str
) -> None:
    data = params_of("ppo", "int8", compared=("iqn",)).model_dump()
    for algorithm in ("ppo", "iqn"):  # several frames at once exclude repeated actions for another reason
        data[algorithm]["action_repeat"] = 1
    if "iqn" in values:
        values = {"iqn": data["network"]["iqn"] | values["iqn"]}
    data[section] = values if section == "encoder" else data[section] | values
    with pytest.raises(ValueError, match=r"train\.acting_precision is int8, but") as error:
        Params.model_validate(data)
    assert words in str(error.value)
    data["train"]["acting_precision"] = "bfloat16"
    Params.model_validate(data)
