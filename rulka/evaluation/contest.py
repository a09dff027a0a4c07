"""Races all contestants from the same starts: agent, other algorithms, cloned policy, random actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import torch

from rulka.agents.load import load_policy
from rulka.contracts.artifacts import META_FILE, read_meta
from rulka.evaluation.external_policy import find_guest, is_guest
from rulka.evaluation.race import EvaluationRaces, Policy, RandomPolicy, race
from rulka.evaluation.results import Contestant, Evaluation, RaceResult
from rulka.machine.progress import Progress
from rulka.stages.folders import COMPARED


@dataclass(frozen=True)
class Driver:
    """A contestant before its races.

    Attributes:
        key: its name in `metrics.json`.
        label: its display name.
        policy: its policy.
    """

    key: str
    label: str
    policy: Policy


def agent_driver(agent: Path | str, races: EvaluationRaces | None, device: torch.device, key: str = "agent") -> Driver:
    """Loads an agent, any other driving artifact, or a function.

    Args:
        agent: folder of the artifact; or MODULE:FUNCTION, see `rulka.evaluation.external_policy`.
        races: the races, which define the expected actions; None for its own. An artifact sees what it was made for.
        device: device of its network.
        key: its name in `metrics.json`.

    Raises:
        ArtifactError: if it is damaged, or made for other actions.
        UserError: if there is no such function.
    """
    if is_guest(agent):
        guest = find_guest(str(agent))
        return Driver(key, guest.label, guest)
    policy = load_policy(Path(agent), actions=races and races.settings.table, device=device)
    return Driver(key, f"Agent ({policy.label})" if key == "agent" else policy.label, policy)


def drivers(
    agent_dir: Path, policy_dir: Path, guests: Sequence[str], races: EvaluationRaces, device: torch.device
) -> list[Driver]:
    """Loads all contestants of the stage onto a device: the agent first, random actions last.

    Raises:
        ArtifactError: if an artifact is damaged, or made for other actions.
        UserError: if one of the guests is not a function.
    """
    found = [agent_driver(agent_dir, races, device)]
    for folder in sorted((agent_dir / COMPARED).glob(f"*/{META_FILE}")):
        found.append(agent_driver(folder.parent, races, device, key=folder.parent.name))
    found += [agent_driver(name, races, device, key=name) for name in guests]
    found.append(replace(agent_driver(policy_dir, races, device, key="cloned"), label="Cloned policy"))
    found.append(Driver("random", "Random actions", RandomPolicy(races.seeds, races.settings.table.num_actions)))
    return found


def trained_tracks(agent_dir: Path) -> list[str]:
    """Returns the UIDs of the tracks that an agent was trained on; none if its metadata does not list them."""
    return list(read_meta(agent_dir).get("provenance", {}).get("training", {}).get("tracks", ()))


def race_all(
    entries: Sequence[Driver],
    races: EvaluationRaces,
    demonstrations: list[RaceResult],
    reference: RaceResult | None = None,
    stream: TextIO | None = None,
    label: str = "evaluate",
) -> Evaluation:
    """Runs all races of all contestants, with a progress bar.

    A single torch thread keeps sums, and thus races, the same.

    Args:
        entries: contestants, the agent first.
        races: starts and settings of the races.
        demonstrations: demonstrations on the same track.
        reference: the reference lap of the track.
        stream: stream for progress; None is standard output.
        label: label of the progress bar.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    contestants = []
    try:
        with Progress(label, len(entries) * len(races.seeds), "races", stream=stream) as bar:
            for entry in entries:
                results = race(
                    entry.policy, races, on_ended=lambda num_ended, e=entry: bar.advance(num_ended, who=e.label)
                )
                contestants.append(Contestant(entry.key, entry.label, results))
    finally:
        torch.set_num_threads(threads)
    return Evaluation(races.track, contestants, demonstrations, reference)
