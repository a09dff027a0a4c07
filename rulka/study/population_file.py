"""A population as it is written down, and what its members' turns are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from rulka.errors import UserError
from rulka.graph import PARAMS_FILE, code_files, hash_code, read_graph
from rulka.params import Params, checked_params, read_sections, resolved
from rulka.params.base import Count, Section, Seed
from rulka.params.problems import problems_of
from rulka.presets import laid_over
from rulka.provenance import hash_json
from rulka.schedule import Schedule
from rulka.study.plan import SEEDED, Budget, Cell, cell_of, seeded
from rulka.study.selection import Explore, Searched
from rulka.training.racing import code_hash

LAST_STAGE = "transfer"
"""What members do before their first turn ends with this stage."""
DECIDES = tuple(Path("rulka/study", name) for name in ("selection.py", "turn.py"))
"""Code that decides, beside that of the stages, how a population goes."""
_OWN = {"compared": [], "max_minutes": None, "max_cpu_minutes": None}
# A turn ends with its newest weights: there is nothing to choose from, and the population races them itself.
_OWN |= {"num_checks": 1, "check_candidates": 1, "final_check_races": 1}


class PopulationError(UserError):
    """A population's file asks for something that cannot be."""


class PopulationFile(Section):
    """A population as it is written down."""

    title: str = Field(description="what the page is called")
    question: str = Field(description="what it is to answer")
    cost: str = Field(description="what it takes on two cores, for whoever is about to start it")
    members: int = Field(ge=2, le=1000, description="runs that learn side by side")
    turns: int = Field(ge=2, le=10_000, description="of each; between two of them members are compared and copied")
    turn_env_steps: Count = Field(description="decisions of one car in a turn, of each member")
    seed: Seed = Field(description="of all chance in starting, copying and exploring")
    seeded: tuple[str, ...] = Field(
        SEEDED, strict=False, description="parameters that take the seed and the member's number, added up"
    )
    races: int = Field(ge=10, le=10_000, description="greedy races after each turn, by which members are compared")
    overrides: dict[str, Any] = Field(default_factory=dict, description="parameters of all members")
    parameters: dict[str, Searched] = Field(min_length=1, description="what is searched, by dotted name")
    worst: float = Field(0.3, gt=0.0, le=0.5, description="share of the members that may be replaced after each turn")
    explore: Explore = Field(description="how a copied member's parameters differ")

    @model_validator(mode="after")
    def _check(self) -> PopulationFile:
        if self.turns * self.turn_env_steps > 10**12:
            message = f"{self.turns} turns of {self.turn_env_steps} steps are more than 10^12 steps"
            raise ValueError(message)
        return self

    @property
    def env_steps(self) -> int:
        """Of each member, in all of its turns."""
        return self.turns * self.turn_env_steps


@dataclass(frozen=True)
class Population:
    """A population, checked.

    Attributes:
        name: of its file, without its ending.
        file: what it says.
        cells: what each member's stages before its first turn are.
        hand_made: what the parameters say of everything that is searched, by its dotted name.
        key: hash of all that decides how it goes.
    """

    name: str
    file: PopulationFile
    cells: tuple[Cell, ...]
    hand_made: Mapping[str, Schedule]
    key: str

    @property
    def algorithm(self) -> str:
        """What members learn by."""
        return self.cells[0].params.train.algorithm

    def sections(self, member: int, turn: int, values: Mapping[str, float]) -> dict[str, Any]:
        """Returns all parameters of a member's turn, which ends where all of its turns so far are used up."""
        end = {"train.max_env_steps": (turn + 1) * self.file.turn_env_steps}
        return laid_over(self.cells[member].jobs[-1].params, _nested({**values, **end}), "a turn", PopulationError)


