"""A tiny stage under the real DVC: typos, interrupts and kills lose no output, and `dvc.lock` stays correct."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from dvc.cli import main as dvc_here
from dvc.repo import Repo

from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).parents[2]
GRAPH = """\
stages:
  toy:
    cmd: python -m tasks.toy
    deps:
      - data/given
      - rulka/code
      - tasks/toy.py
    params:
      - toy
    outs:
      - data/out:
          persist: true
"""
# Like `tasks/*.py`: works, writes beside the output, then renames once. `hold` stops it where a test asks for it.
STAGE = """\
import time
from pathlib import Path
from rulka.machine.errors import UserError
from rulka.params import read_sections
from rulka.stages.stage import check_not_cached, output_folder, run_stage

def hold(place):
    if Path(f"hold_{place}").exists():
        Path(f"held_{place}").touch()
        while Path(f"hold_{place}").exists():
            time.sleep(0.05)

def main():
    check_not_cached(Path("data/out"), "toy", ["value"])
    value = read_sections(Path("params.yaml"))["toy"]["value"]
    hold("started")
    if value == "wrong":
        raise UserError("toy.value is wrong")
    with output_folder(Path("data/out")) as folder:
        (folder / "value").write_text(f"{value} {Path('data/given/x').read_text()}")
        hold("working")
    hold("finished")

if __name__ == "__main__":
    run_stage(main, after_interrupt="Nothing else was kept.")
