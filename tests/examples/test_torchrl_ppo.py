"""The example that trains with torchrl's own parts, started as a reader starts it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrl_ppo.py"
LINE = re.compile(
    r"(?P<steps>\d+) steps, \d+ s: "
    r"(no race has ended|(?P<races>\d+) races, (?P<finished>\d+) finished, (?P<metres>\S+) m, return (?P<paid>\S+)), "
    r"kl (?P<kl>\S+)"
)


def train(*options: str) -> list[re.Match[str]]:
    """Runs the example to its end and returns what it said after each update."""
    command = [sys.executable, str(EXAMPLE), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = [LINE.fullmatch(line) for line in ended.stdout.splitlines()]
    assert all(found), ended.stdout
    return [match for match in found if match]


@pytest.mark.slow
def test_a_short_run_counts_steps_moves_the_policy_and_ends() -> None:
    lines = train("--steps", "1536", "--steps-per-update", "512", "--seed", "1")
    assert [int(line["steps"]) for line in lines] == [512, 1024, 1536]
    assert all(0.0 < float(line["kl"]) < 1.0 for line in lines), "a policy with the same weights would have moved by 0"
    assert lines[-1]["races"], "in 96 decisions some car has stood for 2 s"
    for line in lines:
        if line["races"]:
            assert 0.0 <= float(line["metres"]) <= 200.0
            assert -20.0 < float(line["paid"]) < 10.0


@pytest.mark.slow
def test_it_learns() -> None:
    """Random actions hardly leave the start; after 40,960 steps most cars drive the 200 m."""
    lines = train("--seed", "1")
    assert float(lines[0]["metres"]) < 10.0
    assert float(lines[-1]["metres"]) > 100.0
