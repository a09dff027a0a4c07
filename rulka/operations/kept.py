"""Agents by name, and the promoted one.

    data/agent/                     the latest, which the next training replaces; others in compared/<algorithm>/
    data/agents/<name>/             promoted agents, as of their promotion
    data/agents/promotions.jsonl    one line for each promotion, the last one counts

An agent's name is its algorithm and the beginning of its weights' hash, so a name permanently identifies one agent.
`data/agents` is not the output of a stage: neither a training nor `dvc gc` touches it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pandas import DataFrame

from rulka.agents.load import CLONING, DRIVING_KINDS, SHIPPED, SHIPPED_AGENT
from rulka.contracts.artifacts import META_FILE, ArtifactError, load_artifact, read_meta
from rulka.contracts.problems import did_you_mean
from rulka.contracts.stored import checked
from rulka.machine.disk import check_can_hold
from rulka.machine.errors import UserError
from rulka.stages.folders import AGENT, COMPARED, KEPT_AGENTS
from rulka.stages.graph import bring_back
from rulka.stages.outputs import new_file
from rulka.stages.stage import output_folder

PROMOTIONS_FILE = "promotions.jsonl"
LATEST, PROMOTED = "latest", "promoted"
"""Aliases of the agent in `data/agent` and of the promoted one."""
HASH_DIGITS = 8


class UnknownAgentError(UserError):
    """No agent has the given name; the message lists the known ones."""


@dataclass(frozen=True)
class AgentEntry:
    """One line of the registry.

    Attributes:
        name: its name; that of its folder if its metadata cannot be read.
        folder: its folder.
        is_promoted: True for the promoted agent, which others have to beat.
        is_latest: True for the agent in `data/agent`.
        algorithm: the algorithm that trained it.
        tracks: UIDs of the tracks that it was trained on.
        finish_rate: finish rate of the greedy check that selected its weights.
        mean_time_s: mean time of the finished races of that check; None if there are none.
        record_s: its fastest greedy race during training.
        params_sha256: hash of its training parameters.
        data_sha256: hashes of its training inputs, by name.
        repeats: "yes" if its training is reproducible, otherwise why not.
        problem: why it cannot be used; empty if it can.
    """

    name: str
    folder: str
    is_promoted: bool
    is_latest: bool
    algorithm: str = ""
    tracks: tuple[str, ...] = ()
    finish_rate: float | None = None
    mean_time_s: float | None = None
    record_s: float | None = None
    params_sha256: str = ""
    data_sha256: dict[str, str] | None = None
    repeats: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Promotion:
    """A promotion and the comparison that decided it.

    Attributes:
        name: the promoted agent.
        promoted_at: time of the promotion, in UTC.
        over: the previously promoted agent; None if there was none.
        compared: the two in the form of `rulka agents compare --json`; None if nothing was compared.
    """

    name: str
    promoted_at: str
    over: str | None
    compared: dict[str, Any] | None


def name_of(folder: Path) -> str:
    """Returns the name of the agent, or cloned policy, in a folder.

    Raises:
        ArtifactError: if its metadata is missing or damaged.
    """
    meta = read_meta(folder, kind="agent")
    return f"{meta['config'].get('algorithm', CLONING)}-{meta['weights_sha256'][:HASH_DIGITS]}"


def known_agents() -> list[AgentEntry]:
    """Returns all distinct agents, the promoted one first; damaged ones carry their problem."""
    promoted = promoted_name()
    latest = [folder for folder in (AGENT, *sorted((AGENT / COMPARED).glob("*/"))) if (folder / META_FILE).exists()]
    folders = {_name(folder): folder for folder in latest}
    folders |= {folder.name: folder for folder in sorted(KEPT_AGENTS.glob("*/")) if not folder.name.startswith(".")}
    if promoted is not None:
        folders.setdefault(promoted, KEPT_AGENTS / promoted)
    now = _name(AGENT)
    entries = [_entry(name, folder, name == promoted, name == now) for name, folder in folders.items()]
    return sorted(entries, key=lambda entry: not entry.is_promoted)


def _name(folder: Path) -> str:
    try:
        return name_of(folder)
    except ArtifactError:
        return folder.as_posix()


def _entry(name: str, folder: Path, is_promoted: bool, is_latest: bool) -> AgentEntry:
    entry = AgentEntry(name, folder.as_posix(), is_promoted, is_latest)
    try:
        origin = load_artifact(folder, "agent").provenance
    except ArtifactError as error:
        return replace(entry, problem=str(error))
    training = origin.get("training", {})
    check = training.get("last_check", {})
    return replace(
        entry,
        algorithm=name.rpartition("-")[0],
        tracks=tuple(training.get("tracks", ())),
        finish_rate=check.get("finish_rate"),
        mean_time_s=check.get("mean_time_s"),
        record_s=training.get("record_s"),
        params_sha256=origin.get("params_sha256", ""),
        data_sha256=origin.get("inputs_sha256"),
        repeats=training.get("repeats", ""),
    )


def find_agent(name: str) -> Path:
    """Returns the folder of an agent.

    Args:
        name: its name, "latest" or `data/agent`, "promoted", "shipped", or a folder.

    Raises:
        UnknownAgentError: if there is no such agent.
        UserError: if the promoted one is requested and there is none.
        ArtifactError: if its files are missing or damaged, or it was made for other observations.
    """
    if name in (LATEST, AGENT.as_posix()):
        load_artifact(AGENT, DRIVING_KINDS)
        return AGENT
    if name == SHIPPED:
        return SHIPPED_AGENT
    if name == PROMOTED:
        promoted = promoted_name()
        if promoted is None:
            message = "no agent is promoted yet"
            hint = "`rulka agents promote latest` promotes the first one without a race."
            raise UserError(message, hint=hint)
        name = promoted
    entries = known_agents()
    known = {entry.name: Path(entry.folder) for entry in entries}
    folder = known.get(name, Path(name))
    if name in known or folder.is_dir():
        load_artifact(folder, DRIVING_KINDS)
        return folder
    aliases = {LATEST: any(entry.is_latest for entry in entries), PROMOTED: promoted_name() is not None}
    names = [*(alias for alias, is_there in aliases.items() if is_there), SHIPPED, *known]
    message = f"there is no agent {name!r}, nor such a folder{did_you_mean(name, names)}"
    hint = f"Known are {', '.join(names)}; a folder will do as well, and `dvc repro` trains one."
    raise UnknownAgentError(message, hint=hint)


def promoted_name() -> str | None:
    """Returns the name of the promoted agent, None if there is none."""
    done = promotions()
    return done[-1].name if done else None


def promotions() -> list[Promotion]:
    """Returns all promotions, the newest last.

    Raises:
        UserError: if their file is damaged, or missing though DVC tracks it.
    """
    file = KEPT_AGENTS / PROMOTIONS_FILE
    if not file.exists():
        if brought := bring_back(KEPT_AGENTS):
            message = f"{file} is missing, though {KEPT_AGENTS}.dvc says that agents were promoted"
            raise UserError(message, hint=f"{brought}. Remove {KEPT_AGENTS}.dvc to begin anew.")
        return []
    hint = "Remove the line that is no promotion; the last one counts."
    lines = enumerate(file.read_bytes().splitlines(), 1)
    return [checked(line, Promotion, f"{file}, line {number},", hint=hint) for number, line in lines]


def keep_promoted(folder: Path, promotion: Promotion) -> Path:
    """Copies an agent to `data/agents` and records its promotion.

    Returns:
        Its folder there.

    Raises:
        ArtifactError: if the agent is damaged.
        UserError: if it cannot be written.
    """
    load_artifact(folder, "agent")
    check_can_hold(KEPT_AGENTS.parent)
    KEPT_AGENTS.mkdir(exist_ok=True)
    place = KEPT_AGENTS / promotion.name
    if folder.resolve() != place.resolve():
        with output_folder(place) as new:
            for file in (each for each in folder.iterdir() if each.is_file()):
                shutil.copyfile(file, new / file.name)
    before = promotions()
    with new_file(KEPT_AGENTS / PROMOTIONS_FILE) as beside:
        lines = [json.dumps(asdict(each), ensure_ascii=False) for each in (*before, promotion)]
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


HEAD = ("agent", "tracks", "finished", "mean time", "record", "SHA-256 of data", "of parameters", "repeats", "")


def format_agents(entries: list[AgentEntry]) -> str:
    """Formats the agents as a text table."""
    if not entries:
        return "there is no agent yet; `dvc repro` trains one"
    table = DataFrame([_row(entry) for entry in entries], columns=HEAD).to_string(index=False)
    return "\n".join([table, *(f"{entry.name}: {entry.problem}" for entry in entries if entry.problem)])


def _row(entry: AgentEntry) -> tuple[str, ...]:
    data = (entry.data_sha256 or {}).values()
    marks = {PROMOTED: entry.is_promoted, LATEST: entry.is_latest, "cannot be used": bool(entry.problem)}
    return (
        entry.name,
        ", ".join(entry.tracks) or "-",
        "-" if entry.finish_rate is None else f"{100 * entry.finish_rate:.0f} %",
        format_seconds(entry.mean_time_s),
        format_seconds(entry.record_s),
        " ".join(sha256[:HASH_DIGITS] for sha256 in data) or "-",
        entry.params_sha256[:HASH_DIGITS] or "-",
        entry.repeats if entry.repeats == "yes" else "no",
        ", ".join(mark for mark, holds in marks.items() if holds),
    )


def format_seconds(value: float | None) -> str:
    """Formats a time for a text table."""
    return "-" if value is None else f"{value:.2f} s"
