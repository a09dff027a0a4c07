"""What `rulka env train` and `rulka env evaluate` say of what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("env train CartPol-v1", "Did you mean: `CartPole`?"),
        ("env train Pendulum-v1 --algorithm iqn --out run", "iqn compares all actions"),
        ("env train CartPole-v1 --algorithm dqn", "train.algorithm: must be "),
        ("env train CartPole-v1 --steps 0", "train.max_env_steps: must be greater than or equal to 1"),
        ("env train CartPole-v1 --set ppo.clop=1", "unknown key ppo.clop; did you mean clip?"),
        ("env train CartPole-v1 --set ppo.clip", "'ppo.clip' sets nothing"),
        ("env train CartPole-v1 --set ppo.clip=[", "the value of ppo.clip is not valid YAML: '['"),
        ("env train CartPole-v1 --set ppo=1", "the parameters for CartPole-v1 are wrong"),
        ("env train CartPole-v1 --set ppo.clip=0.1 ppo.clip.a=1", "are wrong:\n  ppo.clip"),
        ("env train CartPole-v1 --out none/run", "there is no folder none"),
        ("env evaluate nowhere", "nowhere holds no complete agent: the folder is missing\n  `rulka env train`"),
        ("env evaluate nowhere --episodes 10001", "--episodes is a whole number from 1 to 10000"),
        ("env evaluate nowhere --seed -1", "--seed one from 0 to 4294967295"),
    ],
)
def test_one_line_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_own_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A module of the current folder registers it; what it is paid, the JSON says, and nothing else is printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_worlds.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('own/Pole-v0', entry_point=CartPoleEnv, max_episode_steps=9)\n"
    )
    quick = "--set train.num_checks=1 train.check_races=2 train.final_check_races=2 train.block_steps=16"
    assert call(f"env train own_worlds:own/Pole-v0 --steps 256 --out run --json {quick}") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["environment"] == "own_worlds:own/Pole-v0"
    assert found["mean_return"] <= 9.0
    assert found["folder"] == "run"
