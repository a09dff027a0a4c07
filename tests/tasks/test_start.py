"""How stages start: before anything of them is imported, and where DVC's cache holds what took hours."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rulka.contracts.artifacts import META_FILE, WEIGHTS_FILE
from rulka.machine.errors import UserError
from rulka.stages.folders import AGENT, ENCODER, POLICY
from tasks import clone, pretrain, train
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def test_a_python_without_rulka_says_which_one_it_is_and_what_to_do() -> None:
    # -S: a Python that finds no installed package, as one of the system that comes first on PATH
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-m", "tasks.races"]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: {sys.executable} has no ")
    assert "activate" in answer.stderr
    assert len(answer.stderr.splitlines()) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_libraries_are_imported_is_one_line(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "tasks").mkdir()
    shutil.copy(ROOT / "tasks" / "__init__.py", tmp_path / "tasks")
    slow = f"import time\nprint('importing', flush=True)\ntime.sleep({2 * PATIENCE_S})\n"
    (tmp_path / "tasks" / "slow.py").write_text(slow)
    stage = subprocess.Popen(
        [sys.executable, "-m", "tasks.slow"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert stage.stdout is not None
    assert stage.stdout.readline() == "importing\n"
    stage.send_signal(number)
    _, errors = stage.communicate(timeout=PATIENCE_S)
    assert stage.returncode == 130
    assert errors == "interrupted before the stage began\n"


def test_to_import_the_package_changes_no_signal() -> None:
    code = "import signal, tasks; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "True\n"


@pytest.mark.parametrize("left", [None, META_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize(("out", "main"), [(ENCODER, pretrain.main), (POLICY, clone.main), (AGENT, train.main)])
def test_a_long_stage_does_not_make_anew_what_the_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Path, main: Callable[[], None], left: str | None
) -> None:
    for file in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rulka.stages.stage.is_cached", lambda path: path == out)
    if left is not None:
        out.mkdir(parents=True)
        (out / left).touch()
    with pytest.raises(UserError, match=f"^{out}.* is not there, and DVC's cache holds the one of before"):
        main()
