"""Agents and cloned policies in folders as Hugging Face has them, and back: nothing is lost on the way.

    config.json                what `meta.json` of an artifact holds but its checksums, and the model type
    model.safetensors          the weights, by the same names

What is built from such a folder is what the folder says: encoder, fusion, sizes and normalisation are its own, whatever
params.yaml asks for. Names that are not known are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from rulka.agents.load import DRIVING_KINDS, driver_of
from rulka.artifacts import (
    DESCRIBED,
    RACES,
    SCHEMA_VERSION,
    Artifact,
    ArtifactError,
    artifact_of,
    check_contracts,
    described,
    load_artifact,
    save_artifact,
    weights_file,
)
from rulka.outputs import filled_folder, not_written

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
MODEL_TYPE = "rulka"
_HINT = "Export it again with `rulka agent export`."


def export_agent(agent: Path, out: Path) -> Artifact:
    """Writes an agent or a cloned policy in the layout of Hugging Face and returns it.

    Args:
        agent: folder of the artifact.
        out: folder to write, which must be empty or missing.

    Raises:
        ArtifactError: if the artifact cannot be used, or the folder is not empty.
        OutputError: if the folder cannot be written.
    """
    if out.is_dir() and any(out.iterdir()):
        message = f"{out.as_posix()} is not empty"
        raise ArtifactError(message, hint="Name a new folder, or remove this one first.")
    artifact = load_artifact(agent, DRIVING_KINDS)
    driver_of(artifact, agent)
    with filled_folder(out) as folder:
        save_pretrained(artifact, folder)
    return artifact


def import_agent(folder: Path, agent: Path) -> Artifact:
    """Reads a folder that `export_agent` wrote, writes it as an artifact, which must not exist yet, and returns that.

    Raises:
        ArtifactError: if it does, or if the folder is damaged or made for something else.
        OutputError: if the artifact cannot be written.
    """
    if agent.exists():
        message = f"{agent.as_posix()} is there already and is not written over"
        raise ArtifactError(message, hint="Name another folder with --agent.")
    artifact = from_pretrained(folder)
    try:
        save_artifact(agent, artifact)
    except OSError as error:
        raise not_written(agent, error) from error
    return artifact


def save_pretrained(artifact: Artifact, folder: Path) -> None:
    """Writes an artifact into an existing folder, in the layout of Hugging Face."""
    (folder / WEIGHTS_FILE).write_bytes(weights_file(artifact.tensors, format="pt"))
    config = {"model_type": MODEL_TYPE} | described(artifact)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def from_pretrained(folder: Path) -> Artifact:
    """Reads an artifact that drives from a folder in the layout of Hugging Face.

    Raises:
        ArtifactError: if a file is missing or damaged, was made for something else, or says what is not known here.
    """
    config = _read_config(folder)
    if config.pop("model_type", None) != MODEL_TYPE:
        raise _unusable(folder, f"model_type in {CONFIG_FILE} is not {MODEL_TYPE!r}")
    if differing := sorted(set(config) ^ DESCRIBED):
        what = "is not known here" if differing[0] in config else "is missing"
        raise _unusable(folder, f"{differing[0]} in {CONFIG_FILE} {what}")
    for name, expected in (("kind", DRIVING_KINDS), ("schema_version", (SCHEMA_VERSION,)), ("environment", (RACES,))):
        if config[name] not in expected:
            raise _unusable(
                folder, f"{name} in {CONFIG_FILE} is {config[name]!r}, not {' or '.join(map(str, expected))}"
            )
    try:
        check_contracts(folder, config)
        artifact = artifact_of(config, safetensors.torch.load_file(folder / WEIGHTS_FILE))
        _ = artifact.encoder
    except (OSError, SafetensorError) as error:
        raise _unusable(folder, f"{WEIGHTS_FILE} cannot be read: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable(folder, f"{CONFIG_FILE} describes no agent: {error!r}") from error
    read_again = described(artifact)
    for name, value in config.items():
        if read_again[name] != value:
            raise _unusable(folder, f"{name} in {CONFIG_FILE} says what is not known here")
    driver_of(artifact, folder)
    return artifact


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(folder, f"{CONFIG_FILE} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise _unusable(folder, f"{CONFIG_FILE} is no object")
    return content


def _unusable(folder: Path, why: str) -> ArtifactError:
    return ArtifactError(f"{folder.as_posix()} cannot be used: {why}", hint=_HINT)
