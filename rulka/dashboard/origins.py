"""Where results come from: what each stage read and made, by DVC's record; each agent's making, by its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rulka.artifacts import META_FILE, read_meta
from rulka.folders import AGENT, AGENT_INIT, COMPARED, ENCODER, KEPT_AGENTS, POLICY
from rulka.graph import CODE_FOLDERS, PARAMS_FILE, read_graph, read_lock

HASH_DIGITS = 8


class Used(NamedTuple):
    """A file or folder that a stage read or wrote, as DVC recorded it.

    Attributes:
        path: from the root of the project.
        digest: beginning of its MD5.
        size: bytes.
        maker: the stage that writes it; empty where none does.
        is_same: whether it is what that stage made last.
    """

    path: str
    digest: str
    size: int
    maker: str
    is_same: bool


class Link(NamedTuple):
    """One stage in the chain of results.

    Attributes:
        stage: its name.
        read: data that went in.
        made: what came out.
        sections: names of the parameter sections that it used.
        num_code: files and folders of code that decide it.
    """

    stage: str
    read: tuple[Used, ...]
    made: tuple[Used, ...]
    sections: tuple[str, ...]
    num_code: int


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


def chain() -> list[Link]:
    """Returns what DVC has recorded of each stage that ran, in the order of `dvc.yaml`.

    Raises:
        UserError: if there is no `dvc.yaml`, or `dvc.lock` is damaged.
    """
    lock = read_lock()
    made = {out["path"]: (name, out.get("md5", "")) for name, entry in lock.items() for out in entry.get("outs", ())}
    return [_link(name, lock[name], made) for name in read_graph() if name in lock]


def _link(stage: str, entry: Mapping[str, Any], made: Mapping[str, tuple[str, str]]) -> Link:
    deps = entry.get("deps", ())
    data = [dep for dep in deps if dep["path"].split("/")[0] not in CODE_FOLDERS]
    sections = entry.get("params", {}).get(PARAMS_FILE.as_posix(), {})
    return Link(
        stage,
        tuple(_used(dep, made) for dep in data),
        tuple(_used(out, {}) for out in entry.get("outs", ())),
        tuple(sections),
        len(deps) - len(data),
    )


def _used(entry: Mapping[str, Any], made: Mapping[str, tuple[str, str]]) -> Used:
    digest = str(entry.get("md5", ""))
    maker, last = made.get(entry["path"], ("", digest))
    return Used(entry["path"], digest[:HASH_DIGITS], int(entry.get("size", 0)), maker, digest == last)


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
