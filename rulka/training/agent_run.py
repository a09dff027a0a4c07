"""Training run of one algorithm: its folder, its fingerprint, and the delivery of the finished agent.

A run is identified by its fingerprint, a hash of parameters, inputs and code. A killed run resumes from its last
checkpoint. If parameters, inputs or code have changed, the fingerprint differs and a new run starts. The trained agent
stays in its run, from which it can be delivered again.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from rulka.agents.params import ALGORITHMS, Algorithm
from rulka.agents.preferences.params import FilePairsParams
from rulka.agents.shared.networks import decision_table
from rulka.agents.shared.spec import AgentSpec
from rulka.contracts.artifacts import META_FILE, Artifact, ArtifactError, load_artifact, read_meta, save_artifact
from rulka.datasets.formats.races import read_meta as read_races_meta
from rulka.datasets.formats.races import track_path
from rulka.game.link import GameLink
from rulka.game.settings import read_game_settings
from rulka.game.supervise import running_games
from rulka.machine.device import CPU
from rulka.machine.errors import UserError
from rulka.params import Params, keys_of
from rulka.runtime.connect import train_run
from rulka.runtime.greedy_check import RECORD_FILE
from rulka.runtime.live import METRICS_FILE, TRACK_FILE
from rulka.runtime.metrics import MEASURED
from rulka.runtime.metrics_log import read_metrics
from rulka.runtime.specs import RunSpec
from rulka.simulator.race_settings import RaceSettings
from rulka.stages.folders import COMPARED, TRAINING_LOG
from rulka.stages.graph import code_files, hash_code
from rulka.stages.provenance import hash_json, hash_path, provenance
from rulka.stages.stage import require
from rulka.tracks.find import chosen_tracks
from rulka.tracks.track import load_track
from rulka.training.environment import agent_spec, check_machine, run_spec, trained_agent
from rulka.training.old_runs import FINAL_FOLDER
from rulka.training.preference_pairs import pairs_file
from rulka.training.race_environment import GameEnvironment, RaceEnvironment

SECTIONS = ("observation", "actions", "simulator", "race_end", "encoder", "network", "rewards", "train")
"""Sections of the parameters that training reads, in addition to those of the trained algorithms."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Folders:
    """Folders that training reads and writes.

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


def sections_of(params: Params, algorithm: Algorithm, shared: tuple[str, ...] = SECTIONS) -> dict[str, BaseModel]:
    """Returns the sections that affect the training of one algorithm, by name."""
    return {name: getattr(params, name) for name in (*shared, algorithm)}


class AgentRun:
    """The training of one algorithm.

    Attributes:
        folder: `runs/train/<algorithm>-<fingerprint>`.
        final_dir: the trained agent, once it exists.
    """

    def __init__(self, algorithm: Algorithm, params: Params, folders: Folders, device: torch.device = CPU) -> None:
        """Computes the fingerprint and folder of the run. The device is not part of the fingerprint.

        Raises:
            UserError: if the initial agent is missing, damaged or made for other parameters; if actors cannot compute
                here in `train.acting_precision`; if there are more learners than devices; or if there is no cluster.
        """
        check_machine(params.train, device)
        self._algorithm: Algorithm = algorithm
        self._device = device
        self._params, self._folders = params, folders
        self._settings = params.algorithms[algorithm]
        self._table = decision_table(params.actions, params.network, self._settings.action_repeat)
        self._given_pairs = self._settings.given_pairs
        self._reads_races = self._settings.has_demonstrations or self._given_pairs is not None
        is_main = algorithm == params.train.algorithm
        self._init_dir = folders.agent_init if is_main else folders.agent_init / COMPARED / algorithm
        require(self._init_dir / META_FILE, "transfer")
        self._track = track_path(folders.races, read_races_meta(folders.races)["main_track"])
        self.folder = folders.runs / f"{algorithm}-{self._fingerprint()[:16]}"
        self.final_dir = self.folder / FINAL_FOLDER

    def train(self) -> None:
        """Trains, or resumes training, until `final_dir` holds the trained agent.

        The caller must lock the folder, see `rulka.training.old_runs`.
        """
        if self._is_trained():
            return
        initial = self._initial()
        train = self._params.train
        is_game = train.environment == "game"
        with running_games(read_game_settings(), train.num_batches + 1) if is_game else nullcontext() as link:
            environment = self._environment(link)
            outcome = train_run(self._run_spec(initial, environment))
        inputs = {"agent_init": self._init_dir / META_FILE, "track": self._track}
        origin = provenance("train", sections_of(self._params, self._algorithm), inputs)
        facts = {
            "run": self.folder.name,
            "learners": train.learners,
            "num_collectors": train.num_collectors,
            "cars": train.num_cars,
            "tracks": [track.uid for track in environment.tracks],
        }
        agent = trained_agent(environment, self._agent_spec(initial, environment), outcome, origin, **facts)
        save_artifact(self.final_dir, agent)
        self._compare(agent.provenance["training"])

    def spec(self) -> RunSpec:
        """Returns the specification of the run, for racing with its weights.

        Raises:
            UserError: if the initial agent is damaged or does not fit the parameters.
        """
        return self._run_spec(self._initial(), self._environment())

    def deliver(self, out: Path) -> None:
        """Copies the trained agent, the record and the log (without the `MEASURED` columns) into the stage's output."""
        out.mkdir(parents=True, exist_ok=True)
        for file in self.final_dir.iterdir():
            shutil.copyfile(file, out / file.name)
        logged = read_metrics(self.folder / METRICS_FILE)
        lines = [{name: value for name, value in line.items() if name not in MEASURED} for line in logged]
        (out / TRAINING_LOG).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        if (self.folder / RECORD_FILE).exists():
            shutil.copyfile(self.folder / RECORD_FILE, out / RECORD_FILE)

    def _compare(self, training: Mapping[str, Any]) -> None:
        """Warns if the agent in the stage's output came from an identical run but has different weights."""
        out = self._folders.out
        if self._algorithm != self._params.train.algorithm:
            out = out / COMPARED / self._algorithm
        with suppress(ArtifactError):
            before = read_meta(out)["provenance"].get("training", {})
            words = describe_divergence(before.get("marks", []), training["marks"])
            if words and (before.get("run"), before.get("repeats")) == (self.folder.name, training["repeats"]):
                _LOGGER.warning("%s came of equal parameters, inputs and code, and now %s", out.as_posix(), words)

    def _is_trained(self) -> bool:
        """True if there is a trained agent; a damaged one is removed, with a warning."""
        if not self.final_dir.exists():
            return False
        try:
            load_artifact(self.final_dir, "agent", observation=self._params.observation, actions=self._table)
        except ArtifactError as error:
            _LOGGER.warning("a trained agent is damaged, and is made again from the last checkpoint: %s", error)
            shutil.rmtree(self.final_dir)
            return False
        _LOGGER.warning(
            "%s is trained to its end and delivered again. To train anew, remove it", self.folder.as_posix()
        )
        return True

    def _fingerprint(self) -> str:
        """Returns a hash of everything that affects the run."""
        return hash_json([self._algorithm, self._parameters(), self._inputs(), code_hash()])

    def _parameters(self) -> dict[str, Any]:
        """Returns the parameters that the training of this algorithm reads."""
        read = sections_of(self._params, self._algorithm)
        sections = {name: section.model_dump(mode="json") for name, section in read.items()}
        # The choice of other trained algorithms makes no difference.
        for name in ("algorithm", "compared"):
            del sections["train"][name]
        others = tuple(key for name in ALGORITHMS if name != self._algorithm for key in keys_of(name))
        return _without(sections, others)

    def _inputs(self) -> dict[str, str]:
        """Returns hashes of the inputs that the training of this algorithm reads."""
        meta = read_meta(self._init_dir)
        inputs = {"weights": meta["weights_sha256"], "track": hash_path(self._track)}
        if self._reads_races:
            inputs["frames"] = hash_path(require(self._folders.frames, "capture"))
            inputs["races"] = hash_path(self._folders.races)
        if isinstance(self._given_pairs, FilePairsParams):
            inputs["pairs"] = hash_path(pairs_file(self._given_pairs))
        return inputs

    def _initial(self) -> Artifact:
        initial = load_artifact(
            self._init_dir,
            "agent_init",
            observation=self._params.observation,
            actions=self._table.taken_once,
            encoder=self._params.encoder,
        )
        expected = self._params.network.model_dump(mode="json")
        for name, value in {"algorithm": self._algorithm, "network": expected}.items():
            if initial.config.get(name) != value:
                message = f"{self._init_dir.as_posix()} has {name} {initial.config.get(name)}, expected {value}"
                raise UserError(message, hint="Run `dvc repro transfer` again.")
        return initial

    def _environment(self, link: GameLink | None = None) -> RaceEnvironment:
        """Returns the training environment: games if there is a link to the first one, else the simulator."""
        own, train = self._params, self._params.train
        settings = RaceSettings.for_training(
            own.observation,
            own.actions,
            own.simulator,
            own.race_end,
            own.rewards,
            train,
            self._table.parts,
        ).decided_by(self._table)
        environment = RaceEnvironment(
            settings=settings.with_equal_starts(self._settings.races_per_start),
            tracks=chosen_tracks(train.tracks, load_track(self._track)),
            num_shares=train.num_batches,
            races_dir=self._folders.races,
            frames_dir=self._folders.frames,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        if environment.keeps_record:  # the live page shows cars if there is only one track
            environment.tracks[0].save(self.folder / TRACK_FILE)
        return environment if link is None else GameEnvironment(**vars(environment), link=link, last=train.num_batches)

    def _run_spec(self, initial: Artifact, environment: RaceEnvironment) -> RunSpec:
        spec = self._agent_spec(initial, environment)
        return run_spec(environment, spec, self._params.train, self.folder, self._device, self._init_dir)

    def _agent_spec(self, initial: Artifact, environment: RaceEnvironment) -> AgentSpec:
        return agent_spec(self._params, self._algorithm, environment, initial.normalisation, initial.encoder)


def _without(values: dict[str, Any], beginnings: tuple[str, ...], inside: str = "") -> dict[str, Any]:
    """Returns nested parameters without keys whose dotted names start with one of `beginnings`."""
    return {
        key: _without(value, beginnings, f"{inside}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
        if not f"{inside}{key}.".startswith(beginnings)
    }


def describe_divergence(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> str:
    """Describes when the weights of two trainings first differed; empty if they never did.

    Args:
        one: marks of a training: environment steps at each greedy check, and the weights' checksum then.
        other: marks of the other training.
    """
    same = 0
    for mark, found in zip_longest(one, other):
        if mark is None or found is None or tuple(mark) != tuple(found):
            (differs_at, _) = mark or found or (same, 0)
            return f"the weights differ at {differs_at} environment steps; at {same} they were the same"
        same = mark[0]
    return ""


def code_hash() -> str:
    """Returns the SHA-256 of the code that affects training: all that `dvc.yaml` lists for the stage."""
    return hash_code(code_files("train"))
