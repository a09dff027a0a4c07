"""Folders in the layout of Hugging Face: what is in them, and that nothing in them is passed over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from rulka.agents.hugging_face import export_agent, import_agent
from rulka.contracts import artifacts
from rulka.contracts.actions import FORWARD
from rulka.contracts.artifacts import ArtifactError, load_artifact
from tests.tasks.test_evaluate import save_driver


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an agent and what was exported of it, after an export that was killed."""
    folder = tmp_path_factory.mktemp("exported")
    save_driver(folder / "agent", "agent", "ppo", FORWARD)
    (folder / "hub" / ".new-killed").mkdir(parents=True)
    export_agent(folder / "agent", folder / "hub")
    return folder


@pytest.fixture
def hub(tmp_path: Path, exported: Path) -> Path:
    """One that a test may damage, beside its agent."""
    shutil.copytree(exported / "agent", tmp_path / "agent")
    return shutil.copytree(exported / "hub", tmp_path / "hub")


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes metadata the way a careful other program would: checksum included."""
    content = json.loads(file.read_text())
    change(content)
    content["meta_sha256"] = artifacts._meta_hash(content)
    file.write_text(json.dumps(content))


def test_the_files_are_those_of_the_layout(hub: Path) -> None:
    assert {path.name for path in hub.iterdir()} == {"config.json", "model.safetensors"}
    config = json.loads((hub / "config.json").read_text())
    assert config["model_type"] == "rulka"
    assert config["config"]["encoder"]["kind"] == "conv"
    assert config["config"]["network"]["fusion"] == {"kind": "concat"}
    with safetensors.safe_open(hub / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
        assert "policy_head.weight" in weights.keys()  # noqa: SIM118


def test_what_is_read_is_what_was_written(exported: Path, tmp_path: Path) -> None:
    import_agent(exported / "hub", tmp_path / "again")
    before, after = load_artifact(exported / "agent", "agent"), load_artifact(tmp_path / "again", "agent")
    assert (after.config, after.provenance, after.actions) == (before.config, before.provenance, before.actions)
    assert after.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.update(torch_dtype="float32"), "the set of fields is .*torch_dtype"),
        (lambda config: config.pop("actions"), "the set of fields is"),
        (lambda config: config.update(kind="encoder"), "kind is 'encoder', expected 'agent or policy'"),
        (lambda config: config.update(schema_version=1), "schema_version is 1, expected 4"),
        (lambda config: config.update(environment="Pole-v1"), "environment is 'Pole-v1', expected 'races'"),
        (lambda config: config["observation"].update(float_layout="0"), "observation.float_layout is '0', expected"),
        (lambda config: config["config"].update(algorithm="sarsa"), "names no known algorithm, but 'sarsa'"),
        (lambda config: config["config"]["encoder"].update(kind="eye"), "do not make a network: .*'eye'"),
        (lambda config: config["config"]["encoder"].update(stride=2), "do not make a network: .*stride"),
        (lambda config: config["config"]["network"]["fusion"].update(kind="glue"), "do not make a network: .*'glue'"),
        (lambda config: config["config"]["network"].update(depth=1), "do not make a network: .*depth"),
        (lambda config: config["config"]["network"].update(float_hidden=9), "do not make a network: .*float_head.0"),
    ],
)
def test_what_is_not_known_is_named(
    hub: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(hub / "config.json", change)
    with pytest.raises(ArtifactError, match=rf"(?s){message}") as raised:
        import_agent(hub, tmp_path / "again")
    assert "hub cannot be used" in str(raised.value)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_missing_or_damaged_is_named(hub: Path, tmp_path: Path, name: str) -> None:
    file = hub / name
    file.write_bytes(b"{")
    with pytest.raises(ArtifactError, match=rf"{name} (cannot be read|is damaged)"):
        import_agent(hub, tmp_path / "again")
    file.unlink()
    with pytest.raises(ArtifactError, match=rf"{name} (is missing|cannot be read: .*No such file)"):
        import_agent(hub, tmp_path / "again")


def test_nothing_is_written_over(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="hub is not empty"):
        export_agent(tmp_path / "agent", hub)
    with pytest.raises(ArtifactError, match="agent is there already and is not written over"):
        import_agent(hub, tmp_path / "agent")
