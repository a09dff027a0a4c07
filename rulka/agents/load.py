"""Turns an artifact into a driver: the one way from weights on disk to actions outside of training.

Dimensions: N cars, H x W pixels, F floats, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from models.encoders.config import ENCODER_CONFIG, EncoderConfig
from models.iqn import IqnNetwork, fixed_fractions
from models.iqn_acting import PreparedAdvantages, can_prepare
from rulka.actions import ActionTable
from rulka.agents.action_blocks import by_place
from rulka.agents.networks import build_agent_network, build_clone_policy
from rulka.artifacts import PER_DECISION, Artifact, ArtifactError, load_artifact, read_meta
from rulka.device import CPU, upload
from rulka.params import Algorithm, NetworkParams, ObservationParams

Preference = Callable[[Tensor, Tensor], Tensor]
"""Maps images [N, 1, H, W] uint8 and raw floats [N, F] to a number for every action [N, A]; the largest is taken.

Of blocks of K actions [N, K A]; the largest of each place is taken."""

DRIVING_KINDS = ("agent", "policy")


class GreedyPolicy:
    """Always takes the action its network prefers, in float32, so that a race can be repeated exactly.

    Attributes:
        algorithm: "ppo", "iqn" or "cloning".
        observation: image size that it sees.
        actions: what its actions mean.
    """

    def __init__(self, algorithm: str, artifact: Artifact, preference: Preference, device: torch.device) -> None:
        self.algorithm = algorithm
        self.observation = ObservationParams(height=artifact.observation.height, width=artifact.observation.width)
        self.actions: ActionTable = artifact.actions
        self._preference, self._device = preference, device

    def __call__(self, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> NDArray[np.int64]:
        """Maps images [N, 1, H, W] and raw floats [N, F] to action indices [N], or blocks of them [N, K]."""
        with torch.inference_mode():
            seen = upload((torch.from_numpy(image), torch.from_numpy(floats)), self._device)
            preference = self._preference(*seen)
            return by_place(preference, self.actions.decision_shape).argmax(dim=-1).cpu().numpy()


def load_policy(
    folder: Path,
    *,
    observation: ObservationParams | None = None,
    actions: ActionTable | None = None,
    device: torch.device = CPU,
) -> GreedyPolicy:
    """Reads an agent or a cloned policy.

    Args:
        folder: an artifact of a kind in `DRIVING_KINDS`.
        observation: the image size it must see; None takes any.
        actions: the action table it must have been trained on, or blocks of its actions in decisions of the same
            length; None takes any.
        device: where its network runs.

    Raises:
        ArtifactError: if the artifact is damaged, of another kind, or made for other observations or actions.
    """
    expected = None if actions is None else _as_decided(actions, read_meta(folder))
    artifact = load_artifact(folder, DRIVING_KINDS, observation=observation, actions=expected)
    algorithm = "cloning" if artifact.kind == "policy" else artifact.config.get("algorithm")
    build = {"cloning": _cloned_preference, "ppo": _ppo_preference, "iqn": _iqn_preference}.get(str(algorithm))
    if build is None:
        message = f"{folder.as_posix()} cannot be used: its config names no known algorithm, but {algorithm!r}"
        raise ArtifactError(message)
    try:
        return GreedyPolicy(str(algorithm), artifact, build(artifact, device), device)
    except (KeyError, ValidationError, RuntimeError) as error:
        message = f"{folder.as_posix()} cannot be used: config and weights do not make a network: {error}"
        raise ArtifactError(message) from error


def _as_decided(actions: ActionTable, meta: Mapping[str, Any]) -> ActionTable:
    """Returns the actions as an artifact divides decisions into them; unchanged where these cannot be divided so."""
    count = meta["actions"].get(PER_DECISION, 1)
    ticks, rest = divmod(actions.ticks_per_action * actions.actions_per_decision, count)
    return actions if rest else ActionTable(actions.controls, ticks, count)


def _cloned_preference(artifact: Artifact, device: torch.device) -> Preference:
    observation, encoder, network = _sizes(artifact)
    policy = build_clone_policy(observation, encoder, network, artifact.normalisation, artifact.actions.num_actions)
    policy.load_state_dict(artifact.tensors)
    return policy.eval().to(device)


def _ppo_preference(artifact: Artifact, device: torch.device) -> Preference:
    network = _agent_network("ppo", artifact, device)
    return lambda image, floats: network(image, floats).logits


def _iqn_preference(artifact: Artifact, device: torch.device) -> Preference:
    network = _agent_network("iqn", artifact, device)
    tau = fixed_fractions(artifact.config["iqn"]["num_quantiles_acting"]).to(device)
    if can_prepare(network):
        return PreparedAdvantages(network, tau, torch.float32)
    return lambda image, floats: network.advantages(image, floats, tau)


def _agent_network(algorithm: Algorithm, artifact: Artifact, device: torch.device) -> Any:
    observation, encoder, sizes = _sizes(artifact)
    num_outputs = artifact.actions.num_outputs
    network = build_agent_network(algorithm, observation, encoder, sizes, artifact.normalisation, num_outputs)
    assert isinstance(network, IqnNetwork) == (algorithm == "iqn")
    network.load_state_dict(artifact.tensors)
    return network.eval().to(device)


def _sizes(artifact: Artifact) -> tuple[ObservationParams, EncoderConfig, NetworkParams]:
    contract, config = artifact.observation, artifact.config
    observation = ObservationParams(height=contract.height, width=contract.width)
    encoder = ENCODER_CONFIG.validate_python(config["encoder"])
    return observation, encoder, NetworkParams.model_validate(config["network"])
