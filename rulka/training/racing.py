"""The training of one algorithm: where it lies, what decides it, and how it becomes a finished agent.

A run is known by its fingerprint, a hash of parameters, inputs and code: a killed one goes on from its last checkpoint,
one whose parameters, inputs or code have changed has another fingerprint and starts afresh. A trained agent stays in
its run until DVC has recorded what was delivered.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from models.encoders.config import EncoderConfig
from rulka.actions import ActionTable
from rulka.agents.algorithms import ALGORITHMS, make_actor
from rulka.agents.learner import Learner
from rulka.agents.networks import decision_table
from rulka.agents.quantisation import check_acting_precision
from rulka.agents.spec import AgentSpec
from rulka.artifacts import (
    META_FILE,
    Artifact,
    ArtifactError,
    load_artifact,
    read_meta,
    save_artifact,
    sight_contract,
)
from rulka.buffers.experience import ExperienceBlock, PreferencePairs
from rulka.cluster import find_cluster
from rulka.datasets.races import load_races, track_path
from rulka.datasets.races import read_meta as read_races_meta
from rulka.device import CPU, devices_of_learners
from rulka.errors import UserError
from rulka.folders import COMPARED, TRAINING_LOG
from rulka.game.link import GameLink
from rulka.game.settings import read_game_settings
from rulka.game.supervise import running_games
from rulka.graph import code_files, hash_code
from rulka.params import (
    ALGORITHM_NAMES,
    ActionParams,
    Algorithm,
    AlgorithmParams,
    FilePairsParams,
    NetworkParams,
    ObservationParams,
    Params,
    RaceEndParams,
    RewardParams,
    SimulatorParams,
    TrainParams,
    keys_of,
)
from rulka.provenance import hash_json, hash_path, provenance
from rulka.race_settings import RaceSettings
from rulka.runtime.collector import CarBatch
from rulka.runtime.connect import train_run
from rulka.runtime.greedy_check import RECORD_FILE
from rulka.runtime.learner_loop import Outcome
from rulka.runtime.live import METRICS_FILE, TRACK_FILE
from rulka.runtime.specs import LearnerShare, MakeCars, RunSpec
from rulka.stage import require
from rulka.tracks.chosen import chosen_tracks
from rulka.tracks.track import Track, load_track
from rulka.training.demonstrations import demonstration_blocks
from rulka.training.parts import (
    acting_device,
    agent_config,
    block_spec,
    build_cars,
    build_cars_on_tracks,
    build_game_cars,
    build_learner,
    collecting_actor,
    num_games,
    share_of_agent,
)
from rulka.training.preference_pairs import CapturedRaces, given_pairs, pairs_file
from rulka.training.run_folder import FINAL_FOLDER, forget_run, is_delivered, is_recorded, note_delivery

_LOGGER = logging.getLogger(__name__)
TRACKS_FOLDER = "tracks"
"""The tracks of a run, in its folder: `0.npz` and so on."""


class TrainInputError(UserError):
    """The initial agent was made for other parameters; the message names what differs."""


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


@dataclass(frozen=True)
class Sections:
    """All parameter sections that training reads, as one value; `algorithms` are those of algorithms, by name."""

    observation: ObservationParams
    actions: ActionParams
    simulator: SimulatorParams
    race_end: RaceEndParams
    encoder: EncoderConfig
    network: NetworkParams
    rewards: RewardParams
    train: TrainParams
    algorithms: Mapping[Algorithm, AlgorithmParams]

    @classmethod
    def of_params(cls, params: Params) -> Sections:
        """Returns those among all parameters."""
        return cls(**{name: getattr(params, name) for name in cls.__dataclass_fields__})

    def of(self, algorithm: Algorithm) -> dict[str, BaseModel]:
        """Returns the sections that matter to one algorithm, by name."""
        shared: dict[str, BaseModel] = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "algorithms"
        }
        return shared | {algorithm: self.algorithms[algorithm]}


class AgentRun:
    """The training of one algorithm.

    Attributes:
        folder: `runs/train/<algorithm>-<fingerprint>`.
        final_dir: the trained agent, as soon as there is one.
    """

    def __init__(self, algorithm: Algorithm, sections: Sections, folders: Folders, device: torch.device = CPU) -> None:
        """Finds out which run it is; the device decides where it computes, and nothing else.

        Raises:
            UserError: if the initial agent is missing, damaged or made for other parameters; or if actors cannot
                compute here in `train.acting_precision`, or there are more learners than devices, or no cluster.
        """
        devices_of_learners(device, sections.train.learners)
        check_acting_precision(sections.train.acting_precision, acting_device(sections.train, device))
        if sections.train.cluster == "ray":
            find_cluster()
        self._algorithm: Algorithm = algorithm
        self._device = device
        self._sections, self._folders = sections, folders
        own: AlgorithmParams = sections.algorithms[algorithm]
        self._table: ActionTable = decision_table(sections.actions, sections.network, own.action_repeat)
        self._needs_demonstrations = ALGORITHMS[algorithm].needs_demonstrations(sections.algorithms[algorithm])
        self._given_pairs = ALGORITHMS[algorithm].given_pairs(sections.algorithms[algorithm])
        is_main = algorithm == sections.train.algorithm
        self._init_dir = folders.agent_init if is_main else folders.agent_init / COMPARED / algorithm
        require(self._init_dir / META_FILE, "transfer")
        self._track = track_path(folders.races, read_races_meta(folders.races)["main_track"])
        self._tracks: list[Track] = []  # that are raced on, as soon as the run is under way
        self.folder = folders.runs / f"{algorithm}-{self._fingerprint()[:16]}"
        self.final_dir = self.folder / FINAL_FOLDER

    def finish(self) -> None:
        """Trains, or goes on training, until there is a trained agent in `final_dir`.

        The folder has to be locked, see `rulka.training.run_folder`.
        """
        if is_recorded(self.folder):
            _LOGGER.warning("DVC has recorded what %s became: training begins anew", self.folder.as_posix())
            forget_run(self.folder)
        if self._is_trained():
            return
        initial = self._initial()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._sections.train.environment == "game":
            with running_games(read_game_settings(), num_games(self._sections.train)) as link:
                outcome = train_run(self._in_games(self._run_spec(initial), link))
        else:
            outcome = train_run(self._run_spec(initial))
        save_artifact(self.final_dir, self._trained(initial, outcome))

    def spec(self) -> RunSpec:
        """Returns the specification of the run, for whoever races its weights.

        Raises:
            UserError: if the initial agent is damaged or does not fit the parameters.
        """
        return self._run_spec(self._initial())

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
        """True if there is a trained agent; a damaged one is removed, with a warning."""
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
        others = tuple(key for name in ALGORITHM_NAMES if name != self._algorithm for key in keys_of(name))
        return _without(sections, others)

    def _inputs(self) -> dict[str, str]:
        """Returns hashes of the inputs that the training of this algorithm reads."""
        meta = read_meta(self._init_dir)
        inputs = {"weights": meta["weights_sha256"], "track": hash_path(self._track)}
        if self._needs_demonstrations or self._given_pairs is not None:
            inputs["frames"] = hash_path(require(self._folders.frames, "capture"))
            inputs["races"] = hash_path(self._folders.races)
        if isinstance(self._given_pairs, FilePairsParams):
            inputs["pairs"] = hash_path(pairs_file(self._given_pairs))
        return inputs

    def _initial(self) -> Artifact:
        initial = load_artifact(
            self._init_dir,
            "agent_init",
            observation=self._sections.observation,
            actions=self._table.taken_once,
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
            final_check_cars=spec.train.check_races,  # a game has one car
            make_collector_cars=partial(_in_game, make_cars, first),
        )

    def _lay_tracks(self) -> list[Path]:
        """Writes the tracks that are raced on where the run's processes, and the live page, look for them."""
        folder = self.folder / TRACKS_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._tracks = chosen_tracks(self._sections.train.tracks, load_track(self._track))
        files = [folder / f"{number}.npz" for number in range(len(self._tracks))]
        for track, file in zip(self._tracks, files, strict=True):
            track.save(file)
        if len(files) == 1:  # the page shows cars on the one track that there is
            shutil.copyfile(files[0], self.folder / TRACK_FILE)
        return files

    def _make_cars(self) -> dict[str, Any]:
        """Returns the factories of environments, by their names in `RunSpec`."""
        settings, train = self._race_settings(), self._sections.train
        files = self._lay_tracks()
        # Other nodes have no files of this run.
        tracks: list[Track] | list[Path] = self._tracks if train.cluster != "none" else files
        if len(files) == 1:
            return {"make_cars": partial(build_cars, tracks[0], settings)}
        # Every collector races on tracks of its own where there are enough.
        num_shares = min(train.num_batches, len(files))
        make_cars = [partial(build_cars_on_tracks, tracks[share::num_shares], settings) for share in range(num_shares)]
        return {
            "make_cars": partial(build_cars_on_tracks, tracks, settings),
            "make_collector_cars": partial(_in_turn, make_cars),
            "keeps_record": False,  # the fastest race is but one on the shortest track
        }

    def _run_spec(self, initial: Artifact) -> RunSpec:
        sections = self._sections
        spec = self._agent_spec(initial)
        return RunSpec(
            **self._make_cars(),
            make_actor=partial(make_actor, spec),
            make_collecting_actor=collecting_actor(spec, sections.train),
            build_learner=partial(_build_learner, spec, sections, self._folders, self._init_dir, self._table),
            block=block_spec(sections.observation, sections.train, self._table),
            train=sections.train,
            folder=self.folder,
            label=f"train {self._algorithm}",
            device=self._device,
        )

    def _race_settings(self) -> RaceSettings:
        own, count = self._sections, self._table.actions_per_decision
        settings = RaceSettings.for_training(
            own.observation, own.actions, own.simulator, own.race_end, own.rewards, own.train, count
        )
        return settings.decided_by(self._table).with_equal_starts(own.algorithms[self._algorithm].races_per_start)

    def _agent_spec(self, initial: Artifact) -> AgentSpec:
        sections = self._sections
        return AgentSpec(
            algorithm=self._algorithm,
            observation=sections.observation,
            encoder=initial.encoder,
            network=sections.network,
            settings=sections.algorithms[self._algorithm],
            actions=self._table.space,
            normalisation=initial.normalisation,
            decision_ms=self._table.duration_ms,
            precision=sections.train.precision,
        )

    def _trained(self, initial: Artifact, outcome: Outcome) -> Artifact:
        inputs = {"agent_init": self._init_dir / META_FILE, "track": self._track}
        origin = provenance("train", self._sections.of(self._algorithm), inputs)
        return Artifact(
            kind="agent",
            tensors=outcome.best.tensors,
            config=agent_config(self._agent_spec(initial), self._table),
            observation=sight_contract(self._sections.observation, self._table.actions_per_decision),
            actions=self._table,
            normalisation=initial.normalisation,
            provenance=origin | {"training": self._training(outcome)},
        )

    def _training(self, outcome: Outcome) -> dict[str, Any]:
        """Returns facts of the training for reports."""
        train = self._sections.train
        return {
            "env_steps": outcome.state.env_steps,
            "gradient_steps": outcome.state.gradient_steps,
            "minutes": round(outcome.state.seconds / 60.0, 3),
            "cpu_minutes": round(outcome.state.cpu_seconds / 60.0, 3),
            "num_starts": outcome.state.num_starts,
            "ended_by": outcome.ended_by,
            "record_s": outcome.record_s,
            "weights_of_env_steps": outcome.best.env_steps,
            "last_check": asdict(outcome.best.result),
            "precision": {"bfloat16": "bf16"}.get(outcome.precision, outcome.precision),
            "learners": train.learners,
            "num_collectors": train.num_collectors,
            "cars": train.num_cars,
            "tracks": [track.uid for track in self._tracks],
        }


