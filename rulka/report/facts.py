"""What was used to make an agent, in words, read from the metadata of its artifacts; and how long every stage took.

A fact that the metadata does not hold is left out, never guessed.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from rulka.agents.algorithms import ALGORITHMS, label_of
from rulka.artifacts import META_FILE, read_meta
from rulka.datasets.races import Race
from rulka.evaluation.race import EvaluationRaces
from rulka.evaluation.results import Evaluation
from rulka.folders import COMPARED, TRANSFER_REPORT

REPORTED_PACKAGES = ("rulka", "torch", "numpy", "numba", "gymnasium", "matplotlib", "av", "dvc", "prefect")
PRECISIONS = {
    "bf16": "bfloat16 arithmetic",
    "bfloat16": "bfloat16 arithmetic",
    "float32": "float32 arithmetic",
}
_PART_NAMES = {"float_head": "float head", "heads": "policy head"}
"""How the parts of an agent are called where the word of the parameters is not English."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Fact:
    """One line of the list: a short label and a sentence or two."""

    label: str
    text: str


@dataclass(frozen=True)
class Origins:
    """Metadata of everything the agent was made from; a missing artifact is an empty dictionary.

    Attributes:
        encoder: of Level 0.
        policy: of Level 1.
        agent_init: of the transfer.
        agent: of the trained agent.
        compared: of the agents of other algorithms, in the order of their names.
    """

    encoder: Json
    policy: Json
    agent_init: Json
    agent: Json
    compared: tuple[Json, ...]

    def parameters(self) -> Json:
        """Returns every parameter section that made the agent; where stages differ, the later one's."""
        merged: Json = {}
        for meta in (self.encoder, self.policy, self.agent_init, self.agent):
            merged |= _parameters(meta)
        return merged


def read_origins(encoder_dir: Path, policy_dir: Path, agent_init_dir: Path, agent_dir: Path) -> Origins:
    """Reads the metadata of the artifacts that exist.

    Raises:
        ArtifactError: if the metadata of one is damaged.
    """
    folders = (encoder_dir, policy_dir, agent_init_dir, agent_dir)
    metas = [read_meta(folder) if (folder / META_FILE).exists() else {} for folder in folders]
    compared = tuple(read_meta(path.parent) for path in sorted((agent_dir / COMPARED).glob(f"*/{META_FILE}")))
    return Origins(*metas, compared=compared)


def facts_of(
    evaluation: Evaluation, demonstrations: list[Race], origins: Origins, transfer: str, races: EvaluationRaces
) -> list[Fact]:
    """Returns the honest list of what was used.

    Args:
        evaluation: all races.
        demonstrations: the races of the dataset on this track.
        origins: metadata of the artifacts.
        transfer: one sentence about the transfer, empty when unknown.
        races: from which starts they were, and how they go.
    """
    parameters = origins.parameters()
    facts = [
        Fact("Track", _track(evaluation)),
        Fact("Demonstrations", _demonstrations(demonstrations)),
        Fact("Pretraining", _pretraining(parameters, origins)),
        Fact("Transfer", transfer),
        Fact("Training", _training(origins.agent)),
        Fact("Also trained", " ".join(_training(meta) for meta in origins.compared)),
        Fact("Help on the way", _help(origins)),
        Fact("Choice of weights", _choice(parameters, _training_run(origins.agent))),
        Fact("Evaluation", _evaluation(races)),
        Fact("Machine", _machine(_training_run(origins.agent))),
        Fact("Software", _software(origins)),
    ]
    return [fact for fact in facts if fact.text]


def _track(evaluation: Evaluation) -> str:
    track = evaluation.track
    num_between = len(track.gate_m) - 1
    climb_m = float(track.centre_m[:, 1].max() - track.centre_m[:, 1].min())
    return (
        f"{track.name} ({track.uid}): {track.length_m:.0f} m, {track.width_m.mean():.0f} m wide, "
        f"{climb_m:.0f} m between its lowest and highest point, {_count(num_between, 'gate')} before the finish. "
        f"{_sentence(track.source)}"
    )


