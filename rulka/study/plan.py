"""Plans a study: its file, its cells, and the stages of each cell, identified by hashes of all that affects them.

Cells share stages that do not differ: a variant of `train` uses the same races, frames, encoder and policy as all
others. The key of a stage is a hash of the parameter sections that `dvc.yaml` names for it, its code, and the keys of
earlier stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from models.encoders.config import BackboneConfig, FolderSource
from rulka.contracts.problems import problems_of
from rulka.contracts.section import Count, Section, Seed
from rulka.machine.errors import UserError, counted
from rulka.params import Params, checked_params, read_sections, resolved
from rulka.params.presets import merge_overlay
from rulka.runtime.live import METRICS_FILE
from rulka.stages.folders import RUNS
from rulka.stages.graph import PARAMS_FILE, code_files, hash_code, read_graph, sections_of_stage
from rulka.stages.provenance import hash_json, hash_path
from rulka.study.work import Job, Work, jobs_left

EXPERIMENTS = RUNS / "experiments"
"""Folder for the stages of all studies; shared stages run once."""
KEY_LENGTH = 16
"""Hexadecimal digits of a key that name its folder."""
NO_LIMIT = 10**12
"""Environment steps that no run reaches."""
MeasuredStage = Literal["pretrain", "clone", "evaluate"]
"""Stages that write metrics of their result."""


class Budget(Section):
    """Training budget. Wall-clock time on a shared machine is not a budget."""

    env_steps: Count | None = Field(None, description="Environment steps of each training.")
    cpu_minutes: float | None = Field(None, gt=0, description="CPU minutes of each training, all processes together.")

    def _check_combinations(self) -> Iterator[str]:
        if (self.env_steps is None) == (self.cpu_minutes is None):
            yield "budget needs either env_steps or cpu_minutes: set one of them"

    @property
    def overlay(self) -> dict[str, Any]:
        """Parameters that set this budget."""
        limits = {"max_env_steps": self.env_steps or NO_LIMIT, "max_cpu_minutes": self.cpu_minutes}
        # Schedules and checks follow the budget; in exact order they can follow environment steps only.
        order = {"order": "free"} if self.env_steps is None else {}
        return {"train": limits | {"max_minutes": None} | order}


class StudyFile(Section):
    """Keys shared by experiment and population files."""

    title: str = Field(description="Title of the page.")
    question: str = Field(description="Question that the study answers.")
    cost: str = Field(description="Time that the study takes on two cores.")
    seeded: tuple[str, ...] = Field(("train.seed",), strict=False, description="Dotted parameters set to the seed.")
    overrides: dict[str, Any] = Field(default_factory=dict, description="Parameters of all runs.")


StudyFileT = TypeVar("StudyFileT", bound=StudyFile)


class ExperimentFile(StudyFile):
    """An experiment file."""

    last_stage: MeasuredStage = Field("evaluate", description="Last stage of each cell.")
    measures: tuple[str, ...] = Field(
        (), strict=False, description="Numbers to compare from the last stage's metrics.json, by dotted name."
    )
    budget: Budget | None = Field(None, description="Budget of each training; null leaves that of the parameters.")
    seeds: tuple[Seed, ...] = Field(min_length=1, strict=False, description="Seeds; each makes one cell per variant.")
    baseline: str = Field(description="Variant that the others are compared with; it alone may change nothing.")
    variants: dict[str, dict[str, Any]] = Field(min_length=1, description="Parameters of each variant, by its name.")

    def _check_combinations(self) -> Iterator[str]:
        if (self.last_stage == "evaluate") == bool(self.measures):
            yield "measures need last_stage pretrain or clone, and these need measures: races have their own"
        if twice := sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1}):
            yield f"seeds need each seed once, but {twice[0]} comes twice: remove one, as both make the same cell"
        if self.baseline not in self.variants:
            yield f"baseline needs to be a variant, but {self.baseline} is none of {', '.join(self.variants)}: name one"


class Cell(NamedTuple):
    """One variant with one seed.

    Attributes:
        variant: its name.
        seed: its seed.
        params: all parameters.
        jobs: jobs by stage, in order; the last one yields the result.
    """

    variant: str
    seed: int
    params: Params
    jobs: Mapping[str, Job]

    @property
    def name(self) -> str:
        """Name of the cell, `variant/seed`."""
        return f"{self.variant}/{self.seed}"

    @property
    def trains_freely(self) -> bool:
        """True if its training runs in free order and is not reproducible."""
        return "train" in self.jobs and self.params.train.order == "free"

    @property
    def last(self) -> Job:
        """The job that yields its result."""
        return list(self.jobs.values())[-1]


@dataclass(frozen=True)
class Plan:
    """A validated experiment with all of its cells.

    Attributes:
        name: file name without its extension; also names its pictures.
        file: content of the file.
        cells: variants in the order of the file, seeds within them.
    """

    name: str
    file: ExperimentFile
    cells: tuple[Cell, ...]

    def chosen(self, names: Sequence[str]) -> Plan:
        """Returns a plan of only the named cells, `variant/seed`.

        Raises:
            UserError: if there is no such cell.
        """
        known = {cell.name: cell for cell in self.cells}
        if unknown := [name for name in names if name not in known]:
            raise UserError(f"{self.name} has no cell {', '.join(unknown)}", hint=f"Its cells are {', '.join(known)}.")
        return Plan(self.name, self.file, tuple(known[name] for name in names))


def read_plan(path: Path) -> Plan:
    """Reads and validates an experiment before anything runs.

    Args:
        path: the experiment file; base parameters come from `params.yaml`.

    Raises:
        UserError: if the file is invalid: an unknown key or parameter, a variant that changes nothing, two equal
            variants, a duplicate seed, or if parameters of a variant are invalid.
    """
    file = read_study(path, ExperimentFile, "experiment")
    base = base_sections(file, path, {} if file.budget is None else file.budget.overlay)
    variants: dict[str, dict[str, Any]] = {}
    for name, overlay in file.variants.items():
        sections = merge_overlay(base, overlay, f"{path}: variant {name}")
        if sections == base and name != file.baseline:
            message = f"{path}: the variant {name!r} changes nothing"
            raise UserError(message, hint="Only the baseline may be the parameters as they are.")
        variants[name] = sections
    wanted = [(name, seed, sections) for name, sections in variants.items() for seed in file.seeds]
    cells = make_cells(wanted, file, file.last_stage, path)
    _check_difference(cells, file.last_stage, path)
    return Plan(path.stem, file, cells)


def read_study(path: Path, kind: type[StudyFileT], what: str) -> StudyFileT:
    """Reads the file of an experiment or a population.

    Raises:
        UserError: if it is invalid.
    """
    sections = read_sections(path)
    try:
        return kind.model_validate(sections)
    except ValidationError as error:
        raise UserError(f"{path} is no {what}: " + "; ".join(problems_of(error, kind))) from error


def base_sections(file: StudyFile, path: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of `params.yaml`, overlaid with the file's overrides and the study's own settings."""
    shipped = resolved(read_sections(PARAMS_FILE), f"{PARAMS_FILE} is wrong")
    base = merge_overlay(shipped, file.overrides, f"{path}: overrides")
    return merge_overlay(base, own, f"{path}: budget")


