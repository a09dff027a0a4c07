"""docs/library.md: its blocks run, one after another, and it names what there is."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from rulka.agents.onnx_file import export_onnx
from rulka.folders import AGENT
from tests.docs.test_pages import ROOT

PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("with_onnx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_block_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, with_onnx: bool) -> None:
    monkeypatch.chdir(folder)
    (folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    if with_onnx:
        export_onnx(AGENT, Path("agent.onnx"))  # as the command does
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = "\n".join(block for block in blocks if with_onnx or "onnxruntime" not in block)
    names: dict[str, object] = {}
    exec(compile(code, "library.md", "exec"), names)
    assert (folder / "oval.png").stat().st_size > 10_000
    plt.close("all")
    assert not with_onnx or names["decision"].tolist() == [names["action"]]  # pyright: ignore
    assert names["features"].shape == (1, names["encoder"].num_features)  # pyright: ignore
