"""Artifacts: folders that hold the weights of a network and everything needed to trust them.

    weights.safetensors   named tensors
    meta.json             kind, schema version, environment, network config, observation and action contract,
                          normalisation, provenance with the resolved parameters, SHA-256 of the weights and of itself

Agents that race and agents of other environments share this format. An artifact is written into a temporary folder,
metadata last, and renamed into place, so that a folder with `meta.json` is complete. Loading checks everything; its
error names the field that differs. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import safetensors.torch
import torch
from pydantic import AfterValidator, BaseModel
from safetensors import SafetensorError

from models.encoders.config import ENCODER_CONFIG, EncoderConfig
from rulka.contracts.actions import ActionSpace, ActionTable
from rulka.contracts.observation import SCHEMA_VERSION as OBSERVATION_SCHEMA_VERSION
from rulka.contracts.observation import Normalisation, float_slices
from rulka.contracts.observation_params import (
    NUM_PREVIOUS_ACTIONS,
    NUM_WAYPOINTS,
    FramesAs,
    ObservationParams,
    Part,
)
from rulka.contracts.stored import StoredFloat, checked, plain_json
from rulka.machine.disk import check_readable
from rulka.machine.errors import UserError
from rulka.stages.folders import KEPT_AGENTS
from rulka.stages.graph import remake
from rulka.stages.stage import output_folder

LARGEST_WEIGHT = 1e6
"""Limit on weights: no training produces larger ones, and products of such overflow."""
SCHEMA_VERSION = 4
"""Version of the folder format; loading refuses any other."""
RACES = "races"
"""Environment of all that the stages produce; for an agent trained elsewhere it is the environment's ID."""

WEIGHTS_FILE = "weights.safetensors"
META_FILE = "meta.json"


class Files(NamedTuple):
    """Names of the two files of an artifact."""

    weights: str = WEIGHTS_FILE
    meta: str = META_FILE


OWN_FILES = Files()
MODEL_TYPE = "rulka"
"""`model_type` in metadata, which tells transformers that it does not know the network."""
STAGE_OF_KIND = {"encoder": "pretrain", "policy": "clone", "agent_init": "transfer", "agent": "train"}
"""The stage that produces artifacts of a kind, for messages."""


class ArtifactError(UserError):
    """An artifact that is missing, damaged, or made for something else; the message names the differing field."""


@dataclass(frozen=True)
class ObservationContract:
    """Format of frames and floats.

    Attributes:
        schema_version: version of the observation's meaning.
        height: image height in pixels.
        width: image width in pixels.
        float_layout: hash of the names and places of all parts of the float vector.
    """

    schema_version: int
    height: int
    width: int
    float_layout: str


@dataclass(frozen=True)
class NetworkInputContract(ObservationContract):
    """The observation that a network was trained on.

    Attributes:
        frames: number of stacked frames.
        frames_as: how they reach the network.
        withheld: parts hidden from it.
        waypoints: number of waypoints that it sees; all in artifacts that do not tell.
        previous_actions: number of previous decisions that it sees, likewise.
    """

    frames: int
    frames_as: FramesAs
    withheld: tuple[Part, ...]
    waypoints: int = NUM_WAYPOINTS
    previous_actions: int = NUM_PREVIOUS_ACTIONS

    def params(self) -> ObservationParams:
        """Returns the same as observation parameters."""
        return ObservationParams(**{name: getattr(self, name) for name in ObservationParams.model_fields})


