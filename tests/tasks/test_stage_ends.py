"""Every stage to its end through the real DVC, and into a full disk, a closed folder and a missing one.

The fast tier runs without DVC one stage into each of these.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.params import Params
from rulka.stages.graph import read_graph
from tests.tasks.conftest import content
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
GRAPH = read_graph(ROOT / "dvc.yaml")
OUT = {stage: Path(parts["outs"][0]) for stage, parts in GRAPH.items()}
INPUT = {
    stage: next(path for path in map(Path, parts["deps"]) if path in OUT.values())
    for stage, parts in GRAPH.items()
    if stage != "races"  # without recordings the built-in driver races
}
FAST = "races", "capture"
SIZE_LIMIT_BYTES = 4096


def slow_but(fast: str, stages: Iterable[str]) -> list[Any]:
    """Returns the stages as parameters, all but one of the slow tier."""
    return [pytest.param(stage, marks=() if stage == fast else pytest.mark.slow) for stage in stages]


def make_project(folder: Path, small_params: Params) -> None:
    """Makes a project with the real stages and tiny parameters."""
    for name in ("tasks", "rulka", "models", "dvc.yaml", ".dvcignore"):
        (folder / name).symlink_to(ROOT / name)  # not copied, so that kernels are compiled already
    params = small_params.model_dump(mode="json")
    params["race_end"] |= {"max_race_s": 20.0}  # drivers need 8 to the finish
    params["pretrain"] |= {"epochs": 1, "batch_size": 64, "precision": "float32"}
    params["clone"] |= {"epochs": 1, "batch_size": 64, "precision": "float32", "dagger": None}
    params["train"] |= {"compared": [], "max_env_steps": 256}
    params["evaluate"] |= {"num_races": 1, "video_width": 160, "video_height": 90, "video_fps": 5}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    for name in ("recordings", "takeovers"):
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / ".gitkeep").touch()


@pytest.fixture(scope="module")
def begun(small_params: Params, driven: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the outputs of its first two stages."""
    folder = tmp_path_factory.mktemp("begun")
    make_project(folder, small_params)
    for stage, output in zip(FAST, driven, strict=True):
        shutil.copytree(output, folder / OUT[stage])
    return folder


@pytest.fixture(scope="module")
def whole(small_params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which everything has run through DVC."""
    folder = tmp_path_factory.mktemp("whole")
    make_project(folder, small_params)
    (folder / ".dvc").mkdir()
    core = "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"
    (folder / ".dvc" / "config").write_text(core)
    answer = repro(folder)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert [line.split("'")[1] for line in answer.stdout.splitlines() if line.startswith("Running stage")] == [*GRAPH]
    return folder


@pytest.fixture
def project(stage: str, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("begun" if stage in FAST else "whole")


def repro(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dvc", "repro"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=3 * PATIENCE_S
    )


def run_stage(stage: str, folder: Path, said: Path, prepare: Callable[[], None] | None) -> None:
    """Does in a fresh process what `python -m tasks.<stage>` does there; what it says goes to a file."""
    os.chdir(folder)
    with said.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if prepare is not None:
        prepare()
    del sys.modules[f"tasks.{stage}"]
    runpy.run_module(f"tasks.{stage}", run_name="__main__", alter_sys=True)


@pytest.fixture
def fails_in_one_line(project: Path, forks: ForkServerContext) -> Callable[..., str]:
    return partial(_fails_in_one_line, forks, project)


def _fails_in_one_line(
    forks: ForkServerContext, project: Path, stage: str, prepare: Callable[[], None] | None = None
) -> str:
    """Runs a stage that cannot work, and returns what it says; what lay at its output has to stay."""
    before = content(project / OUT[stage])
    said = project / "said.txt"
    process = forks.Process(target=run_stage, args=(stage, project, said, prepare))
    process.start()
    process.join(PATIENCE_S)
    lines = said.read_text().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert (process.exitcode, len(errors)) == (1, 1), lines
    assert not any(line.startswith("Traceback") for line in lines)
    assert content(project / OUT[stage]) == before
    assert [path.name for path in (project / "data").iterdir() if path.name.startswith(".")] == []
    return errors[0]


def limit_files() -> None:
    sys.dont_write_bytecode = True  # of the checkout's code, which would be cut off at the limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE_LIMIT_BYTES, SIZE_LIMIT_BYTES))


def drop_privileges() -> None:
    """Takes from root what lets it write where the mode forbids it: capabilities(7), layout of version 3.

    The bounding set, which a program started anew is held to, says nothing to a process that goes on.
    """
    version, may_override_modes = 0x20080522, 1 << 1
    header, sets = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None)
    libc.capget(header, sets)
    sets[0] &= ~may_override_modes  # effective, which decides what happens
    sets[1] &= ~may_override_modes  # permitted, which decides what access(2) says for root
    libc.capset(header, sets)


@pytest.fixture
def closed_data(project: Path) -> Iterator[None]:
    (project / "data").chmod(0o555)
    yield
    (project / "data").chmod(0o755)


@pytest.mark.slow
def test_every_stage_comes_to_its_end_and_then_there_is_nothing_to_do(whole: Path) -> None:
    assert all(any((whole / out).iterdir()) for out in OUT.values())
    answer = repro(whole)
    assert "Running stage" not in answer.stdout


@pytest.mark.parametrize("stage", slow_but(FAST[0], GRAPH))
def test_a_full_disk_is_one_line(project: Path, fails_in_one_line: Callable[..., str], stage: str) -> None:
    shutil.rmtree(project / "runs", ignore_errors=True)  # a finished training would only be delivered again
    fails_in_one_line(stage, limit_files)


@pytest.mark.skipif(sys.platform != "linux", reason="only there can a test of root's be without root's privileges")
@pytest.mark.parametrize("stage", slow_but(FAST[0], GRAPH))
@pytest.mark.usefixtures("closed_data")
def test_a_folder_that_may_not_be_written_is_one_line(fails_in_one_line: Callable[..., str], stage: str) -> None:
    assert "data is not writable" in fails_in_one_line(stage, drop_privileges)


@pytest.mark.parametrize("stage", slow_but(FAST[1], INPUT))
def test_a_missing_input_is_one_line(project: Path, fails_in_one_line: Callable[..., str], stage: str) -> None:
    path = project / INPUT[stage]
    aside = path.rename(project / "aside")
    try:
        said = fails_in_one_line(stage)
    finally:
        aside.rename(path)
    assert INPUT[stage].as_posix() in said