def make_cells(
    wanted: Iterable[tuple[str, int, Mapping[str, Any]]], file: StudyFile, last_stage: str, path: Path
) -> tuple[Cell, ...]:
    """Builds cells with their jobs.

    Args:
        wanted: variant name, seed and all parameters of each cell.
        file: the study; its `seeded` parameters are set to the seed.
        last_stage: last stage of each cell.
        path: the file, for messages.

    Raises:
        UserError: if `seeded` names an unknown parameter, a backbone is missing, or parameters are invalid.
    """
    graph = read_graph()
    stages = list(graph)[: list(graph).index(last_stage) + 1]
    code = {stage: hash_code(code_files(stage)) for stage in stages}
    outside: dict[str, str] = {}  # hashes of data that no stage makes
    cells = []
    for variant, seed, sections in wanted:
        own = merge_overlay(sections, nested(dict.fromkeys(file.seeded, seed)), f"{path}: seeded")
        params = checked_params(own, f"{path}: variant {variant!r} cannot be")
        own = params.model_dump(mode="json")  # normalised, so that equal parameters have equal hashes
        made: dict[str, Job] = {}
        jobs = {}
        for stage in stages:
            entry = graph[stage]
            data = [dep for dep in entry["deps"] if dep.startswith("data/")]
            if stage == "pretrain" and (folder := _backbone(params, f"{path}: variant {variant!r}")):
                data.append(folder)
            for dep in data:
                if dep not in made and dep not in outside:
                    outside[dep] = hash_path(Path(dep)) if Path(dep).exists() else "nothing"
            read = {name: own[name] for name in sections_of_stage(entry, own)}
            before = {dep: made[dep].name if dep in made else outside[dep] for dep in data}
            name = f"{stage}-{hash_json([stage, read, code[stage], before])[:KEY_LENGTH]}"
            inputs = {dep: made[dep].folder for dep in data if dep in made}
            jobs[stage] = Job(name, EXPERIMENTS / name, f"tasks.{stage}", own, inputs)
            made |= dict.fromkeys(entry["outs"], jobs[stage])
        cells.append(Cell(variant, seed, params, jobs))
    return tuple(cells)