@dataclass(frozen=True)
class Artifact:
    """Weights with everything needed to use them.

    Attributes:
        kind: of the weights, a key of `STAGE_OF_KIND`.
        tensors: weights by name, on the CPU.
        config: plain JSON from which the network can be rebuilt; every kind has `encoder`.
        observation: input of the network.
        actions: meaning of its outputs.
        normalisation: turns raw observations into its inputs.
        provenance: plain JSON about the origin of the weights, see `rulka.stages.provenance`.
        environment: `RACES`, or the ID of a Gymnasium environment.
    """

    kind: str
    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]
    observation: NetworkInputContract
    actions: ActionTable | ActionSpace
    normalisation: Normalisation
    provenance: dict[str, Any] = field(default_factory=dict)
    environment: str = RACES

    @property
    def table(self) -> ActionTable:
        """The action table of an artifact that races."""
        assert isinstance(self.actions, ActionTable)
        return self.actions

    @property
    def encoder(self) -> EncoderConfig:
        """Config from which the encoder can be built; a backbone's holds more than the parameters do."""
        return ENCODER_CONFIG.validate_python(self.config["encoder"])


class _Named(BaseModel):
    """Config keys that are read by name; the network's class checks the rest."""

    algorithm: str = ""
    shape: str = ""


class _Check(BaseModel):
    finish_rate: StoredFloat | None = None
    mean_time_s: StoredFloat | None = None


class _Training(BaseModel):
    tracks: list[str] = []
    last_check: _Check = _Check()
    record_s: StoredFloat | None = None
    returns: list[StoredFloat] = []
    repeats: str = ""


class _Provenance(BaseModel):
    parameters: dict[str, dict[str, Any]] = {}
    params_sha256: str = ""
    inputs_sha256: dict[str, str] = {}
    training: _Training = _Training()


class _Meta(BaseModel):
    """Metadata besides schema version and own checksum; inner objects may have extra keys, which are not read here."""

    kind: str
    environment: str
    config: _Named
    observation: NetworkInputContract
    actions: ActionTable | ActionSpace
    normalisation: Annotated[dict[str, list[float]], AfterValidator(Normalisation.from_json)]
    provenance: _Provenance
    weights_sha256: str


_META_KEYS = {field.name for field in fields(Artifact)} - {"tensors"}
_META_KEYS |= {"model_type", "schema_version", "weights_sha256", "meta_sha256"}


def float_layout_hash(actions_per_decision: int = 1) -> str:
    """Returns 16 hex digits that change when any part of the float vector is renamed, moved or resized."""
    layout = [(name, part.start, part.stop) for name, part in float_slices(actions_per_decision).items()]
    return hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:16]


def observation_contract(observation: ObservationParams, actions_per_decision: int = 1) -> ObservationContract:
    """Returns this code version's contract for frames of the given size; that of recordings has K = 1."""
    layout = float_layout_hash(actions_per_decision)
    return ObservationContract(OBSERVATION_SCHEMA_VERSION, observation.height, observation.width, layout)


def network_input_contract(observation: ObservationParams, actions_per_decision: int = 1) -> NetworkInputContract:
    """Returns this code version's contract for networks with this observation that decide for K actions."""
    return NetworkInputContract(
        schema_version=OBSERVATION_SCHEMA_VERSION,
        float_layout=float_layout_hash(actions_per_decision),
        **dict(observation),
    )


def actions_to_json(actions: ActionTable | ActionSpace) -> dict[str, Any]:
    """Returns the action contract as plain JSON."""
    return json.loads(json.dumps(asdict(actions)))


def save_artifact(folder: Path, artifact: Artifact) -> None:
    """Writes an artifact to `folder`, replacing an old one only once everything is written."""
    with output_folder(folder) as temporary:
        write_artifact(temporary, artifact)


def write_artifact(folder: Path, artifact: Artifact, files: Files = OWN_FILES) -> None:
    """Writes weights and then metadata into an existing folder that the caller renames into place.

    For stages whose output holds more than the artifact, such as metrics and plots.
    """
    if artifact.kind not in STAGE_OF_KIND:
        raise ArtifactError(f"artifact kind {artifact.kind!r} is unknown; known are {sorted(STAGE_OF_KIND)}")
    # Cloned: the file format has no place for tensors that share memory or are in channels-last order.
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in artifact.tensors.items()}
    weights = safetensors.torch.save(own, {"format": "pt"})
    meta = described(artifact) | {"weights_sha256": hashlib.sha256(weights).hexdigest()}
    meta["meta_sha256"] = _meta_hash(meta)
    _write(folder / files.weights, weights)
    _write(folder / files.meta, json.dumps(meta, indent=1).encode())


