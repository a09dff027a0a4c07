"""An agent as an ONNX file, as it acts: raw images and floats of N cars in, their decisions out.

The normalisation and the greedy choice are in the graph. What it sees and what its decisions do stand in the metadata,
as an artifact has them: who runs the file takes each decision `actions.repeats` times, each of its actions for
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
from rulka.artifacts import Artifact, ArtifactError, described, load_artifact
from rulka.errors import UserError
from rulka.outputs import new_file

NUM_COMPARED = 1000
"""Observations on which the file has to decide as the agent does."""
_TOLERANCE = 1e-4
"""Of decisions that are numbers, half of whose intervals is 1 at most."""


class _Deciding(nn.Module):
    """What decides, as a module."""

    def __init__(self, policy: GreedyPolicy) -> None:
        super().__init__()
        self.network, self._choose = policy.network, policy.choose  # what is not named counts as a constant

    def forward(self, image: Tensor, floats: Tensor) -> Tensor:
        return self._choose(image, floats)


def export_onnx(agent: Path, out: Path) -> Artifact:
    """Writes an agent or a cloned policy as an ONNX file, if it decides as that does, and returns the artifact.

    Args:
        agent: folder of the artifact.
        out: file to write.

    Raises:
        UserError: if `onnxscript` is not installed, by which torch exports.
        ArtifactError: if the artifact cannot be used, or the file decides otherwise.
        OutputError: if the file cannot be written.
    """
    if find_spec("onnxscript") is None:
        message = "torch exports to ONNX by onnxscript, which is not installed"
        raise UserError(message, hint="pip install 'rulka[onnx]'")
    artifact = load_artifact(agent, DRIVING_KINDS)
    policy = driver_of(artifact, agent)
    image, floats = _observations(artifact)
    with new_file(out) as beside:
        _write(beside, policy, image[:3], floats[:3], artifact)
        session = InferenceSession(beside, providers=["CPUExecutionProvider"])
        decided = np.asarray(session.run(None, {"image": image, "floats": floats})[0])
        expected = policy(image, floats)
        if decided.shape != expected.shape or not np.allclose(decided, expected, rtol=0.0, atol=_TOLERANCE):
            message = f"{out} would decide otherwise than {agent.as_posix()} does: it is not written"
            raise ArtifactError(message)
    return artifact


def _observations(artifact: Artifact) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns images of noise, and floats as far from their means as the normalisation says."""
    rng, normalisation = np.random.default_rng(0), artifact.normalisation
    shape = NUM_COMPARED, *artifact.observation.params().image_shape
    spread = rng.standard_normal((NUM_COMPARED, len(normalisation.mean)))
    floats = np.asarray(normalisation.mean) + np.asarray(normalisation.std) * spread
    return rng.integers(0, 256, shape, np.uint8), floats.astype(np.float32)


def _write(
    file: Path, policy: GreedyPolicy, image: NDArray[np.uint8], floats: NDArray[np.float32], artifact: Artifact
) -> None:
    """Writes the graph for any number of cars, with what an artifact says of them in its metadata."""
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
