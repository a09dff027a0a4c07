"""Stage `train`: reinforcement learning with many processes, one run for each algorithm.

Reads  data/agent_init/     initial agents, and for IQN the cloned policy that drives first
       data/races/          the main track
       data/frames/         demonstrations, for algorithms that learn from them
Writes data/agent/          an artifact of kind "agent" for `train.algorithm`, see rulka.artifacts
         training.jsonl     how the run went, one JSON object a line
         compared/<algorithm>/   the same for each of `train.compared`, trained with the same budget
Live   runs/train/<algorithm>-<fingerprint>/   checkpoints, the trained agent, metrics.jsonl, TensorBoard events

The fingerprint is a hash of parameters, inputs and code. A killed run goes on from its last checkpoint; one whose
parameters, inputs or code have changed has another fingerprint and starts afresh. A trained agent stays in its run
until DVC has recorded the output, so that a kill between the end of the stage and DVC's record costs seconds.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from models.encoders.config import EncoderConfig
from rulka.actions import ActionTable
from rulka.agents.agent import AgentSpec
from rulka.agents.networks import agent_table
from rulka.agents.speed import keep_freed_memory
from rulka.artifacts import (
    META_FILE,
    Artifact,
    ArtifactError,
    load_artifact,
    observation_contract,
    read_meta,
    save_artifact,
)
from rulka.buffers.experience import ExperienceBlock
from rulka.datasets.races import load_races, track_path
from rulka.datasets.races import read_meta as read_races_meta
from rulka.device import CPU, use_device
from rulka.errors import UserError
from rulka.folders import AGENT, AGENT_INIT, COMPARED, FRAMES, RACES, TRAINING_LOG, TRAINING_RUNS, WARMUP_POLICY
from rulka.game.link import GameLink
from rulka.game.settings import read_game_settings
from rulka.game.supervise import running_games
from rulka.params import (
    ActionParams,
    Algorithm,
    IqnParams,
    NetworkParams,
    ObservationParams,
    PpoParams,
    RaceEndParams,
    RewardParams,
    SimulatorParams,
    TrainParams,
    read_params,
)
from rulka.provenance import hash_json, hash_path, provenance
from rulka.race_settings import RaceSettings
from rulka.runtime.connect import train_run
from rulka.runtime.demonstrations import demonstration_blocks
from rulka.runtime.fingerprint import code_hash
from rulka.runtime.learner_loop import Outcome
from rulka.runtime.live import TRACK_FILE
from rulka.runtime.metrics_log import METRICS_FILE
from rulka.runtime.parts import (
    agent_config,
    block_spec,
    build_actor,
    build_cars,
    build_game_cars,
    build_learner,
    num_games,
)
from rulka.runtime.records import RECORD_FILE
from rulka.runtime.run_folder import (
    FINAL_FOLDER,
    clean_up,
    drop_experience,
    forget_run,
    is_delivered,
    is_recorded,
    locked,
    note_delivery,
)
from rulka.runtime.specs import RunSpec
from rulka.stage import output_folder, require, run_stage

_LOGGER = logging.getLogger(__name__)


class TrainInputError(UserError):
    """The initial agent was made for other parameters; the message names what differs."""


@dataclass(frozen=True)
class Folders:
    """Where the stage reads and writes.

    Attributes:
        agent_init: `data/agent_init`.
        races: `data/races`.
        frames: `data/frames`.
        runs: `runs/train`, for live checkpoints and metrics.
        out: `data/agent`.
    """

    agent_init: Path
    races: Path
    frames: Path
    runs: Path
    out: Path


@dataclass(frozen=True)
class Sections:
    """All parameter sections that training reads, as one value."""

    observation: ObservationParams
    actions: ActionParams
    simulator: SimulatorParams
    race_end: RaceEndParams
    encoder: EncoderConfig
    network: NetworkParams
    rewards: RewardParams
    train: TrainParams
    ppo: PpoParams
    iqn: IqnParams

    def of(self, algorithm: Algorithm) -> dict[str, BaseModel]:
        """Returns the sections that matter to one algorithm, by name."""
        other = "iqn" if algorithm == "ppo" else "ppo"
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != other}


def train(  # noqa: PLR0913, PLR0917 - a stage takes exactly the sections it reads
    observation: ObservationParams,
    actions: ActionParams,
    simulator: SimulatorParams,
    race_end: RaceEndParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    rewards: RewardParams,
    train: TrainParams,
    ppo: PpoParams,
    iqn: IqnParams,
    *,
    folders: Folders,
) -> None:
    """Trains every algorithm with the same budget and keeps the best weights of each.

    Raises:
        UserError: if an input is missing or damaged or does not fit the parameters, or another process trains this.
        WorkerCrashError: if a collector keeps crashing.
    """
    require(folders.agent_init, "transfer")
    require(folders.races, "races")
    torch.set_num_threads(1)
    keep_freed_memory()
    device = use_device()
    sections = Sections(observation, actions, simulator, race_end, encoder, network, rewards, train, ppo, iqn)
    algorithms: list[Algorithm] = [train.algorithm, *train.compared]
    runs = {algorithm: AgentRun(algorithm, sections, folders, device) for algorithm in algorithms}
    with ExitStack() as stack:
        for run in runs.values():
            stack.enter_context(locked(run.folder))
        clean_up(folders.runs, [run.folder for run in runs.values()])
        for run in runs.values():
            run.finish()
        with output_folder(folders.out) as out:
            for algorithm, run in runs.items():
                run.deliver(out if algorithm == train.algorithm else out / COMPARED / algorithm)
        for run in runs.values():
            drop_experience(run.folder)


class AgentRun:
    """The training of one algorithm.

    Attributes:
        folder: `runs/train/<algorithm>-<fingerprint>`.
        final_dir: the trained agent, as soon as there is one.
    """

    def __init__(self, algorithm: Algorithm, sections: Sections, folders: Folders, device: torch.device = CPU) -> None:
        """Finds out which run it is; the device decides where it computes, and nothing else.

        Raises:
            UserError: if the initial agent is missing, damaged or made for other parameters.
        """
        self._algorithm: Algorithm = algorithm
        self._device = device
        self._sections, self._folders = sections, folders
        self._table: ActionTable = agent_table(algorithm, sections.actions, sections.network)
        is_main = algorithm == sections.train.algorithm
        self._init_dir = folders.agent_init if is_main else folders.agent_init / COMPARED / algorithm
        require(self._init_dir / META_FILE, "transfer")
        self._track = track_path(folders.races, read_races_meta(folders.races)["main_track"])
        self.folder = folders.runs / f"{algorithm}-{self._fingerprint()[:16]}"
        self.final_dir = self.folder / FINAL_FOLDER

    def finish(self) -> None:
        """Trains, or goes on training, until there is a trained agent in `final_dir`.

        The folder has to be locked, see `rulka.runtime.run_folder`.
        """
        if is_recorded(self.folder):
            _LOGGER.warning("DVC has recorded what %s became: training begins anew", self.folder.as_posix())
            forget_run(self.folder)
        if self._is_trained():
            return
        initial = self._initial()
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._track, self.folder / TRACK_FILE)
        if self._sections.train.environment == "game":
            with running_games(read_game_settings(), num_games(self._sections.train)) as link:
                outcome = train_run(self._in_games(self._run_spec(initial), link))
        else:
            outcome = train_run(self._run_spec(initial))
        save_artifact(self.final_dir, self._trained(initial, outcome))

    def deliver(self, out: Path) -> None:
        """Copies the trained agent, the log and the record into the stage's output, and notes that in the run."""
        out.mkdir(parents=True, exist_ok=True)
        for file in self.final_dir.iterdir():
            shutil.copyfile(file, out / file.name)
        shutil.copyfile(self.folder / METRICS_FILE, out / TRAINING_LOG)
        if (self.folder / RECORD_FILE).exists():
            shutil.copyfile(self.folder / RECORD_FILE, out / RECORD_FILE)
        note_delivery(self.folder)

    def _is_trained(self) -> bool:
        """Whether there is a trained agent; a damaged one is removed and said to be."""
        if not self.final_dir.exists():
            return False
        try:
            load_artifact(self.final_dir, "agent", observation=self._sections.observation, actions=self._table)
        except ArtifactError as error:
            _LOGGER.warning("a trained agent is damaged, and is made again from the last checkpoint: %s", error)
            shutil.rmtree(self.final_dir)
            return False
        state = "delivered again, as DVC has not recorded it" if is_delivered(self.folder) else "not trained again"
        _LOGGER.warning("%s: trained to its end; it is %s", self.folder.as_posix(), state)
        return True

    def _fingerprint(self) -> str:
        """Returns a hash of everything that decides how the run goes."""
        return hash_json([self._algorithm, self._parameters(), self._inputs(), code_hash(self._algorithm)])

    def _parameters(self) -> dict[str, Any]:
        """Returns the parameters that the training of this algorithm reads."""
        sections = {name: part.model_dump(mode="json") for name, part in self._sections.of(self._algorithm).items()}
        for name in ("algorithm", "compared"):  # which other algorithms are trained makes no difference
            del sections["train"][name]
        if self._algorithm == "ppo":
            for name in ("iqn", "tau_embedding"):
                del sections["network"][name]
        return sections

    def _inputs(self) -> dict[str, str]:
        """Returns hashes of the inputs that the training of this algorithm reads."""
        meta = read_meta(self._init_dir)
        inputs = {"weights": meta["weights_sha256"], "track": hash_path(self._track)}
        if self._algorithm == "iqn" and self._sections.iqn.warmup_steps:
            inputs["warmup"] = read_meta(require(self._init_dir / WARMUP_POLICY, "transfer"))["weights_sha256"]
        if self._is_shown_races:
            inputs["frames"] = hash_path(require(self._folders.frames, "capture"))
            inputs["races"] = hash_path(self._folders.races)
        return inputs

    @property
    def _is_shown_races(self) -> bool:
        """Whether the agent learns from demonstrations beside its own experience."""
        return self._algorithm == "iqn" and self._sections.iqn.demonstration_share > 0.0

    def _initial(self) -> Artifact:
        initial = load_artifact(
            self._init_dir,
            "agent_init",
            observation=self._sections.observation,
            actions=self._table,
            encoder=self._sections.encoder,
        )
        expected = self._sections.network.model_dump(mode="json")
        for name, value in {"algorithm": self._algorithm, "network": expected}.items():
            if initial.config.get(name) != value:
                message = f"{self._init_dir.as_posix()} has {name} {initial.config.get(name)}, expected {value}"
                raise TrainInputError(message, hint="Run `dvc repro transfer` again.")
        return initial

    def _in_games(self, spec: RunSpec, first: GameLink) -> RunSpec:
        """Returns the run with every collector in a game of its own, and the greedy checks in the last one."""
        make_cars, last = partial(build_game_cars, self._track, self._race_settings()), num_games(spec.train) - 1
        return replace(
            spec,
            make_cars=partial(make_cars, first.instance(last)),
            make_collector_cars=lambda index: partial(make_cars, first.instance(index)),
        )

    def _run_spec(self, initial: Artifact) -> RunSpec:
        sections = self._sections
        spec = self._agent_spec(initial)
        warmup_dir = self._init_dir / WARMUP_POLICY if spec.has_policy_network else None
        return RunSpec(
            make_cars=partial(build_cars, self._track, self._race_settings()),
            make_actor=partial(build_actor, spec, warmup_dir),
            make_learner=lambda: build_learner(
                spec, initial, sections.train.seed, self._demonstrations(), self._device
            ),
            block=block_spec(sections.observation, sections.train, self._table.actions_per_decision),
            train=sections.train,
            folder=self.folder,
            label=f"train {self._algorithm}",
            device=self._device,
        )

    def _race_settings(self) -> RaceSettings:
        own, count = self._sections, self._table.actions_per_decision
        return RaceSettings.for_training(
            own.observation, own.actions, own.simulator, own.race_end, own.rewards, own.train, count
        )

    def _agent_spec(self, initial: Artifact) -> AgentSpec:
        sections = self._sections
        return AgentSpec(
            algorithm=self._algorithm,
            observation=sections.observation,
            encoder=sections.encoder,
            network=sections.network,
            ppo=sections.ppo,
            iqn=sections.iqn,
            num_actions=self._table.num_actions,
            normalisation=initial.normalisation,
            has_policy_network=self._algorithm == "iqn" and sections.iqn.warmup_steps > 0,
            precision=sections.train.precision,
        )

    def _demonstrations(self) -> list[ExperienceBlock]:
        """Returns what the agent is shown; nothing where its algorithm learns from its own experience alone."""
        if not self._is_shown_races:
            return []
        require(self._folders.frames, "capture")
        return demonstration_blocks(self._folders.frames, load_races(self._folders.races), self._sections.rewards)

    def _trained(self, initial: Artifact, outcome: Outcome) -> Artifact:
        inputs = {"agent_init": self._init_dir / META_FILE, "track": self._track}
        origin = provenance("train", self._sections.of(self._algorithm), inputs)
        return Artifact(
            kind="agent",
            tensors=outcome.best.tensors,
            config=agent_config(self._agent_spec(initial), self._table),
            observation=observation_contract(self._sections.observation, self._table.actions_per_decision),
            actions=self._table,
            normalisation=initial.normalisation,
            provenance=origin | {"training": _training(outcome, self._sections.train)},
        )


def _training(outcome: Outcome, train: TrainParams) -> dict[str, Any]:
    """Returns what a report needs to say honestly what was done."""
    return {
        "env_steps": outcome.state.env_steps,
        "gradient_steps": outcome.state.gradient_steps,
        "minutes": round(outcome.state.seconds / 60.0, 3),
        "num_starts": outcome.state.num_starts,
        "ended_by": outcome.ended_by,
        "record_s": outcome.record_s,
        "weights_of_env_steps": outcome.best.env_steps,
        "last_check": asdict(outcome.best.result),
        "precision": {"bfloat16": "bf16"}.get(outcome.precision, outcome.precision),
        "num_collectors": train.num_collectors,
        "cars": max(1, train.num_collectors) * train.cars_per_collector,
    }


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    params = read_params()
    train(
        params.observation,
        params.actions,
        params.simulator,
        params.race_end,
        params.encoder,
        params.network,
        params.rewards,
        params.train,
        params.ppo,
        params.iqn,
        folders=Folders(agent_init=AGENT_INIT, races=RACES, frames=FRAMES, runs=TRAINING_RUNS, out=AGENT),
    )


if __name__ == "__main__":
    run_stage(main, after_interrupt="Training goes on from its last checkpoint in runs/train, where it had saved one.")