def _demonstrations(races: list[Race]) -> str:
    num_people, num_driven = (sum(race.source == source for race in races) for source in ("recording", "driver"))
    players = len({race.player for race in races if race.source == "recording"})
    parts = []
    if num_people:
        parts.append(f"{_count(num_people, 'recording')} of {_count(players, 'player')}, driven in the game")
    if num_driven:
        parts.append(f"{_count(num_driven, 'race')} of the built-in driver, driven in the simulator")
    finished = sum(race.is_finished for race in races)
    return f"{' and '.join(parts)}; {finished} of {len(races)} reached the finish." if parts else ""


def _pretraining(parameters: Json, origins: Origins) -> str:
    pretrain, clone = parameters.get("pretrain"), parameters.get("clone")
    parts = []
    if origins.encoder and pretrain:
        parts.append(f"Level 0: {pretrain['objective']['kind']} on frames, {_count(pretrain['epochs'], 'epoch')}.")
        parts.append(_probes(origins.encoder.get("provenance", {}).get("probes")))
    if origins.policy and clone:
        parts.append(f"Level 1: behaviour cloning, frames and floats to actions, {_count(clone['epochs'], 'epoch')}.")
    return " ".join(part for part in parts if part)


def _probes(probes: Json | None) -> str:
    """Says what a linear layer can tell from the encoder's features, where that was measured."""
    if not probes:
        return ""
    told, random = (
        f"{probes['lateral_m'][which]:.2f} m and the speed to {probes['speed_mps'][which]:.1f} m/s"
        for which in ("pretrained_error", "random_error")
    )
    return f"Its features tell the place across the road to {told} on held-out races (random weights: to {random})."


def _training_run(meta: Json) -> Json:
    """Returns what a training run reports about itself."""
    return meta.get("provenance", {}).get("training", {})


def _parameters(meta: Json) -> Json:
    """Returns the parameter sections that an artifact was made with."""
    return meta.get("provenance", {}).get("parameters", {})


def _training(meta: Json) -> str:
    training, train = _training_run(meta), _parameters(meta).get("train")
    if not train or not training:
        return ""
    num_collectors, cars = training.get("num_collectors", train["num_collectors"]), train["cars_per_collector"]
    learners = training.get("learners", 1)
    learner = "one learner" if learners == 1 else f"{learners} learners"
    who = f"{_count(num_collectors, 'collector process', 'collector processes')} with {cars} cars each and {learner}"
    if not num_collectors:
        who = f"one process with {cars} cars" if learners == 1 else f"{learners} learners with {cars} cars each"
    parts = [
        f"{label_of(str(meta.get('config', {}).get('algorithm', train['algorithm'])))}, {who}: "
        f"{training['env_steps']:,} env steps (decisions of one car) and {training['gradient_steps']:,} gradient steps "
        f"in {training['minutes']:.1f} minutes",
        PRECISIONS.get(training.get("precision", ""), ""),
        f"seed {train['seed']}",
    ]
    return ", ".join(part for part in parts if part) + "."


def _help(origins: Origins) -> str:
    """Says in which ways training had it easier than a race from the start line without any knowledge."""
    parameters = origins.parameters()
    train = parameters.get("train")
    if not train:
        return ""
    runs = [(meta.get("config", {}).get("algorithm", ""), meta) for meta in (origins.agent, *origins.compared)]
    parts = [_start(algorithm, parameters.get("transfer", {}).get(algorithm, {})) for algorithm, _ in runs]
    given = {name: entry.given_besides for name, entry in ALGORITHMS.items()}
    parts += [given[name](_parameters(meta).get(name, {})) for name, meta in runs if name in given]
    if train.get("start_anywhere"):
        parts.append(f"{train['start_anywhere']:.0%} of the training races start anywhere on the track.")
    if train.get("start_from_earlier"):
        parts.append(f"{train['start_from_earlier']:.0%} begin where an earlier race of the car was.")
    if train.get("environment") == "game":
        parts.append("Training drives the track in the game, evaluation in the simulator.")
    else:
        parts.append("Training and evaluation use the same track and the same simulator.")
    return " ".join(part for part in parts if part)