"""
PARAMS = "toy:\n  value: {}\nother:\n  value: 1\n"
ASIDE = "runs/set_aside/toy"


class Project:
    """A project with one stage, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = os.pathsep.join((str(folder), str(ROOT)))
        python = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._environment = {**os.environ, "PATH": python, "PYTHONPATH": paths}

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts DVC in its own session, as in a terminal."""
        return subprocess.Popen(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def dvc(self, *arguments: str) -> tuple[int, str]:
        """Runs DVC to its end; returns its exit code and the output of DVC and the stage."""
        said, _ = (process := self.start(*arguments)).communicate(timeout=PATIENCE_S)
        return process.returncode, said

    def reproduce(self, *options: str) -> str:
        code, said = self.dvc("repro", *options)
        assert code == 0, said
        return said

    def command(self, *arguments: str) -> None:
        """Runs a DVC command that starts no stage, in this process: its imports take longer than the command."""
        with chdir(self.folder):  # DVC's own `--cd` does not change back
            assert dvc_here(list(arguments)) == 0

    @property
    def is_recorded(self) -> bool:
        """True if DVC finds everything as recorded in `dvc.lock`."""
        with Repo(str(self.folder)) as repo:
            return repo.status() == {}

    def held(self, place: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts DVC and returns when the stage has reached `place`, where it waits for `release`."""
        self.write(f"hold_{place}", "")
        process = self.start(*(arguments or ("repro",)))
        held = self.folder / f"held_{place}"
        wait_for(lambda: held.exists() or process.poll() is not None, f"the stage to be held: {place}")
        assert process.poll() is None, process.communicate()
        return process

    def release(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        for each in self.folder.glob("hold_*"):
            each.unlink()
        said, _ = process.communicate(timeout=PATIENCE_S)
        for each in self.folder.glob("held_*"):
            each.unlink()
        return process.returncode, said

    @property
    def output(self) -> str:
        return (self.folder / "data" / "out" / "value").read_text()


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose stage has already run."""
    project = Project(tmp_path_factory.mktemp("project"))
    project.write(".dvc/config", "[core]\n    no_scm = true\n    analytics = false\n")
    project.write("dvc.yaml", GRAPH)
    project.write("params.yaml", PARAMS.format(1))
    project.write("tasks/toy.py", STAGE)
    project.write("rulka/code/part.py", "x = 1\n")  # for code that the stage imports; the real one is ahead on the path
    project.write("data/given/x", "given")
    shutil.copy(ROOT / "tasks" / "__init__.py", project.folder / "tasks" / "__init__.py")
    project.reproduce()
    assert project.output == "1 given"
    return project.folder


@pytest.fixture
def project(finished_project: Path, tmp_path: Path) -> Project:
    return Project(shutil.copytree(finished_project, tmp_path / "project"))


def test_a_wrong_parameter_costs_no_output(project: Project) -> None:
    project.write("params.yaml", PARAMS.format("wrong"))
    code, said = project.dvc("repro")
    assert code != 0
    assert "error: toy.value is wrong\n  data/out is as it was before.\n" in said
    assert project.output == "1 given"
    shutil.rmtree(project.folder / "data" / "out")
    _, said = project.dvc("repro")
    assert "error: data/out is not there, and DVC's cache holds the one of before, which took long to make\n" in said
    assert "`dvc checkout --force toy` brings it back in seconds. `rm -rf data/out && mkdir data/out` lets it" in said
    project.write("data/out/other", "some of it")
    _, said = project.dvc("repro")
    assert "error: data/out/value is not there, and DVC's cache holds the one of before" in said
    project.command("checkout", "--force", "toy")
    assert project.output == "1 given"
    project.write("params.yaml", PARAMS.format(1))
    assert project.is_recorded


@pytest.mark.slow
def test_what_is_not_in_the_cache_or_is_asked_for_is_made_anew(project: Project) -> None:
    shutil.rmtree(project.folder / "data" / "out")
    (project.folder / "data" / "out").mkdir()
    project.reproduce()
    assert project.output == "1 given"
    shutil.rmtree(project.folder / "data" / "out")
    shutil.rmtree(project.folder / ".dvc" / "cache")
    project.reproduce()
    assert project.output == "1 given"


@pytest.mark.slow
def test_the_last_output_is_there_while_a_new_one_is_made_and_after_an_interrupt(project: Project) -> None:
    process = project.held("working", "repro", "--force")
    assert project.output == "1 given"
    os.killpg(process.pid, signal.SIGINT)
    code, said = project.release(process)
    assert code != 0
    assert "interrupted\n  data/out is as it was before.\n  Nothing else was kept.\n" in said
    assert project.output == "1 given"
    assert project.is_recorded


def test_what_changes_while_a_stage_runs_sets_its_output_aside(project: Project) -> None:
    """For what counts as a change, see `test_what_decides_a_result_is_compared`."""
    lock = (project.folder / "dvc.lock").read_text()
    process = project.held("working", "repro", "--force")
    project.write("params.yaml", PARAMS.format(2))
    code, said = project.release(process)
    assert code != 0
    assert "error: changed while `toy` ran: toy in params.yaml. The finished output is set aside in " + ASIDE in said
    assert "data/out is as it was before.\n" in said
    assert project.output == "1 given"
    assert (project.folder / "dvc.lock").read_text() == lock
    assert (project.folder / ASIDE / "value").read_text() == "1 given"
    assert [path.name for path in (project.folder / "data").iterdir() if path.name.startswith(".out")] == []
    assert not project.is_recorded


@pytest.mark.slow
def test_an_output_set_aside_is_kept_as_its_message_says(project: Project) -> None:
    project.write("params.yaml", PARAMS.format(2))
    process = project.held("working")
    project.write("params.yaml", PARAMS.format(3))
    _, said = project.release(process)
    project.write("params.yaml", PARAMS.format(2))
    recipe = next(line.strip() for line in said.splitlines() if line.strip().startswith("rm -rf "))
    move, _, commit = recipe.rpartition(" && ")
    subprocess.run(move, shell=True, cwd=project.folder, check=True)
    assert commit == "dvc commit -f toy"
    project.command("commit", "-f", "toy")
    assert project.output == "2 given"
    assert project.is_recorded


@pytest.mark.slow
def test_a_stage_interrupted_when_its_output_is_finished_says_how_to_record_it(project: Project) -> None:
    project.write("params.yaml", PARAMS.format(2))
    process = project.held("finished")
    os.killpg(process.pid, signal.SIGTERM)
    _, said = project.release(process)
    # SIGTERM ends DVC at once; the stage, which shares its terminal, prints after it.
    assert "data/out is the new one, finished; DVC has not recorded it yet: `dvc commit -f toy` does.\n" in said
    project.command("commit", "-f", "toy")
    assert project.is_recorded
