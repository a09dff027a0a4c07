"""DVC's own comparisons, with the metrics and plots of this project's `dvc.yaml`, as `docs/pipeline.md` shows them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.versions.conftest import ROOT, commit, dvc, git, text_of, write

MAKE = """\
import json, pathlib, yaml
gamma = yaml.safe_load(open("params.yaml"))["ppo"]["gamma"]
for path, found in {
    "data/evaluation/scores.json": {"agent": {"mean_time_s": 10 * gamma}},
    "data/encoder/metrics.json": [{"epoch": epoch, "train_loss": gamma, "validation_loss": gamma} for epoch in (1, 2)],
}.items():
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text(json.dumps(found))
"""


@pytest.fixture
def compared(project: Path) -> None:
    """A stage whose numbers follow from a parameter, committed with 0.9."""
    ours = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    outs = [{path: {"persist": True}} for path in ("data/evaluation", "data/encoder")]
    stage = {"cmd": f"{sys.executable} make.py", "deps": ["make.py"], "params": ["ppo"], "outs": outs}
    losses = [plot for plot in ours["plots"] if isinstance(plot, dict) and "data/encoder/metrics.json" in str(plot)]
    assert losses
    write("make.py", MAKE)
    write("dvc.yaml", yaml.safe_dump({"stages": {"all": stage}, "metrics": ours["metrics"], "plots": losses}))
    dvc("repro")
    commit("0.9")


def said(*arguments: str) -> str:
    """Returns what a command of DVC writes to standard output."""
    return subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.mark.usefixtures("compared")
def test_numbers_and_parameters_are_compared_with_the_last_commit() -> None:
    write("params.yaml", "ppo:\n  gamma: 0.5\n")
    dvc("repro")
    metrics = json.loads(said("metrics", "diff", "--json"))
    assert metrics["data/evaluation/scores.json"]["agent.mean_time_s"] == {"old": 9.0, "new": 5.0, "diff": -4.0}
    params = json.loads(said("params", "diff", "--json"))
    assert params["params.yaml"]["ppo.gamma"] == {"old": 0.9, "new": 0.5, "diff": -0.4}
    page = Path(said("plots", "diff", "--out", "dvc_plots").strip().removeprefix("file://"))
    assert all(text in page.read_text() for text in ("loss of Level 0", "workspace", "HEAD"))


@pytest.mark.slow
@pytest.mark.usefixtures("compared")
def test_an_experiment_changes_one_line_and_can_be_taken_over() -> None:
    dvc("exp", "run", "--name", "half", "--set-param", "ppo.gamma=0.5")
    assert text_of("params.yaml") == "ppo:\n  gamma: 0.5\n"
    assert json.loads(text_of("data/evaluation/scores.json"))["agent"]["mean_time_s"] == 5.0
    git("checkout", "--quiet", "--", ".")
    dvc("checkout")
    assert json.loads(text_of("data/evaluation/scores.json"))["agent"]["mean_time_s"] == 9.0
    shown = json.loads(said("exp", "show", "--json"))
    assert "half" in json.dumps(shown)
    dvc("exp", "apply", "half")
    assert json.loads(text_of("data/evaluation/scores.json"))["agent"]["mean_time_s"] == 5.0