def described(artifact: Artifact) -> dict[str, Any]:
    """Returns an artifact's metadata without checksums, as JSON reads it back."""
    content = {
        "model_type": MODEL_TYPE,
        "kind": artifact.kind,
        "schema_version": SCHEMA_VERSION,
        "environment": artifact.environment,
        "config": artifact.config,
        "observation": asdict(artifact.observation),
        "actions": actions_to_json(artifact.actions),
        "normalisation": artifact.normalisation.to_json(),
        "provenance": artifact.provenance,
    }
    return json.loads(json.dumps(content))  # as it will be read: a checksum must not see tuples or integer keys


def load_artifact(
    folder: Path,
    kind: str | tuple[str, ...],
    *,
    observation: ObservationParams | None = None,
    actions: ActionTable | None = None,
    encoder: EncoderConfig | None = None,
    environment: str | None = RACES,
    files: Files = OWN_FILES,
) -> Artifact:
    """Reads an artifact and checks that it is complete and fits its intended use.

    Args:
        folder: of the artifact.
        kind: the kind, or kinds, that the caller can use.
        observation: the one that it must have been trained on; None accepts any.
        actions: the action table that it must have been trained on; None accepts any.
        encoder: the encoder that it must have; None accepts any.
        environment: the one that it must act in; None accepts any, and the caller compares the contracts.
        files: names of its files.

    Raises:
        ArtifactError: if anything is missing, damaged or different; the message names it.
    """
    kinds = (kind,) if isinstance(kind, str) else kind
    meta = read_meta(folder, kind=kinds[0], file=files.meta)
    if meta["kind"] not in kinds:
        wanted = " or ".join(kinds)
        hint = f"Name a folder that holds one of kind {wanted}, such as data/{kinds[0]}."
        _refuse(folder, "kind", meta["kind"], wanted, hint)
    if environment is not None:
        if meta["environment"] != environment:
            hint = "`rulka env evaluate` lets it act in its own environment." if environment == RACES else ""
            _refuse(folder, "environment", meta["environment"], environment, hint)
        check_contracts(folder, meta, observation=observation, actions=actions)
    if encoder is not None:
        _compare(folder, "encoder", meta["config"].get("encoder"), encoder.model_dump(mode="json"), meta["kind"])
    typed = _Meta.model_validate(meta)
    return Artifact(
        kind=meta["kind"],
        tensors=_read_weights(folder / files.weights, meta),
        config=meta["config"],
        observation=typed.observation,
        actions=typed.actions,
        normalisation=Normalisation.from_json(meta["normalisation"]),
        provenance=meta["provenance"],
        environment=meta["environment"],
    )


def read_meta(folder: Path, *, kind: str = "", file: str = META_FILE) -> dict[str, Any]:
    """Reads and checks the metadata without reading the weights.

    Args:
        folder: of the artifact.
        kind: expected kind, for messages if the file does not tell; empty for any.
        file: name of the metadata file.

    Raises:
        ArtifactError: if it is missing, damaged or of another schema version.
    """
    path, hint = folder / file, _hint(folder, kind)
    what = kind or "artifact"
    meta = plain_json(path, what, error=ArtifactError, hint=hint)
    if not isinstance(meta, dict) or "kind" not in meta:
        raise ArtifactError(f"{folder.as_posix()} holds no {what}: {path.name} is of something else", hint=hint)
    if meta.get("schema_version") != SCHEMA_VERSION:
        found = meta.get("schema_version")
        _refuse(folder, "schema_version", found, SCHEMA_VERSION, "Make the artifact again with this version.")
    if set(meta) != _META_KEYS:
        _refuse(folder, "the set of fields", sorted(meta), sorted(_META_KEYS), hint)
    if meta["meta_sha256"] != _meta_hash(meta):
        message = f"{path.as_posix()} was changed or damaged after it was written: its checksum does not match"
        raise ArtifactError(message, hint=hint)
    actions = actions_to_json(checked(meta, _Meta, path.as_posix(), ArtifactError, hint).actions)
    if meta["actions"] != actions:  # parsing dropped something
        _refuse(folder, "actions", meta["actions"], actions, hint)
    return meta