def _backbone(params: Params, who: str) -> str | None:
    """Returns the folder of the encoder's backbone; None if it has none. Raises UserError if it is missing."""
    if not isinstance(params.encoder, BackboneConfig) or not isinstance(params.encoder.source, FolderSource):
        return None
    folder = params.encoder.source.path
    if not Path(folder).is_dir():
        message = f"{who}: there is no folder {folder}, which encoder.source.path names"
        raise UserError(message, hint="docs/agents.md says how to make one.")
    return folder


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values by dotted name to nested sections."""
    sections: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        inside = sections
        for key in outer:
            inside = inside.setdefault(key, {})
        inside[last] = value
    return sections


def _check_difference(cells: Sequence[Cell], last_stage: str, path: Path) -> None:
    """Rejects two cells whose stages are all the same, one of which would be redundant."""
    named: dict[Path, str] = {}
    for cell in cells:
        if other := named.get(cell.last.folder):
            message = f"{path}: {other} and {cell.name} do not differ in anything that is read up to {last_stage}"
            raise UserError(message, hint="Change a parameter that these stages read; `seeded` names the seeds.")
        named[cell.last.folder] = cell.name


def jobs_of(cells: Iterable[Cell]) -> list[Job]:
    """Returns the distinct jobs of cells, stage after stage."""
    stages = zip(*(cell.jobs.values() for cell in cells), strict=True)
    return list({job.folder: job for stage in stages for job in stage}.values())


def do_stages(cells: Sequence[Cell], num_processes: int, say: Callable[[str], None]) -> Work:
    """Runs the unfinished stages of cells, except those that depend on a failed one; see `Work.failures`."""
    jobs, work = jobs_of(cells), Work(num_processes, say)
    if len(jobs) > (left := jobs_left(jobs)):
        say(f"{len(jobs) - left} of {counted(len(jobs), 'stage')} were done before")

    def end(job: Job) -> str:
        for file in (job.folder / RUNS).rglob("*"):  # checkpoints and experience are large; only metrics are kept
            if file.is_file() and file.name != METRICS_FILE:
                file.unlink()
        return f"{(job.cpu_seconds or 0.0) / 60:.1f} CPU minutes; {jobs_left(jobs)} stages are left"

    work.do(lambda: [job for job in jobs if job.is_due], end)
    return work