def _in_turn(make_cars: Sequence[MakeCars], collector: int) -> MakeCars:
    """Returns the factory of a collector's environment, of some that collectors have in turn."""
    return make_cars[collector % len(make_cars)]


def _in_game(make_cars: Callable[..., CarBatch], first: GameLink, collector: int) -> MakeCars:
    """Returns the factory that connects a collector to a game of its own."""
    return partial(make_cars, first.instance(collector))


def _build_learner(
    spec: AgentSpec, sections: Sections, folders: Folders, init_dir: Path, table: ActionTable, share: LearnerShare
) -> Learner:
    """Builds the learner of a run, or one of several, in whatever process; see `rulka.runtime.specs.BuildLearner`.

    Args:
        spec: of the agent.
        sections: all that training reads.
        folders: where it reads.
        init_dir: of the initial agent, which was found to fit.
        table: its actions.
        share: what this learner has of the run.
    """
    initial = load_artifact(
        init_dir, "agent_init", observation=sections.observation, actions=table.taken_once, encoder=sections.encoder
    )
    entry, settings, seed = ALGORITHMS[spec.algorithm], sections.algorithms[spec.algorithm], sections.train.seed
    seen, places = sections.observation.frames, table.actions_per_decision
    demonstrations: list[ExperienceBlock] = []
    if entry.needs_demonstrations(settings):
        frames, races = require(folders.frames, "capture"), load_races(folders.races)
        demonstrations = demonstration_blocks(frames, races, sections.rewards, seen, table)
    pairs: PreferencePairs | None = None
    if (wanted := entry.given_pairs(settings)) is not None:
        captured = CapturedRaces(require(folders.frames, "capture"), load_races(folders.races), seen, places)
        pairs = given_pairs(wanted, captured, seed)
    return build_learner(share_of_agent(spec, share), initial, seed, demonstrations, share.device, pairs)


def _without(values: dict[str, Any], beginnings: tuple[str, ...], inside: str = "") -> dict[str, Any]:
    """Returns nested parameters without the keys whose dotted names begin so."""
    return {
        key: _without(value, beginnings, f"{inside}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
        if not f"{inside}{key}.".startswith(beginnings)
    }


def code_of(algorithm: Algorithm) -> list[Path]:
    """Returns the files of code that decide how the training of an algorithm goes.

    These are all among the `deps` of stage `train` in `dvc.yaml`, less those that the entries of other algorithms list
    as their own. A file that nobody lists counts for all algorithms: that costs a training at worst, and a file listed
    wrongly would let old work pass for new.
    """
    others = {pattern for entry in ALGORITHMS.values() for pattern in entry.own_code}
    others -= set(ALGORITHMS[algorithm].own_code)
    return [file for file in code_files("train") if not any(file.match(pattern) for pattern in others)]


def code_hash(algorithm: Algorithm) -> str:
    """Returns the SHA-256 of the code that decides how the training of an algorithm goes."""
    return hash_code(code_of(algorithm))