def check_contracts(
    folder: Path,
    meta: Mapping[str, Any],
    *,
    observation: ObservationParams | None = None,
    actions: ActionTable | None = None,
) -> None:
    """Compares the stored racing contracts with this version of the code and with the caller's requirements.

    Raises:
        ArtifactError: if something differs; the message names the folder and the field.
    """
    if "controls" not in meta["actions"]:
        _refuse(folder, "actions", meta["actions"], "those of a car", _hint(folder, meta["kind"]))
    layout = float_layout_hash(meta["actions"]["actions_per_decision"])
    expected: dict[str, Any] = {"schema_version": OBSERVATION_SCHEMA_VERSION, "float_layout": layout}
    if observation is not None:
        expected |= observation.model_dump(mode="json")
    all_seen = {"waypoints": NUM_WAYPOINTS, "previous_actions": NUM_PREVIOUS_ACTIONS}
    _compare(folder, "observation", all_seen | meta["observation"], expected, meta["kind"])
    if actions is not None:
        _compare(folder, "actions", meta["actions"], actions_to_json(actions), meta["kind"])


def _compare(folder: Path, what: str, stored: Mapping[str, Any] | None, expected: Mapping[str, Any], kind: str) -> None:
    for name, value in expected.items():
        if (found := (stored or {}).get(name)) != value:
            _refuse(folder, f"{what}.{name}", found, value, _hint(folder, kind))


def _read_weights(path: Path, meta: dict[str, Any]) -> dict[str, torch.Tensor]:
    hint = _hint(path.parent, meta["kind"])
    try:
        weights = check_readable(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path.as_posix()} cannot be read: {error.strerror}", hint=hint) from error
    if hashlib.sha256(weights).hexdigest() != meta["weights_sha256"]:
        message = f"{path.as_posix()} is damaged: its SHA-256 is not the weights_sha256 in the metadata"
        raise ArtifactError(message, hint=hint)
    try:
        loaded = safetensors.torch.load(weights)
    except SafetensorError as error:
        raise ArtifactError(f"{path.as_posix()} is no safetensors file: {error}", hint=hint) from error
    tensors = {name: loaded[name] for name in sorted(loaded)}  # the library returns them in any order
    # Half precision only saves space, as of the shipped driver's weights.
    tensors = {name: each.float() if each.dtype == torch.float16 else each for name, each in tensors.items()}
    for name, tensor in tensors.items():
        is_weight = tensor.is_floating_point() and bool((tensor.abs() <= LARGEST_WEIGHT).all())
        if tensor.ndim and not is_weight:  # a scalar is a batch counter
            message = f"{path.as_posix()} cannot be used: {name} holds integers, infinite or huge values"
            raise ArtifactError(message, hint=hint)
    return tensors


def _meta_hash(meta: Mapping[str, Any]) -> str:
    content = {name: value for name, value in meta.items() if name != "meta_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _hint(folder: Path, kind: str) -> str:
    """Returns advice on restoring an artifact; `kind` is empty if it is unknown."""
    stage = STAGE_OF_KIND.get(kind or folder.name)
    if folder.parent == KEPT_AGENTS:
        return f"Bring it back with `dvc checkout {KEPT_AGENTS}.dvc`, if DVC has it, or from a copy."
    if stage is None or (kind or folder.name) not in folder.parts:  # a copy elsewhere, which DVC may not track
        return "Take it from where it came from, or make it again."
    return remake(stage)


def _refuse(folder: Path, name: str, found: object, expected: object, hint: str) -> None:
    raise ArtifactError(f"{folder.as_posix()} cannot be used: {name} is {found!r}, expected {expected!r}", hint=hint)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
