"""docs/library.md: its blocks run, one after another, and it names what there is."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import rulka
from rulka.agents.onnx_file import export_onnx
from rulka.folders import AGENT
from rulka.observation import FLOATS
from rulka.race_settings import RaceSettings
from rulka.simulator.race_start import Starts
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


def test_it_names_every_keyword_option_and_part() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    assert set(RaceSettings.model_fields) - {"races_per_start"} <= told
    assert {*Starts._fields, "state", "reset_mask"} <= told
    places = dict(re.findall(r"\| ((?:`\w+`(?:, )?)+) \| (\d+(?:-\d+)?) \|", PAGE))
    found = {}
    for names, place in places.items():
        parts = [FLOATS[name] for name in re.findall(r"\w+", names)]
        found[place] = "-".join(str(end) for end in dict.fromkeys((parts[0].start, parts[-1].stop - 1)))
    assert list(found) == list(found.values())
    assert sorted(re.findall(r"\w+", " ".join(places))) == sorted(FLOATS)
    used = set(re.findall(r"rulka\.(\w+)", PAGE)) - {"mine"}
    assert {name for name in used if name not in rulka.__all__} <= {"__all__"}
