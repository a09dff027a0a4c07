"""What an experiment is to do: its file, its cells, and for each the stages to run, known by what decides them.

Cells share what does not differ between them: a variant of `train` races and learns on the same races, frames, encoder
and policy as all others. A stage's work is known by its key, a hash of the parameter sections that `dvc.yaml` names for
it, its code, and the keys of the stages before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator

from rulka.errors import UserError
from rulka.graph import PARAMS_FILE, code_files, hash_code, read_graph
from rulka.params import Params, checked_params, read_sections, resolved
from rulka.params.base import Count, Section, Seed
from rulka.params.problems import problems_of
from rulka.presets import laid_over
from rulka.provenance import hash_json, hash_path

KEY_LENGTH = 16
"""Hexadecimal digits of a key that name its folder."""
NO_LIMIT = 10**12
"""Environment steps that nobody drives."""
MeasuredStage = Literal["pretrain", "clone", "evaluate"]
"""Stages that say in numbers how good their result is."""
SEEDED = ("train.seed",)
"""Parameters that take the seed of a cell where a file does not say which."""


class ExperimentError(UserError):
    """An experiment's file asks for something that cannot be, or that would teach nothing."""


class Budget(Section):
    """What training may use. The clock of a machine that others use as well is no budget."""

    env_steps: Count | None = Field(None, description="decisions of one car")
    cpu_minutes: float | None = Field(None, gt=0, description="of the learner and all that it starts, together")

    @model_validator(mode="after")
    def _check(self) -> Budget:
        if (self.env_steps is None) == (self.cpu_minutes is None):
            message = "a budget is either env_steps or cpu_minutes"
            raise ValueError(message)
        return self

    @property
    def overlay(self) -> dict[str, Any]:
        """The parameters that set it."""
        limits = {"max_env_steps": self.env_steps or NO_LIMIT, "max_cpu_minutes": self.cpu_minutes}
        return {"train": limits | {"max_minutes": None}}


class ExperimentFile(Section):
    """An experiment as it is written down."""

    title: str = Field(description="what the page is called")
    question: str = Field(description="what it is to answer")
    cost: str = Field(description="what it takes on two cores, for whoever is about to start it")
    last_stage: MeasuredStage = Field("evaluate", description="the stage at which each cell ends")
    measures: tuple[str, ...] = Field(
        (), strict=False, description="numbers of that stage's metrics.json to compare, a dot before each key inside"
    )
    budget: Budget | None = Field(None, description="of each training; None leaves what the parameters say")
    seeds: tuple[Seed, ...] = Field(min_length=1, strict=False, description="one cell of each variant for each")
    seeded: tuple[str, ...] = Field(SEEDED, strict=False, description="parameters that take the seed")
    overrides: dict[str, Any] = Field(default_factory=dict, description="parameters of all variants")
    baseline: str = Field(description="the variant that the others are compared with; it alone may change nothing")
    variants: dict[str, dict[str, Any]] = Field(min_length=1, description="parameters of each, by its name")

    @model_validator(mode="after")
    def _check(self) -> ExperimentFile:
        if (self.last_stage == "evaluate") == bool(self.measures):
            message = "measures are named where last_stage is pretrain or clone, and there alone: races have their own"
            raise ValueError(message)
        return self


class Job(NamedTuple):
    """One stage's work, which several cells may need.

    Attributes:
        stage: name of the stage.
        key: hash of all that decides its result.
        params: all parameters; those of sections that the stage does not read may be another cell's.
        inputs: the jobs before it, by the folder that it reads of them.
    """

    stage: str
    key: str
    params: Mapping[str, Any]
    inputs: Mapping[str, tuple[str, str]]

    @property
    def name(self) -> str:
        """Names the folder of the work."""
        return f"{self.stage}-{self.key[:KEY_LENGTH]}"


class Cell(NamedTuple):
    """One variant with one seed.

    Attributes:
        variant: its name.
        seed: its seed.
        params: all parameters.
        jobs: its stages in order; the last one gives its result.
    """

    variant: str
    seed: int
    params: Params
    jobs: tuple[Job, ...]

    @property
    def name(self) -> str:
        """Says which cell it is."""
        return f"{self.variant}/{self.seed}"


@dataclass(frozen=True)
class Plan:
    """An experiment, checked, with all of its cells.

    Attributes:
        name: of its file, without its ending; also of its folder and its page.
        file: what it says.
        cells: variants in the order of the file, seeds within them.
    """

    name: str
    file: ExperimentFile
    cells: tuple[Cell, ...]

    def jobs(self) -> dict[str, Job]:
        """Returns every work once, by its key, in an order in which they can be done."""
        return jobs_of(self.cells)

    def chosen(self, names: Sequence[str]) -> Plan:
        """Returns the plan of some of the cells alone, named `variant/seed`.

        Raises:
            ExperimentError: if there is no such cell.
        """
        known = {cell.name: cell for cell in self.cells}
        if unknown := [name for name in names if name not in known]:
            message = f"{self.name} has no cell {', '.join(unknown)}"
            raise ExperimentError(message, hint=f"Its cells are {', '.join(known)}.")
        return Plan(self.name, self.file, tuple(known[name] for name in names))


