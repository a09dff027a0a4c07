"""Runs whose collectors act with quantised versions: what is stored is the quantised policy's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_run import run_spec
from test_exact_resume import assert_equal, drive, small_params, went_on_alike

from models.prepared import quantised_weight
from rulka.agents.quantisation import ActingPrecisionError, Quantiser
from rulka.agents.spec import AgentError
from rulka.envs.episodes import read_facts
from rulka.params import Params, read_params
from rulka.presets import environment_params
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.shared import layout_of
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals
from rulka.training.any_environment import train_in_environment
from rulka.training.racing import AgentRun, Folders

ROOT = Path(__file__).parents[2]
QUANTISED = ("bfloat16", "int8")


def params_of(algorithm: str, precision: str | None, **train: Any) -> Params:
    params = small_params(algorithm, {"network": {"embedding_at": "hidden"}})
    return params.model_copy(update={"train": params.train.model_copy(update={"acting_precision": precision, **train})})


@contextmanager
def one_thread() -> Iterator[None]:
    """Computes as collectors do: sums of a layer that is parted among threads may have other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def running(spec: RunSpec) -> Iterator[LearnerLoop]:
    with StopSignals() as stop, connect(spec, stop) as loop:
        yield loop


@pytest.mark.parametrize(
    "algorithm", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("impala", "grpo"))]
)
@pytest.mark.parametrize("precision", QUANTISED)
def test_what_is_stored_is_of_the_quantised_policy(tmp_path: Path, track: Path, algorithm: str, precision: str) -> None:
    """Of a version that is some updates old, too: the blocks' log-probabilities are those of whoever acted."""
    spec = run_spec(params_of(algorithm, precision), track, tmp_path)
    blocks, versions = [], {}
    with running(spec) as loop:
        insert, publish = loop._learner.insert, loop._collectors.publish

        def keep_block(block, collector: int, version: int) -> None:
            blocks.append(
                (
                    version,
                    block.image[0].copy(),
                    block.floats[0].copy(),
                    block.action[0].copy(),
                    block.log_prob[0].copy(),
                )
            )
            insert(block, collector, version)

        def keep_version(version: int, tensors) -> None:
            own = loop._learner.network.state_dict()
            versions[version] = [{name: x.clone() for name, x in each.items()} for each in (tensors, own)]
            publish(version, tensors)

        loop._learner.insert, loop._collectors.publish = keep_block, keep_version
        loop.run()
    assert len(versions) > 3
    acting, exact = spec.collecting_actor(0), spec.make_actor(0)
    differences = []
    for version, image, floats, action, stored in blocks:
        log_probs = []
        for actor, tensors in zip((acting, exact), versions[version], strict=True):
            actor.load_network(tensors)
            values = actor.action_values(torch.from_numpy(image), torch.from_numpy(floats))
            log_probs.append(np.log(values.value[np.arange(len(action)), action]))
        np.testing.assert_allclose(stored, log_probs[0], atol=1e-5)
        differences.append(np.abs(stored - log_probs[1]).max())
    assert max(differences) > 1e-5, "not those of the learner's weights"


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("iqn", marks=pytest.mark.slow)])
def test_a_killed_run_in_int8_goes_on_as_if_nothing_had_been(tmp_path: Path, track: Path, algorithm: str) -> None:
    params = params_of(algorithm, "int8")
    whole, unharmed = drive(run_spec(params, track, tmp_path / "whole"))
    assert whole is not None
    spec = run_spec(params, track, tmp_path / "killed")
    gone, _ = drive(spec, killed_at=unharmed._learner.version // 2)
    assert gone is None, "or nothing was killed"
    outcome, resumed = drive(spec)
    went_on_alike(outcome, resumed, whole, unharmed)
    assert_equal(resumed._quantiser.state_dict(), unharmed._quantiser.state_dict(), "quantiser")


def test_the_learners_own_weights_race_and_are_saved(tmp_path: Path, track: Path) -> None:
    """Greedy checks and the chosen weights have nothing of int8: rounded to its steps they would be others."""
    outcome, loop = drive(run_spec(params_of("ppo", "int8"), track, tmp_path))
    assert outcome is not None
    raced, racer = loop._check._actor.network.state_dict(), loop._learner.racer.state_dict()
    assert_equal(dict(raced), dict(racer))
    saved = outcome.best.tensors["trunk.2.weight"]
    assert float((quantised_weight(saved).dequantised() - saved).abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("train", "precision"),
    [
        ({"num_collectors": 1}, "int8"),
        pytest.param({"inference": "central", "policy_workers": 1}, "int8", marks=pytest.mark.slow),
        # A worker for each collector: sums in bfloat16 may depend on how many cars are decided for together.
        pytest.param({"inference": "central", "policy_workers": 2}, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_processes_load_what_was_published(tmp_path: Path, track: Path, train: dict[str, Any], precision: str) -> None:
    """In collectors' own processes and in policy workers; a version in shared memory has fewer bytes."""
    params = params_of("ppo", precision, **{"num_collectors": 2, "checkpoint_s": 60.0, "num_checks": 1} | train)
    spec = run_spec(params, track, tmp_path)
    blocks = []
    with running(spec) as loop:
        network, weights = loop._learner.network, loop._collectors._weights
        quantiser = Quantiser(network, precision)
        insert = loop._learner.insert

        def keep_block(block, collector: int, version: int) -> None:
            if version == 0:
                blocks.append(
                    [block.image[0].copy(), block.floats[0].copy(), block.action[0].copy(), block.log_prob[0].copy()]
                )
            insert(block, collector, version)

        loop._learner.insert = keep_block
        initial = {name: x.clone() for name, x in network.state_dict().items()}
        quantiser.load_state_dict(loop._quantiser.state_dict())
        assert weights._layout.num_bytes < layout_of(initial).num_bytes
        published = quantiser.quantise(0, initial)
        loop.run()
    actor = spec.collecting_actor(0)
    actor.load_network(published)
    assert blocks
    for image, floats, action, stored in blocks:
        with one_thread():
            values = actor.action_values(torch.from_numpy(image), torch.from_numpy(floats)).value
        np.testing.assert_allclose(stored, np.log(values[np.arange(len(action)), action]), atol=1e-5)


@pytest.fixture
def _old_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})


@pytest.mark.usefixtures("_old_processor")
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
def test_a_training_is_refused_before_it_reads_or_writes_anything(tmp_path: Path, precision: str) -> None:
    folders = Folders(*(tmp_path / name for name in ("init", "races", "frames", "runs", "out")))
    with pytest.raises(ActingPrecisionError, match=precision):
        AgentRun("ppo", params_of("ppo", precision), folders)
    facts, folder = read_facts("CartPole-v1"), tmp_path / "run"
    params = environment_params(facts.environment, {"train": {"acting_precision": precision}})
    with pytest.raises(ActingPrecisionError, match=precision):
        train_in_environment(facts, params, folder)
    assert not any(tmp_path.iterdir())


def test_an_environment_without_images_has_nothing_to_see_in_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": True})  # or that would be why
    facts, folder = read_facts("CartPole-v1"), tmp_path / "run"
    params = environment_params(facts.environment, {"train": {"acting_precision": "int8"}})
    with pytest.raises(AgentError, match="cannot act in int8"):
        train_in_environment(facts, params, folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"encoder": {"kind": "impala", "width": 1, "adaptive_pool": 0, "spectral_norm": False}},
            "encoder.kind is impala",
        ),
        ({"encoder": {"kind": "conv", "adaptive_pool": 2}}, "encoder.adaptive_pool is not 0"),
        ({"network": {"fusion": {"kind": "projected"}}}, "network.fusion.kind is not concat"),
        ({"observation": {"frames": 2}}, "observation.frames is not 1"),
        ({"observation": {"withheld": ["image"]}}, "observation.withheld has image"),
        ({"network": {"iqn": {"embedding_at": "state"}}}, "network.iqn.embedding_at is state"),
    ],
)
def test_int8_of_another_network_is_refused_when_parameters_are_read(changes: dict[str, Any], words: str) -> None:
    data = read_params(ROOT / "params.yaml").model_dump()
    data["train"] |= {"acting_precision": "int8", "compared": ["iqn"]}
    for algorithm in ("ppo", "iqn"):  # several frames at once exclude repeated actions for another reason
        data[algorithm]["action_repeat"] = 1
    Params.model_validate(data)
    for section, values in changes.items():
        for key, value in values.items():
            if isinstance(value, dict) and key == "iqn":
                data[section][key] |= value
            else:
                data[section] = {**(data[section] if section != "encoder" else {}), key: value}
    if "encoder" in changes:
        data["encoder"] = changes["encoder"]
    with pytest.raises(ValueError, match=r"train\.acting_precision is int8, but") as error:
        Params.model_validate(data)
    assert words in str(error.value)
    data["train"]["acting_precision"] = "bfloat16"
    Params.model_validate(data)
