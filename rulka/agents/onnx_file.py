"""Exports an agent to ONNX: raw images and floats of N cars in, greedy decisions out.

The graph includes the normalisation and the greedy choice. The metadata describe observation and actions, as in an
artifact: the caller repeats each decision `actions.repeats` times, and holds each of its actions for
`actions.ticks_per_action` ticks of 10 ms.
"""

from __future__ import annotations

import io
import json
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from torch import Tensor, nn

from rulka.agents.load import DRIVING_KINDS, GreedyPolicy, driver_of
from rulka.contracts.artifacts import Artifact, ArtifactError, described, load_artifact
from rulka.machine.errors import UserError
from rulka.stages.outputs import new_file

NUM_COMPARED = 1000
"""Observations on which the file's decisions must match the agent's."""
_TOLERANCE = 1e-4
"""Absolute tolerance of continuous decisions, whose intervals have half-widths of at most 1."""


class _Deciding(nn.Module):
    """A policy's decision function as a module."""

    def __init__(self, policy: GreedyPolicy) -> None:
        super().__init__()
        self.network, self._choose = policy.network, policy.choose  # weights that are not registered become constants

    def forward(self, image: Tensor, floats: Tensor) -> Tensor:
        return self._choose(image, floats)


def export_onnx(agent: Path, out: Path) -> Artifact:
    """Writes an agent or a cloned policy as an ONNX file, if their decisions match, and returns the artifact.

    Args:
        agent: folder of the artifact.
        out: file to write.

    Raises:
        UserError: if `onnxscript`, which torch needs for the export, is not installed, or if the file cannot be
            written.
        ArtifactError: if the artifact cannot be used, or the decisions of the file differ.
    """
    if find_spec("onnxscript") is None:
        raise UserError("torch exports to ONNX by onnxscript, which is not installed", hint="pip install 'rulka[onnx]'")
    artifact = load_artifact(agent, DRIVING_KINDS)
    policy = driver_of(artifact, agent)
    image, floats = _observations(artifact)
    with new_file(out) as beside:
        _write(beside, policy, image[:3], floats[:3], artifact)
        session = InferenceSession(beside, providers=["CPUExecutionProvider"])
        decided = np.asarray(session.run(None, {"image": image, "floats": floats})[0])
        expected = policy(image, floats)
        if decided.shape != expected.shape or not np.allclose(decided, expected, rtol=0.0, atol=_TOLERANCE):
            raise ArtifactError(f"{out} would decide otherwise than {agent.as_posix()} does: it is not written")
    return artifact


def _observations(artifact: Artifact) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns noise images, and Gaussian floats with the means and standard deviations of the normalisation."""
    rng, normalisation = np.random.default_rng(0), artifact.normalisation
    shape = NUM_COMPARED, *artifact.observation.params().image_shape
    spread = rng.standard_normal((NUM_COMPARED, len(normalisation.mean)))
    floats = np.asarray(normalisation.mean) + np.asarray(normalisation.std) * spread
    return rng.integers(0, 256, shape, np.uint8), floats.astype(np.float32)


def _write(
    file: Path, policy: GreedyPolicy, image: NDArray[np.uint8], floats: NDArray[np.float32], artifact: Artifact
) -> None:
    """Writes the graph for any number of cars, with the artifact's description in its metadata."""
    cars = {0: "N"}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Deciding(policy).eval(),
            (torch.from_numpy(image), torch.from_numpy(floats)),
            dynamo=True,
            input_names=["image", "floats"],
            output_names=["decision"],
            dynamic_shapes=(cars, cars),
            verbose=False,
        )
    assert program is not None
    meta = described(artifact)
    told = {name: json.dumps(meta[name]) for name in ("environment", "observation", "actions", "config")}
    program.model.metadata_props.update(told)
    program.save(file)