def _start(algorithm: str, parts: Mapping[str, str]) -> str:
    """Says where the weights come from that an agent starts with; empty where the metadata do not hold it."""
    if not parts:
        return ""
    name, taken = label_of(algorithm), [part for part, source in parts.items() if source != "fresh"]
    if not taken:
        return f"{name} starts from scratch, with random weights."
    if set(parts.values()) == {"cloned"}:
        return f"{name} starts as the cloned policy; what that has not starts random."
    if set(parts.values()) == {"agent"}:
        return f"{name} goes on from an earlier agent."
    whose = {part: "earlier agent's" if parts[part] == "agent" else parts[part] for part in taken}
    which = " and ".join(f"the {whose[part]} {_PART_NAMES.get(part, part)}" for part in taken)
    return f"{name} starts with {which}; the rest of its network starts random."


def _choice(parameters: Json, training: Json) -> str:
    train = parameters.get("train", {})
    if not train.get("check_races"):
        return ""
    taken = training.get("weights_of_env_steps")
    return (
        f"At {_count(train['num_checks'], 'time')} evenly over the budget, and before, the weights drive "
        f"{_count(train['check_races'], 'greedy race')} on this track; of the best "
        f"{train['check_candidates']} those are taken that do best in "
        f"{_count(train['final_check_races'], 'further race')}. Their starts are not those of this evaluation."
        + (f" Taken: those after {taken:,} env steps." if taken is not None else "")
    )


def _evaluation(races: EvaluationRaces) -> str:
    seeds, settings = races.seeds, races.settings
    return (
        f"Every contestant drives {_count(len(seeds), 'race')} from a standing start, seeds {seeds[0]} to "
        f"{seeds[-1]}: up to {settings.start_lateral_m:g} m beside the line and turned "
        f"by up to {settings.start_heading_deg:g}°. Policies take their most valued action, without exploration. "
        f"A race ends off the track, after {settings.no_progress_s:g} s without getting {settings.min_gain_m:g} m "
        f"further, or after {settings.max_race_s:g} s, as in training. A race that did not finish has no time."
    )


def _machine(training: Json) -> str:
    memory_gb = psutil.virtual_memory().total / 1e9
    name = _processor()
    device = training.get("device")
    trained = f"; trained on {device}" if device else ""
    cores = _count(os.cpu_count() or 1, "core")
    return f"Evaluated on {name}{cores}, {memory_gb:.0f} GB of memory, {platform.system()}{trained}."


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, " if names else ""


def _software(origins: Origins) -> str:
    parts = [f"Python {platform.python_version()}"]
    for name in REPORTED_PACKAGES:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    commit = origins.agent.get("provenance", {}).get("commit")
    return ", ".join(parts) + (f"; agent made at commit {commit[:10]}." if commit else ".")


def transfer_summary(agent_init_dir: Path) -> str:
    """Returns one sentence about which tensors the agent took over, empty when there is no report."""
    path = agent_init_dir / TRANSFER_REPORT
    if not path.exists():
        return ""
    report = json.loads(path.read_text(encoding="utf-8"))
    own = [tensor["action"] for tensor in report["tensors"] if tensor["where"] == "new network"]
    num_copied, num_kept = own.count("copied"), own.count("kept")
    if not num_copied:
        return f"None of the {num_kept} tensors of the agent's network was taken from what was learned before."
    text = f"{num_copied} of the {len(own)} tensors of the agent's network were copied from what was learned before"
    return f"{text}, {num_kept} start fresh." if num_kept else f"{text}."


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular}" if number == 1 else f"{number:,} {plural or singular + 's'}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