def jobs_of(cells: Iterable[Cell]) -> dict[str, Job]:
    """Returns every work of cells once, by its key, in an order in which they can be done."""
    order = list(read_graph())
    found = {job.key: job for cell in cells for job in cell.jobs}
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].stage)))


def read_plan(path: Path) -> Plan:
    """Reads an experiment and finds out, before anything runs, whether all of it can be done.

    Args:
        path: of the file; the parameters it begins with are those of `params.yaml`.

    Raises:
        ExperimentError: if the file is no experiment: a key or parameter that is not known, a variant that changes
            nothing, two that are alike, a seed that comes twice.
        ParamsError: if parameters of a variant cannot be.
    """
    file = _read_file(path)
    shipped = resolved(read_sections(PARAMS_FILE), f"{PARAMS_FILE} is wrong")
    base = laid_over(shipped, file.overrides, f"{path}: overrides", ExperimentError)
    if file.budget is not None:
        base = laid_over(base, file.budget.overlay, f"{path}: budget", ExperimentError)
    variants: dict[str, dict[str, Any]] = {}
    for name, overlay in file.variants.items():
        sections = laid_over(base, overlay, f"{path}: variant {name}", ExperimentError)
        if sections == base and name != file.baseline:
            message = f"{path}: the variant {name!r} changes nothing"
            raise ExperimentError(message, hint="Only the baseline may be the parameters as they are.")
        for other, others in variants.items():
            if sections == others:
                message = f"{path}: the variants {other!r} and {name!r} are alike"
                raise ExperimentError(message)
        variants[name] = sections
    code = {stage: hash_code(code_files(stage)) for stage in _stages(file.last_stage)}
    outside: dict[str, str] = {}
    cells = [
        cell_of(name, seed, seeded(sections, file.seeded, seed, path), code, outside, path)
        for name, sections in variants.items()
        for seed in file.seeds
    ]
    _check_difference(cells, file.last_stage, path)
    return Plan(path.stem, file, tuple(cells))


def _check_difference(cells: Sequence[Cell], last_stage: str, path: Path) -> None:
    """Refuses two cells whose every stage is the same work, so that one of them would tell nothing."""
    named: dict[str, str] = {}
    for cell in cells:
        key = cell.jobs[-1].key
        if key in named:
            message = f"{path}: {named[key]} and {cell.name} do not differ in anything that is read up to {last_stage}"
            raise ExperimentError(message, hint="Change a parameter that these stages read; `seeded` names the seeds.")
        named[key] = cell.name


def _read_file(path: Path) -> ExperimentFile:
    sections = read_sections(path, ExperimentError)
    try:
        file = ExperimentFile.model_validate(sections)
    except ValidationError as error:
        message = f"{path} is no experiment: " + "; ".join(problems_of(error, ExperimentFile))
        raise ExperimentError(message) from error
    if twice := sorted({seed for seed in file.seeds if file.seeds.count(seed) > 1}):
        message = f"{path}: the seed {twice[0]} comes twice"
        raise ExperimentError(message, hint="The second one would be the same cell again and tell nothing new.")
    if file.baseline not in file.variants:
        message = f"{path}: the baseline {file.baseline!r} is none of the variants {', '.join(file.variants)}"
        raise ExperimentError(message)
    return file


def seeded(sections: Mapping[str, Any], keys: Sequence[str], seed: int, path: Path) -> dict[str, Any]:
    """Returns parameters of which those of dotted names have the value of a seed.

    Raises:
        ExperimentError: if there is none of a name; `path` is the file that the message names.
    """
    overlay: dict[str, Any] = {}
    for key in keys:
        section, _, name = key.partition(".")
        overlay.setdefault(section, {})[name] = seed
    return laid_over(sections, overlay, f"{path}: seeded", ExperimentError)


def _stages(last: str) -> list[str]:
    stages = list(read_graph())
    return stages[: stages.index(last) + 1]


def cell_of(
    variant: str, seed: int, sections: dict[str, Any], code: Mapping[str, str], outside: dict[str, str], path: Path
) -> Cell:
    """Returns a cell.

    Args:
        variant: its name.
        seed: its seed.
        sections: all parameters.
        code: hash of the code of each of its stages, in order.
        outside: remembers the hashes of what no stage makes.
        path: the file that a message names.

    Raises:
        ParamsError: if the parameters cannot be.
    """
    params = checked_params(sections, f"{path}: variant {variant!r} cannot be")
    sections = params.model_dump(mode="json")  # written alike whoever wrote them
    graph, made, jobs = read_graph(), {}, []
    for stage in code:
        entry = graph[stage]
        inputs = {path: made[path] for path in entry["deps"] if path in made}
        for dep in entry["deps"]:
            if dep.startswith("data/") and dep not in made and dep not in outside:
                outside[dep] = hash_path(Path(dep)) if Path(dep).exists() else "nothing"
        key = hash_json(
            [
                stage,
                {name: sections[name] for name in entry.get("params", ())},
                code[stage],
                {dep: made[dep].key if dep in made else outside.get(dep) for dep in entry["deps"] if "data/" in dep},
            ]
        )
        job = Job(stage, key, sections, {dep: (job.name, dep) for dep, job in inputs.items()})
        jobs.append(job)
        made |= dict.fromkeys(entry["outs"], job)
    return Cell(variant, seed, params, tuple(jobs))
