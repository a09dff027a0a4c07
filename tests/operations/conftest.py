"""A project with two untrained agents: one accelerates, one stands still."""

from pathlib import Path

import pytest

from rulka.contracts.actions import FORWARD
from rulka.datasets.formats.races import RaceDataset, write_races
from rulka.operations.pairs import Racer, load_racer
from rulka.params import Params
from tests.tasks.test_evaluate import demonstration, save_driver, short_track, small_params

IDLE = 3


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as the working directory: the latest agent accelerates, `slow` does not; races on a 60 m track."""
    params = (Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(params, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    save_driver(tmp_path / "data" / "agent", "agent", "ppo", FORWARD)
    save_driver(tmp_path / "slow", "agent", "iqn", IDLE)
    (tmp_path / "data" / "races").mkdir()
    write_races(tmp_path / "data" / "races", RaceDataset((demonstration(0, 8.0),), short_track(), ()))
    return tmp_path


@pytest.fixture
def params(project: Path) -> Params:
    return small_params()


@pytest.fixture
def racers(project: Path, params: Params) -> tuple[Racer, Racer]:
    return load_racer("quick", Path("data/agent"), params), load_racer("slow", Path("slow"), params)
