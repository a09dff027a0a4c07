from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.testing.utilities import prefect_test_harness

TOY_GRAPH = """\
stages:
  races:
    cmd: echo racing && mkdir -p data/races && echo 1 > data/races/x
    outs: [data/races]
  capture:
    cmd: echo capturing && mkdir -p data/frames && cp data/races/x data/frames/x
    deps: [data/races]
    outs: [data/frames]
  evaluate:
    cmd: echo evaluating && mkdir -p data/evaluation && cp data/frames/x data/evaluation/x
    deps: [data/frames]
    outs: [data/evaluation]
"""


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def toy_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with three tiny stages, and the working directory of the test."""
    (tmp_path / "dvc.yaml").write_text(TOY_GRAPH)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path
