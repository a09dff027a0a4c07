"""What encoders, policies and agents say of their making; who is promoted. It imports torch, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rulka.artifacts import META_FILE, read_meta
from rulka.dashboard.asking import Answer, ask
from rulka.dashboard.origins import HASH_DIGITS
from rulka.folders import AGENT, AGENT_INIT, COMPARED, ENCODER, KEPT_AGENTS, POLICY
from rulka.registry.kept import known_agents, promotions


class Making(NamedTuple):
    """What an artifact says of its making.

    Attributes:
        name: its folder.
        facts: label and text of each.
        parameters: as YAML.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    parameters: str


class Agents(NamedTuple):
    """Answers, each by itself: what one cannot say does not hide the others.

    Attributes:
        known: `rulka.registry.kept.known_agents`.
        promotions: `rulka.registry.kept.promotions`.
        makings: a `Making` for each artifact there is.
    """

    known: Answer
    promotions: Answer
    makings: list[Answer]


def agents() -> Agents:
    """Returns all there is to say of agents."""
    makings = [ask(lambda folder=folder: making(folder)) for folder in artifact_folders()]
    return Agents(ask(known_agents), ask(promotions), makings)


def artifact_folders() -> list[Path]:
    """Returns the folders of all encoders, policies and agents that there are."""
    folders = [ENCODER, POLICY, AGENT_INIT, AGENT, *sorted((AGENT / COMPARED).glob("*/"))]
    folders += sorted(folder for folder in KEPT_AGENTS.glob("*/") if not folder.name.startswith("."))
    return [folder for folder in folders if (folder / META_FILE).is_file()]


def making(folder: Path) -> Making:
    """Returns what the artifact in a folder says of its making.

    Raises:
        ArtifactError: if its metadata is damaged.
    """
    meta = read_meta(folder)
    origin = meta.get("provenance", {})
    training = origin.get("training", {})
    commit = origin.get("commit")
    state = {True: ", with changes that were not committed", False: "", None: ""}[origin.get("is_dirty")]
    inputs = origin.get("inputs_sha256", {})
    versions = origin.get("versions", {})
    found = {
        "Kind": " ".join(str(part) for part in (meta.get("kind"), meta.get("config", {}).get("algorithm")) if part),
        "Made": _when(origin.get("created", "")),
        "Commit": f"{commit[:10]}{state}" if commit else "",
        "Weights": _digest(meta.get("weights_sha256", "")),
        "Parameters": _digest(origin.get("params_sha256", "")),
        "Code": _digest(origin.get("code_sha256", "")),
        "Made from": ", ".join(f"{name} {_digest(digest)}" for name, digest in inputs.items()),
        "Training": _training(training),
        "Software": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }
    parameters = yaml.safe_dump(origin.get("parameters", {}), sort_keys=False) if origin.get("parameters") else ""
    return Making(folder.as_posix(), tuple((label, text) for label, text in found.items() if text), parameters)


def _digest(sha256: str) -> str:
    return sha256[:HASH_DIGITS]


def _when(created: str) -> str:
    return created[:16].replace("T", " ") + " UTC" if created else ""


def _training(training: Mapping[str, Any]) -> str:
    if "env_steps" not in training:
        return ""
    parts = [f"{training['env_steps']:,} environment steps"]
    if "minutes" in training:
        parts.append(f"{training['minutes']:.1f} minutes")
    if training.get("tracks"):
        parts.append(f"on {', '.join(training['tracks'])}")
    if training.get("device"):
        parts.append(f"on {training['device']}")
    return ", ".join(parts)