def read_population(path: Path) -> Population:
    """Reads a population and finds out, before anything runs, whether all of it can be done.

    Args:
        path: of the file; the parameters it begins with are those of `params.yaml`.

    Raises:
        PopulationError: if the file is no population: a key or parameter that is not known, or that no population can
            search; one member; a range that holds nothing.
        ParamsError: if parameters cannot be, also those at the ends of a range.
    """
    file = _read_file(path)
    _check_own(file.overrides, path)
    shipped = resolved(read_sections(PARAMS_FILE), f"{PARAMS_FILE} is wrong")
    base = laid_over(shipped, file.overrides, f"{path}: overrides", PopulationError)
    base = laid_over(base, Budget(env_steps=file.env_steps, cpu_minutes=None).overlay, str(path), PopulationError)
    base = laid_over(base, {"train": _OWN}, str(path), PopulationError)
    params = checked_params(base, f"{path}: overrides cannot be")
    if params.train.environment == "game":
        message = f"{path}: train.environment is game, and members race more cars than a game has"
        raise PopulationError(message, hint="Set train.environment to simulator.")
    hand_made = {name: _hand_made(name, params, base, path) for name in file.parameters}
    _check_ranges(file, base, path)
    sections: dict[str, Any] = _over_steps(base, file.env_steps)
    stages = list(read_graph())
    code = {stage: hash_code(code_files(stage)) for stage in stages[: stages.index(LAST_STAGE) + 1]}
    outside: dict[str, str] = {}
    cells = tuple(
        cell_of(
            f"member {member}",
            seed,
            seeded(sections, file.seeded, seed, path),
            code,
            outside,
            path,
        )
        for member, seed in enumerate((file.seed + member) % 2**32 for member in range(file.members))
    )
    told = {"title", "question", "cost"}  # what is for people alone
    decides = [file.model_dump(mode="json", exclude=told), sections, [cell.jobs[-1].key for cell in cells]]
    key = hash_json([*decides, code_hash(), hash_code(DECIDES)])
    return Population(path.stem, file, cells, hand_made, key)


def _read_file(path: Path) -> PopulationFile:
    sections = read_sections(path, PopulationError)
    try:
        return PopulationFile.model_validate(sections)
    except ValidationError as error:
        message = f"{path} is no population: " + "; ".join(problems_of(error, PopulationFile))
        raise PopulationError(message) from error


def _check_own(overrides: Mapping[str, Any], path: Path) -> None:
    """Refuses overrides of what the population sets itself."""
    train = overrides.get("train", {})
    own = {**_OWN, "max_env_steps": None}
    wrong = [name for name in own if isinstance(train, dict) and name in train and train[name] != own[name]]
    if wrong:
        message = f"{path}: overrides: train.{wrong[0]} is the population's own matter"
        raise PopulationError(message, hint="A member learns for `turns` times `turn_env_steps`, by greedy `races`.")


def _hand_made(name: str, params: Params, base: Mapping[str, Any], path: Path) -> Schedule:
    """Returns what the parameters say of one that is searched.

    Raises:
        PopulationError: if there is no such parameter, or none that can change while a run lasts.
    """
    laid_over(base, _nested({name: None}), f"{path}: parameters", PopulationError)  # names what is not known
    algorithm = params.train.algorithm
    allowed = (algorithm, "rewards", "train")
    if name.partition(".")[0] not in allowed:
        message = f"{path}: parameters: {name} is nothing that the training of {algorithm} could change on the way"
        raise PopulationError(message, hint=f"What can is in the sections {', '.join(allowed)}.")
    value: Any = params
    for key in name.split("."):
        value = getattr(value, key, None)
    if name in {f"train.{own}" for own in (*_OWN, "checkpoint_s")} or not isinstance(value, (Schedule, float)):
        message = f"{path}: parameters: {name} is {_kind_of(value)}, and a population searches fractions and schedules"
        raise PopulationError(message, hint="Whole numbers are sizes, which a checkpoint has: `rulka experiment`.")
    return value if isinstance(value, Schedule) else Schedule.model_validate(value)


def _kind_of(value: object) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)
    return f"the whole number {value}" if isinstance(value, int) else "no number that a run learns by"


def _check_ranges(file: PopulationFile, base: Mapping[str, Any], path: Path) -> None:
    """Refuses ranges whose ends cannot be, whatever the other parameters are at."""
    for which, end in enumerate(("least", "greatest")):
        ends = {name: each.range[which] for name, each in file.parameters.items()}
        sections = laid_over(base, _nested(ends), f"{path}: parameters", PopulationError)
        checked_params(sections, f"{path}: parameters: the {end} values cannot be")


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by dotted name as sections inside each other."""
    sections: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        inside = sections
        for key in outer:
            inside = inside.setdefault(key, {})
        inside[last] = value
    return sections


def _over_steps(value: Any, env_steps: int) -> Any:
    """Returns parameters whose schedules over the budget are over environment steps: each turn is a part of it."""
    if isinstance(value, dict):
        items: Iterator[tuple[str, Any]] = ((key, _over_steps(each, env_steps)) for key, each in value.items())
        if value.get("shares") is not None and "interpolation" in value:
            points = [[round(share * env_steps), level] for share, level in value["shares"]]
            return {key: each for key, each in value.items() if key != "shares"} | {"points": points}
        return dict(items)
    return [_over_steps(each, env_steps) for each in value] if isinstance(value, list) else value
