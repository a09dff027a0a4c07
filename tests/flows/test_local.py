"""`rulka run` in a process of its own, without `rulka up`."""

import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from dvc.repo import Repo

from flows.local import preview, preview_text
from rulka.errors import UserError
from rulka.graph import read_graph
from rulka.params import ParamsError
from tests.flows.conftest import ROOT, RULKA, change_command, dvc, family_of, make_project
from tests.waiting import PATIENCE_S, wait_for


def stand_in_graph() -> str:
    """The stages of this project with what they exchange, and commands that do next to nothing."""
    graph = read_graph(ROOT / "dvc.yaml")
    written = {path for parts in graph.values() for path in parts["outs"]}
    for name, parts in graph.items():
        parts["cmd"] = " && ".join(f"mkdir -p {folder} && echo {name} > {folder}/x" for folder in parts["outs"])
        parts["deps"] = [path for path in parts["deps"] if path in written]
        for key in ("params", "metrics", "plots"):
            parts.pop(key, None)
    return yaml.safe_dump({"stages": graph}, sort_keys=False)


@pytest.fixture
def _own_port(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody listens there, whatever else runs on this machine.
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")


@pytest.mark.slow
@pytest.mark.usefixtures("_own_port")
def test_every_stage_of_this_project_through_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_project(tmp_path, stand_in_graph()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    stages = list(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    answer = subprocess.run([*RULKA, "run", "--json"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert json.loads(answer.stdout) == {"stages": dict.fromkeys(stages, "ran"), "stale_upstream": []}
    assert f"\nran: {', '.join(stages)}\n" in answer.stderr
    assert {path.name for path in Path("data").iterdir()} >= {"races", "frames", "encoder", "agent", "evaluation"}
    assert Path("dvc.lock").exists()
    assert stat.S_IMODE(Path(".prefect/profiles.toml").stat().st_mode) == 0o600


def status_here(stages: list[str]) -> dict[str, Any]:
    """What `dvc status --json` says, whose start takes longer than its work."""
    with Repo() as repo:
        return repo.status(stages or None)


def test_a_dry_run_says_what_would_run(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.dvc._status", status_here)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    everything = ["races", "capture", "evaluate"]
    nothing: dict[str, list[str]] = {"runs": [], "may_follow": [], "unchanged": [], "stale_upstream": []}
    assert preview(None, force=False) == nothing | {"runs": everything}
    assert preview(["evaluate"], force=False) == nothing | {"runs": ["evaluate"], "stale_upstream": everything[:2]}
    assert not Path("data").exists()
    dvc("repro")
    assert preview(None, force=False) == nothing | {"unchanged": everything}
    assert preview(["capture"], force=True) == nothing | {"runs": ["capture"]}
    change_command("capture", "mkdir -p data/frames && echo 2 > data/frames/x")
    found = preview(None, force=False)
    assert found == nothing | {"runs": ["capture"], "may_follow": ["evaluate"], "unchanged": ["races"]}
    assert preview_text(found).splitlines() == [
        "would run: capture",
        "may follow, if what they read differs by then: evaluate",
        "nothing has changed: races",
    ]
    with pytest.raises(UserError, match="no stage is called rases"):
        preview(["rases"], force=False)
    Path("params.yaml").write_text(
        Path("params.yaml").read_text().replace("cars_per_collector: 32", "cars_per_collector: 0")
    )
    with pytest.raises(ParamsError, match=r"train\.cars_per_collector"):
        preview(None, force=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel ends children with their parent")
@pytest.mark.usefixtures("used_project", "_own_port")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(number: signal.Signals) -> None:
    change_command("races", "sleep 600")
    with subprocess.Popen(
        [*RULKA, "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as run:
        this = psutil.Process(run.pid)

        def family_at_work() -> dict[psutil.Process, list[str]]:
            assert run.poll() is None
            family = family_of(this)
            return family if ["sleep", "600"] in family.values() else {}

        family = wait_for(family_at_work, "the stage")
        if number == signal.SIGINT:
            # As a terminal does: to everything in its foreground.
            os.killpg(run.pid, number)
            _, said = run.communicate(timeout=PATIENCE_S)
            assert run.returncode == 130
            assert said.endswith(b"interrupted\n")
        else:
            run.kill()
            run.communicate(timeout=PATIENCE_S)
            # A real stage looks after its starters itself, see rulka.stage; this one cannot.
            for process, command in family.items():
                if command == ["sleep", "600"]:
                    process.kill()
    _, left = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert left == []


def no_privileges() -> None:
    """Runs in a child before its program: takes from root what lets it write where the mode forbids it."""
    drop_from_bounding_set, may_override_modes = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, may_override_modes, 0, 0, 0)


class TestRefusals:
    @pytest.mark.skipif(sys.platform != "linux", reason="only there can a test of root's be without root's privileges")
    @pytest.mark.parametrize("command", ["run", "up", pytest.param("doctor", marks=pytest.mark.slow)])
    def test_a_read_only_folder_is_named(self, toy_project: Path, command: str) -> None:
        folders = (toy_project, toy_project / ".dvc")
        for folder in folders:
            folder.chmod(0o555)
        answer = subprocess.run(
            [*RULKA, command], preexec_fn=no_privileges, capture_output=True, text=True, check=False
        )
        for folder in folders:
            folder.chmod(0o755)
        assert answer.returncode == 1
        assert "Traceback" not in answer.stdout + answer.stderr
        said = answer.stdout if command == "doctor" else answer.stderr
        start = "WRONG   folder: " if command == "doctor" else "error: "
        assert [line for line in said.splitlines() if line.startswith(f"{start}., .dvc in {toy_project}: not writable")]
        assert not (toy_project / ".prefect").exists()

    @pytest.mark.parametrize("command", ["run", "up"])
    def test_a_folder_that_is_no_project_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        answer = subprocess.run([*RULKA, command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer.returncode == 1
        assert answer.stderr == f"error: there is no dvc.yaml in {tmp_path}\n  Run this from the root of the project.\n"
        assert not list(tmp_path.iterdir())
