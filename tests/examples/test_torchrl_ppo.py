"""The example that trains with torchrl's own parts, started as a reader starts it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrl_ppo.py"
LINE = re.compile(
    r"(?P<steps>\d+) steps, \d+ s: "
    r"(no race has ended|\d+ races, \d+ finished, (?P<metres>\S+) m, return \S+), "
    r"kl (?P<kl>\S+)"
)


@pytest.mark.slow
def test_it_counts_steps_moves_the_policy_and_learns() -> None:
    """Random actions hardly leave the start; after 40,960 steps most cars drive the 200 m."""
    ended = subprocess.run([sys.executable, EXAMPLE, "--seed", "1"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in map(LINE.fullmatch, ended.stdout.splitlines()) if line]
    assert [int(line["steps"]) for line in lines] == list(range(2048, 40_961, 2048)), ended.stdout
    assert all(0.0 < float(line["kl"]) < 1.0 for line in lines), "a policy with the same weights would have moved by 0"
    assert float(lines[0]["metres"]) < 10.0
    assert float(lines[-1]["metres"]) > 100.0
