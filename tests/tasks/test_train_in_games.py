"""Training in games over real sockets: `rulka game serve` in processes of its own, one for each collector."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rulka.contracts.artifacts import load_artifact
from rulka.game.link import GameLink
from rulka.game.plugin import PLUGIN_FILE
from rulka.game.settings import GameSettings
from rulka.game.supervise import GameSupervisor
from rulka.machine.processes import RestartBudget
from rulka.params import Params
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.messages import RaceEnd
from rulka.runtime.stop import StopSignals
from rulka.runtime.supervisor import WorkerCrashError
from rulka.training.agent_run import AgentRun, Folders
from tasks.train import train
from tests.game.engine import built
from tests.game.processes import free_ports
from tests.tasks.conftest import begin_training
from tests.waiting import PATIENCE_S, wait_for

IN_GAMES = {
    "environment": "game",
    "order": "free",
    "compared": [],
    "cars_per_collector": 1,
    "check_races": 1,
    "start_anywhere": 0.0,
    "start_from_earlier": 0.0,
    "start_lateral_m": 0.0,
    "start_heading_deg": 0.0,
}
ENDLESS = {"max_env_steps": 10**9, "max_minutes": 1e6}
"""For runs that the test ends."""


def in_games(params: Params, **changes: Any) -> Params:
    values = params.model_dump()
    values["race_end"]["max_race_s"] = changes.pop("max_race_s", values["race_end"]["max_race_s"])
    values["train"] |= IN_GAMES | changes
    return Params.model_validate(values)


@pytest.fixture
def folders(small_params: Params, pretrained: tuple[Path, Path], driven: tuple[Path, Path], tmp_path: Path) -> Folders:
    return begin_training(in_games(small_params), pretrained, driven, tmp_path)


def command(races: Path) -> tuple[str, ...]:
    (track,) = (races / "tracks").glob("*.npz")
    program = (sys.executable, "-m", "rulka.cli", "game", "serve", "--speed", "100", "--port", "{port}")
    return (*program, "--track", str(track))


class Watched:
    """A run in two games, and a third one for its checks, whose deliveries are written down."""

    def __init__(self, loop: LearnerLoop, games: GameSupervisor) -> None:
        self.loop, self.games = loop, games
        self.races: list[RaceEnd] = []
        self.num_ends = 0
        self.is_over, self.pause_s = False, 0.0
        self._collect: Callable[..., Any] = loop._collectors.collect
        loop._collectors.collect = self._watch_collect

    def _watch_collect(self, *args: Any) -> Any:
        time.sleep(self.pause_s)
        self.pause_s = 0.0
        deliveries = self._collect(*args)
        for delivery in deliveries:
            block = delivery.block
            self.races += delivery.facts.races
            self.num_ends += int((block.terminated | block.truncated).sum())
        if self.is_over:  # said here, as the run moves its clock in this thread
            self.loop.state.seconds = 60.0 * ENDLESS["max_minutes"]
        return deliveries

    def lost(self) -> list[RaceEnd]:
        return [race for race in self.races if not race.is_full_race]

    def races_of(self, collector: int) -> list[RaceEnd]:
        return [race for race in self.races if race.collector == collector]


@contextmanager
def watched(params: Params, folders: Folders, link: GameLink, games: GameSupervisor) -> Iterator[Watched]:
    run = AgentRun("ppo", params, folders)
    run.folder.mkdir(parents=True)
    spec = run._run_spec(run._initial(), run._environment(link))
    with games, StopSignals() as stop, connect(spec, stop) as loop:
        yield Watched(loop, games)


@pytest.mark.slow
def test_a_game_that_dies_costs_one_race(small_params: Params, folders: Folders, tmp_path: Path) -> None:
    port = free_ports(3)
    once = small_params.model_copy(update={"ppo": small_params.ppo.model_copy(update={"action_repeat": 1})})
    params = in_games(once, num_collectors=2, max_race_s=1.5, **ENDLESS)
    games = GameSupervisor(GameSettings(port=port, command=command(folders.races)), 3, tmp_path, tmp_path)
    link = GameLink(port=port, speed=100.0, timeout_s=PATIENCE_S, patience_s=PATIENCE_S, reports=tmp_path)
    failures: list[BaseException] = []
    kills: list[int] = []
    with watched(params, folders, link, games) as run:

        def kill() -> None:
            try:
                wait_for(lambda: run.races_of(0) and run.races_of(1), "races of both")
                while not run.lost():  # one killed between two races costs none
                    os.kill(games.games[port + 1].pid, signal.SIGKILL)
                    kills.append(len(run.races_of(1)))
                    assert len(kills) < 5
                    # More than a collector may be ahead of what was delivered: the last one is of the new game.
                    wait_for(lambda: len(run.races_of(1)) >= kills[-1] + 12, "races in the game that was started again")
            except BaseException as error:
                failures.append(error)
            run.is_over = True

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        assert run.loop.run().ended_by == "max_minutes"
        thread.join()
        assert not failures, failures
        assert games.num_restarts == len(kills)
        assert run.loop._collectors.num_restarts == 0, "the collector went on by itself"
    assert [(race.collector, race.is_finished) for race in run.lost()] == [(1, False)], "lost once, counted once"
    assert len(run.races) == run.num_ends
    assert run.loop.state.env_steps > 200


@pytest.mark.slow
def test_a_learner_that_pauses_costs_no_race(small_params: Params, folders: Folders, tmp_path: Path) -> None:
    """An update of a large network on a slow machine takes this long, while collectors wait in the middle of a race."""
    port = free_ports(2)
    params = in_games(small_params, num_collectors=1, max_race_s=1.5, **ENDLESS)
    games = GameSupervisor(GameSettings(port=port, command=command(folders.races)), 2, tmp_path, tmp_path)
    with watched(params, folders, GameLink(port=port, speed=100.0, timeout_s=PATIENCE_S), games) as run:

        def pause() -> None:
            wait_for(lambda: run.races, "a race")
            run.pause_s = 12.0
            wait_for(lambda: run.pause_s == 0, "the pause")
            num_races = len(run.races)
            wait_for(lambda: len(run.races) > num_races + 12, "races after it")
            run.is_over = True

        threading.Thread(target=pause, daemon=True).start()
        assert run.loop.run().ended_by == "max_minutes"
    assert not run.lost()


@pytest.mark.slow
def test_a_game_that_does_not_come_back_ends_the_run(
    small_params: Params, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestartBudget.__init__, "__defaults__", (0, 60.0))
    monkeypatch.setattr("rulka.game.supervise.MAX_RESTARTS", 0)
    port = free_ports(2)
    params = in_games(small_params, num_collectors=1, **ENDLESS)
    games = GameSupervisor(GameSettings(port=port, command=command(folders.races)), 2, tmp_path, tmp_path)
    link = GameLink(port=port, speed=100.0, timeout_s=PATIENCE_S, patience_s=0.5)
    with watched(params, folders, link, games) as run:

        def kill() -> None:
            wait_for(lambda: run.loop.state.env_steps > 50, "some decisions")
            os.kill(games.games[port].pid, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        with pytest.raises(WorkerCrashError, match=rf"(?s)\n.*127\.0\.0\.1:{port}"):
            run.loop.run()


def plugin_in_its_engine(_races: Path) -> tuple[str, ...]:
    """A game whose road is another one: a car leaves the track soon, and learns that."""
    options = {"port": "{port}", "speed": 100, "gates": "100,200", "console": "no", "rewind": "inside"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return (built().as_posix(), PLUGIN_FILE.as_posix(), *words)


@pytest.mark.slow
@pytest.mark.parametrize("command", [command, plugin_in_its_engine])
def test_the_stage_starts_its_games_and_ends_them(
    small_params: Params, folders: Folders, monkeypatch: pytest.MonkeyPatch, command: Callable[[Path], tuple[str, ...]]
) -> None:
    port = free_ports(3)
    monkeypatch.setenv("RULKA_GAME_PORT", str(port))
    monkeypatch.setenv("RULKA_GAME_SPEED", "100")
    monkeypatch.setenv("RULKA_GAME_COMMAND", shlex.join(command(folders.races)))
    monkeypatch.setattr("rulka.game.supervise.LOG_DIR", folders.runs)
    params = in_games(small_params, num_collectors=2, max_env_steps=1024, max_race_s=1.0, num_checks=1)
    train(params, folders=folders)
    assert load_artifact(folders.out, "agent").provenance["training"]["env_steps"] == 1024


def test_what_a_game_cannot_do_is_refused_when_parameters_load(small_params: Params) -> None:
    with pytest.raises(ValidationError, match="set cars_per_collector to 1, check_races to 1"):
        in_games(small_params, cars_per_collector=2, check_races=2)
    with pytest.raises(ValidationError, match=r"begins at the start line: set start_anywhere to 0\.0"):
        in_games(small_params, start_anywhere=0.5)
