"""What a new user does, in a clone of its own, by the commands of README: from `rulka up` to a second agent.

Real stages, made short by parameters; a night every minute.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.checkout import copy_checkout
from tests.flows.conftest import RULKA, far_from_now
from tests.flows.test_up import PREFECT, READY, runs_of_prefect
from tests.ports import reserved_port
from tests.waiting import PATIENCE_S, wait_for

SHORT: dict[str, dict[str, Any]] = {
    "track": {"length_m": 150.0},
    "races": {"num_demonstrations": 4, "reference_decisions": 20_000},
    "capture": {"num_workers": 1, "validation_fraction": 0.0, "test_fraction": 0.0},
    "race_end": {"max_race_s": 10.0},
    "network": {"float_hidden": 16, "dense_hidden": 16},
    "pretrain": {"epochs": 1, "batch_size": 64},
    "clone": {"epochs": 1, "batch_size": 64, "num_races": 2},
    "train": {
        "compared": [],
        "num_collectors": 1,
        "cars_per_collector": 4,
        "block_steps": 16,
        "max_env_steps": 512,
        "max_minutes": None,
        "num_checks": 1,
        "check_races": 2,
        "check_candidates": 1,
        "final_check_races": 2,
    },
    "ppo": {"steps_per_update": 128, "batch_size": 64, "value_warmup_steps": 128},
    "evaluate": {"num_races": 2, "video_width": 160, "video_height": 90, "video_fps": 5},
}
NIGHTLY = "name: nightly-evaluation\n"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass
class Walk:
    """The clone, and `rulka up` there."""

    folder: Path
    up: subprocess.Popen[bytes]

    def said(self) -> str:
        """What `rulka up` has said so far."""
        return (self.folder / "up.log").read_text(encoding="utf-8")


def typed(*command: str) -> str:
    """Types a command that has to succeed; returns what it printed."""
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{command}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


def last_run() -> dict[str, Any]:
    """The run that somebody asked for last, as Prefect knows it."""
    return max((run for run in runs_of_prefect() if not run["auto_scheduled"]), key=lambda run: run["created"])


def git(*arguments: str) -> None:
    typed("git", "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments)


def set_parameters(changes: dict[str, dict[str, Any]]) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    for section, values in changes.items():
        params[section] |= values
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")


def commit(message: str) -> None:
    git("add", "--all")
    git("commit", "--quiet", "--message", message)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    """A clone of what git would have of this checkout, with `rulka up` running."""
    folder = tmp_path / "rulka"
    copy_checkout(folder)
    with pytest.MonkeyPatch.context() as patch, reserved_port() as port:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(folder))
        patch.delenv("RULKA_STARTED_BY", raising=False)
        # The stages' Python is the first one of PATH, as where the environment is activated.
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        git("init", "--quiet", "--initial-branch", "main")
        # Not the port of a server that somebody works with.
        Path(".env").write_text(f"PREFECT_API_URL=http://127.0.0.1:{port}/api\n", encoding="utf-8")
        set_parameters(SHORT)
        deployments = Path("prefect.yaml")
        deployments.write_text(far_from_now(deployments.read_text(encoding="utf-8")), encoding="utf-8")
        commit("As it came, but shorter")
        with Path("up.log").open("wb") as log, subprocess.Popen([*RULKA, "up"], stdout=log, stderr=log) as up:
            walk = Walk(folder, up)
            try:
                wait_for(lambda: READY in walk.said() or up.poll() is not None, "`rulka up`")
                assert up.poll() is None, walk.said()
                yield walk
            finally:
                up.kill()


def the_pipeline_runs_as_a_deployment() -> None:
    typed(*PREFECT, "deployment", "run", "rulka/full-pipeline", "--watch")
    stages = list(yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"])
    assert last_run()["state"]["message"] == f"ran: {', '.join(stages)}"
    (agent,) = json.loads(typed(*RULKA, "agents", "list", "--json"))
    assert agent["is_latest"]
    assert not agent["problem"]
    commit("The first agent")


def the_night_fires() -> None:
    before = Path("prefect.yaml").read_text(encoding="utf-8")
    every_minute = re.sub(r'cron: ".*"', 'cron: "* * * * *"', before)
    short = f"{NIGHTLY}    parameters: {{tracks: [main], races: 10}}\n"
    Path("prefect.yaml").write_text(every_minute.replace(NIGHTLY, short), encoding="utf-8")
    typed(*PREFECT, "--no-prompt", "deploy", "--all")

    def nights(*states: str) -> bool:
        return any(run["auto_scheduled"] for run in runs_of_prefect(*states))

    wait_for(lambda: nights("Completed", "Failed", "Crashed"), "a night to end")
    assert nights("Completed")
    with Path("data/nights/history.csv").open(encoding="utf-8") as file:
        assert {row["role"] for row in csv.DictReader(file)} == {"promoted", "latest"}
    Path("prefect.yaml").write_text(before, encoding="utf-8")
    typed(*PREFECT, "--no-prompt", "deploy", "--all")
    wait_for(lambda: not nights("Pending", "Running"), "the end of all nights")


def the_next_agent_is_trained() -> None:
    # Another value head, too: what was trained for a moment may be no better than the clone, which is kept then.
    set_parameters({"train": {"seed": 7}, "transfer": {"seed": 7}})
    typed(*PREFECT, "deployment", "run", "rulka/full-pipeline", "--watch")
    assert last_run()["state"]["message"].startswith("ran: transfer, train, evaluate;")
    promoted, latest = json.loads(typed(*RULKA, "agents", "list", "--json"))
    assert (promoted["is_promoted"], latest["is_latest"]) == (True, True)
    assert promoted["name"] != latest["name"]


def up_ends(walk: Walk) -> None:
    walk.up.send_signal(signal.SIGINT)
    assert walk.up.wait(PATIENCE_S) == 0
    assert walk.said().endswith("stopped\n")


def test_from_the_first_agent_to_the_next(walk: Walk) -> None:
    the_pipeline_runs_as_a_deployment()
    the_night_fires()
    the_next_agent_is_trained()
    up_ends(walk)
