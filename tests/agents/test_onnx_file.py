"""Agents as ONNX files: they decide as the agents do, and what would not is not written."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from rulka.agents import onnx_file
from rulka.agents.load import load_policy
from rulka.agents.onnx_file import export_onnx
from rulka.contracts.actions import FORWARD
from rulka.contracts.artifacts import ArtifactError, read_meta
from rulka.machine.errors import UserError
from tests.tasks.test_evaluate import save_driver


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("policy", ""),
        pytest.param("agent", "ppo", marks=pytest.mark.slow),
        pytest.param("agent", "iqn", marks=pytest.mark.slow),
    ],
)
def test_a_file_decides_as_the_agent_does(tmp_path: Path, kind: str, algorithm: str) -> None:
    save_driver(tmp_path / "agent", kind, algorithm, FORWARD)
    export_onnx(tmp_path / "agent", tmp_path / "a.onnx")
    told = {entry.key: json.loads(entry.value) for entry in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert told["actions"] == read_meta(tmp_path / "agent")["actions"]
    session, rng = InferenceSession(tmp_path / "a.onnx"), np.random.default_rng(7)
    assert {each.name: each.type for each in session.get_inputs()} == {
        "image": "tensor(uint8)",
        "floats": "tensor(float)",
    }
    for num_cars in (1, 9):
        image = rng.integers(0, 256, (num_cars, 1, 64, 64), np.uint8)
        floats = rng.normal(size=(num_cars, 184)).astype(np.float32)
        (decided,) = session.run(None, {"image": image, "floats": floats})
        np.testing.assert_array_equal(decided, load_policy(tmp_path / "agent")(image, floats))


def test_one_that_decides_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_driver(tmp_path / "other", "policy", "", 5)
    save_driver(tmp_path / "agent", "policy", "", FORWARD)
    other, write = load_policy(tmp_path / "other"), onnx_file._write
    monkeypatch.setattr(onnx_file, "_write", lambda file, _, *rest: write(file, other, *rest))
    with pytest.raises(ArtifactError, match=r"a\.onnx would decide otherwise than .*agent does: it is not written"):
        export_onnx(tmp_path / "agent", tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()


def test_without_onnxscript_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    with pytest.raises(UserError, match="onnxscript, which is not installed") as missing:
        export_onnx(tmp_path / "agent", tmp_path / "a.onnx")
    assert missing.value.hint == "pip install 'rulka[onnx]'"
