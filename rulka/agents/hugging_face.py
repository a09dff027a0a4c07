"""Exports agents and cloned policies to Hugging Face folders, and imports them.

Such a folder is an artifact with other file names: `config.json` holds the metadata, `model.safetensors` the weights.
The folder alone defines the network: encoder, fusion, sizes and normalisation are its own, whatever params.yaml says.
A damaged, changed or unknown folder is refused.
"""

from __future__ import annotations

from pathlib import Path

from rulka.agents.load import DRIVING_KINDS, driver_of
from rulka.contracts.artifacts import Artifact, ArtifactError, Files, load_artifact, save_artifact, write_artifact
from rulka.stages.outputs import filled_folder, has_content, not_written

HUB_FILES = Files(weights="model.safetensors", meta="config.json")


def export_agent(agent: Path, out: Path) -> Artifact:
    """Writes an agent or a cloned policy in Hugging Face's layout and returns the artifact.

    Args:
        agent: folder of the artifact.
        out: folder to write, which must be empty or missing.

    Raises:
        ArtifactError: if the artifact cannot be used, or the folder is not empty.
        UserError: if the folder cannot be written.
    """
    if has_content(out):
        raise ArtifactError(f"{out.as_posix()} is not empty", hint="Name a new folder, or remove this one first.")
    artifact = load_artifact(agent, DRIVING_KINDS)
    driver_of(artifact, agent)
    with filled_folder(out) as folder:
        write_artifact(folder, artifact, HUB_FILES)
    return artifact


def import_agent(folder: Path, agent: Path) -> Artifact:
    """Converts a folder of `export_agent` to an artifact in the folder `agent`, and returns it.

    Raises:
        ArtifactError: if `agent` already exists, or `folder` is damaged or made for something else.
        UserError: if the artifact cannot be written.
    """
    if agent.exists():
        message = f"{agent.as_posix()} is there already and is not written over"
        raise ArtifactError(message, hint="Name another folder with --agent.")
    artifact = load_artifact(folder, DRIVING_KINDS, files=HUB_FILES)
    driver_of(artifact, folder)
    try:
        save_artifact(agent, artifact)
    except OSError as error:
        raise not_written(agent, error) from error
    return artifact
