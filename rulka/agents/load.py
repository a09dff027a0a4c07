"""Turns an artifact into a driver: the only path from weights on disk to actions outside of training.

Dimensions: N cars, L frames seen at once, H x W pixels, F floats, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.actor_critic import AHEAD_HEADS
from rulka.agents.algorithms import CLONED_SHAPES, actor_class, label_of
from rulka.agents.params import ALGORITHMS
from rulka.agents.shared.acting import choose_by_policy, draw_by_policy
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.spec import Choose
from rulka.contracts.actions import ActionTable, action_table
from rulka.contracts.artifacts import Artifact, ArtifactError, check_contracts, described, load_artifact
from rulka.machine.device import CPU, upload

CLONING = "cloning"
"""Stands for the algorithm of a cloned policy."""
DRIVING_KINDS = ("agent", "policy")
SHIPPED, SHIPPED_AGENT = "shipped", Path(__file__).parents[1] / "shipped"
"""Name and folder of the driver that comes with the package: a cloned policy for roads that it has never seen, see
docs/levels.md."""


class GreedyPolicy:
    """Greedy policy in float32, so that a race can be repeated exactly.

    Attributes:
        algorithm: that trained it, or "cloning".
        label: display name of the algorithm.
        observation: observation parameters.
        actions: action table.
        network: with the trained weights.
        choose: greedy decision function, on tensors.
        make_draw: makes a sampling decision function from a generator; None if its network gives no probabilities.
    """

    def __init__(self, algorithm: str, artifact: Artifact, choice: _Choice, device: torch.device) -> None:
        self.algorithm, self.label = algorithm, label_of(algorithm)
        self.observation = artifact.observation.params()
        self.actions = artifact.table
        self.network, self.choose, self.make_draw = choice
        self._device = device

    def __call__(self, image: NDArray[np.uint8], floats: NDArray[np.float32], choose: Choose | None = None) -> NDArray:
        """Maps images [N, L, H, W] and raw floats [N, F] to N decisions; see `rulka.evaluation.race.Policy`.

        Args:
            image: of N cars.
            floats: of the same cars.
            choose: decision function that replaces the attribute `choose`.
        """
        with torch.inference_mode():
            seen = upload((torch.from_numpy(image), torch.from_numpy(floats)), self._device)
            return (choose or self.choose)(*seen).cpu().numpy()


def load_policy(
    folder: Path,
    *,
    actions: ActionTable | None = None,
    device: torch.device = CPU,
) -> GreedyPolicy:
    """Reads an agent or a cloned policy.

    Args:
        folder: an artifact of a kind in `DRIVING_KINDS`.
        actions: required action table; chunks of its actions and continuous ones match if decisions have the same
            length, however often they are repeated. None accepts any.
        device: of the network.

    Raises:
        ArtifactError: if the artifact is damaged, of another kind, or made for other actions.
    """
    artifact = load_artifact(folder, DRIVING_KINDS)
    if actions is not None:
        check_contracts(folder, described(artifact), actions=_as_decided(actions, artifact.table))
    return driver_of(artifact, folder, device)


def driver_of(artifact: Artifact, folder: Path, device: torch.device = CPU) -> GreedyPolicy:
    """Builds the driver of an artifact of a kind in `DRIVING_KINDS`, on a device; error messages name the folder.

    Raises:
        ArtifactError: if config and weights do not make a network.
    """
    algorithm = CLONING if artifact.kind == "policy" else artifact.config.get("algorithm")
    if algorithm != CLONING and algorithm not in ALGORITHMS:
        message = f"{folder.as_posix()} cannot be used: its config names no known algorithm, but {algorithm!r}"
        raise ArtifactError(message)
    try:
        choice = _choice(artifact, device)
    except (KeyError, ValueError, RuntimeError) as error:
        message = f"{folder.as_posix()} cannot be used: config and weights do not make a network: {error}"
        raise ArtifactError(message) from error
    return GreedyPolicy(str(algorithm), artifact, choice, device)


def _as_decided(actions: ActionTable, own: ActionTable) -> ActionTable:
    """Returns the actions, divided over a decision as in `own`; unchanged if the ticks do not divide so."""
    try:
        ticks = action_table(actions.decision_ticks, own.parts).ticks_per_action
    except ValueError:
        return actions
    return replace(own, controls=actions.controls, ticks_per_action=ticks)


_Choice = tuple[nn.Module, Choose, Callable[[torch.Generator], Choose] | None]


def _choice(artifact: Artifact, device: torch.device) -> _Choice:
    """Builds an artifact's network on a device; returns it with its greedy and its sampling decision function."""
    sizes, tensors = NetworkParams.model_validate(artifact.config["network"]), artifact.tensors
    if artifact.kind == "policy":
        build, choose, draw = CLONED_SHAPES[artifact.config["shape"]], choose_by_policy, draw_by_policy
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(AHEAD_HEADS)}
    else:
        actor = actor_class(artifact.config["algorithm"])
        build, choose, draw = actor.build_network, actor.greedy_choice, actor.make_draw
    seen = artifact.observation.params(), artifact.encoder
    network: Any = build(*seen, sizes, artifact.normalisation, artifact.actions.space.num_outputs)
    network.load_state_dict(tensors)
    network.eval().to(device)

    def as_given(decide: Choose) -> Choose:
        """Returns decisions [N, K] as users know them: [N] if each is a single discrete action."""
        return lambda image, floats: decide(image, floats).view(-1, *artifact.actions.decision_shape)

    greedy = as_given(choose(network, artifact, device))
    return network, greedy, None if draw is None else lambda generator: as_given(draw(network, artifact, generator))
