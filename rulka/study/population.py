"""Population-based training: its file, and the folder shared by all processes, from which they derive pending turns.

    runs/populations/<name>-<key>/
        member-000/turn-0000/    a turn's folder, see `rulka.study.turn`
        evaluation/              stage `evaluate` of the best member, at the end

Nothing else is stored: the next turns are derived from existing results. A turn may start once all members have
finished the previous one. So the same file gives the same turns, whichever processes run them, in whatever order.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rulka.contracts.schedule import Schedule
from rulka.contracts.section import Count, Seed
from rulka.machine.errors import UserError
from rulka.params import Params, checked_params
from rulka.params.presets import merge_overlay
from rulka.stages.folders import AGENT, RUNS
from rulka.stages.graph import hash_code, read_graph
from rulka.stages.provenance import hash_json
from rulka.study.plan import KEY_LENGTH, Budget, Cell, StudyFile, base_sections, make_cells, nested, read_study
from rulka.study.selection import Explore, Scores, Searched, explored, first_values, parents, ranking
from rulka.study.turn import ORDER_FILE, RESULT_FILE, Order, Result, read_record
from rulka.study.work import DONE_FILE, Job, cpu_seconds_of
from rulka.training.agent_run import code_hash

POPULATIONS = RUNS / "populations"
EVALUATED = "evaluation"
"""Subfolder of a population for the evaluation of its agent."""
_RACES = 4
"""RNG purpose of race seeds; `selection` defines others."""
LAST_STAGE = "transfer"
"""Last stage that members run before their first turn."""
HASHED_CODE = tuple(Path("rulka", name) for name in ("evaluation/statistics.py", "study/selection.py", "study/turn.py"))
"""Code that affects a population's results, besides that of the stages."""
_OWN = {"compared": [], "max_minutes": None, "max_cpu_minutes": None}
# A turn ends with its newest weights: there are no weights to select from, and the population races them itself.
_OWN |= {"num_checks": 1, "check_candidates": 1, "final_check_races": 1}


class PopulationFile(StudyFile):
    """A population file; parameters in `seeded` are set to the seed plus the member's number."""

    members: int = Field(ge=2, le=1000, description="Number of runs that learn side by side.")
    turns: int = Field(ge=2, le=10_000, description="Turns per member, between which members are compared and copied.")
    turn_env_steps: Count = Field(description="Environment steps of a member's turn.")
    seed: Seed = Field(description="Seed of starts, copies and exploration.")
    races: int = Field(ge=10, le=10_000, description="Greedy races after each turn, which compare members.")
    parameters: dict[str, Searched] = Field(min_length=1, description="Searched parameters, by dotted name.")
    worst: float = Field(0.3, gt=0.0, le=0.5, description="Largest share of members replaced after each turn.")
    explore: Explore = Field(description="Changes of a copied member's parameters.")

    def _check_combinations(self) -> Iterator[str]:
        if self.env_steps > 10**12:
            yield f"{self.turns} turns of {self.turn_env_steps} steps are more than 10^12 steps"

    @property
    def env_steps(self) -> int:
        """Environment steps of each member over all turns."""
        return self.turns * self.turn_env_steps


@dataclass(frozen=True)
class Population:
    """A validated population.

    Attributes:
        name: file name without its extension.
        file: content of the file.
        cells: each member's stages before its first turn.
        base_schedules: base schedule of each searched parameter, by dotted name.
        key: hash of everything that affects the results.
    """

    name: str
    file: PopulationFile
    cells: tuple[Cell, ...]
    base_schedules: Mapping[str, Schedule]
    key: str

    def sections(self, member: int, turn: int, values: Mapping[str, float]) -> dict[str, Any]:
        """Returns all parameters of a member's turn, which ends when the steps of its turns so far are used up."""
        end = {"train.max_env_steps": (turn + 1) * self.file.turn_env_steps}
        return merge_overlay(self.cells[member].last.params, nested({**values, **end}), "a turn")


def read_population(path: Path) -> Population:
    """Reads and validates a population before anything runs.

    Args:
        path: the population file; base parameters come from `params.yaml`.

    Raises:
        UserError: if the file is invalid: an unknown key or parameter, a parameter that cannot be searched, a single
            member, an empty range, or if parameters are invalid, including those at the ends of a range.
    """
    file = read_study(path, PopulationFile, "population")
    _check_own(file.overrides, path)
    budget = Budget(env_steps=file.env_steps, cpu_minutes=None).overlay
    base = base_sections(file, path, {"train": budget["train"] | _OWN})
    params = checked_params(base, f"{path}: overrides cannot be")
    if params.train.environment == "game":
        message = f"{path}: train.environment is game, and members race more cars than a game has"
        raise UserError(message, hint="Set train.environment to simulator.")
    base_schedules = {name: _base_schedule(name, params, base, path) for name in file.parameters}
    for which, end in enumerate(("least", "greatest")):  # refused here, whatever the other parameters are at
        ends = nested({name: each.range[which] for name, each in file.parameters.items()})
        sections = merge_overlay(base, ends, f"{path}: parameters")
        checked_params(sections, f"{path}: parameters: the {end} values cannot be")
    sections = _over_steps(base, file.env_steps)
    wanted = [(f"member {member}", (file.seed + member) % 2**32, sections) for member in range(file.members)]
    cells = make_cells(wanted, file, LAST_STAGE, path)
    told = {"title", "question", "cost"}  # informational only
    decides = [file.model_dump(mode="json", exclude=told), sections, [cell.last.name for cell in cells]]
    key = hash_json([*decides, code_hash(), hash_code(HASHED_CODE)])
    return Population(path.stem, file, cells, base_schedules, key)


def _check_own(overrides: Mapping[str, Any], path: Path) -> None:
    """Rejects overrides of parameters that the population sets itself."""
    train = overrides.get("train", {})
    own = {**_OWN, "max_env_steps": None}
    wrong = [name for name in own if isinstance(train, dict) and name in train and train[name] != own[name]]
    if wrong:
        message = f"{path}: overrides: train.{wrong[0]} is the population's own matter"
        raise UserError(message, hint="A member learns for `turns` times `turn_env_steps`, by greedy `races`.")


def _base_schedule(name: str, params: Params, base: Mapping[str, Any], path: Path) -> Schedule:
    """Returns the base schedule of a searched parameter.

    Raises:
        UserError: if the parameter is unknown, or cannot change during a run.
    """
    merge_overlay(base, nested({name: None}), f"{path}: parameters")  # raises for an unknown name
    allowed = (params.train.algorithm, "rewards", "train")
    if name.partition(".")[0] not in allowed or name in {f"train.{own}" for own in (*_OWN, "checkpoint_s")}:
        message = f"{path}: parameters: {name} is nothing that a run learns by and that could change on the way"
        raise UserError(message, hint=f"What can is in the sections {', '.join(allowed)}.")
    value: Any = params
    for key in name.split("."):
        value = getattr(value, key, None)
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, float):
        message = f"{path}: parameters: {name} is {value!r}, and a population searches fractions and schedules"
        raise UserError(message, hint="Whole numbers are sizes, which a checkpoint has: `rulka experiment`.")
    return Schedule.model_validate(value)


def _over_steps(value: Any, env_steps: int) -> Any:
    """Converts schedules over the budget to environment steps, since each turn is only a part of the budget."""
    if isinstance(value, list):
        return [_over_steps(each, env_steps) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("shares") is not None and "interpolation" in value:
        points = [[round(share * env_steps), level] for share, level in value["shares"]]
        return {key: each for key, each in value.items() if key != "shares"} | {"points": points}
    return {key: _over_steps(each, env_steps) for key, each in value.items()}


class PopulationFolder:
    """The folder shared by all processes of one population.

    Attributes:
        population: the population.
        path: path of the folder.
    """

    def __init__(self, population: Population) -> None:
        self.population = population
        self.path = POPULATIONS / f"{population.name}-{population.key[:KEY_LENGTH]}"
        self._results: dict[tuple[int, int], Result] = {}

    def turn_folder(self, member: int, turn: int) -> Path:
        """Returns the folder of a member's turn."""
        return self.path / f"member-{member:03d}" / f"turn-{turn:04d}"

    def result(self, member: int, turn: int) -> Result | None:
        """Returns the result of a turn; None if it is not finished."""
        folder = self.turn_folder(member, turn)
        if (member, turn) not in self._results and (folder / DONE_FILE).exists():
            self._results[member, turn] = read_record(folder / RESULT_FILE, Result)
        return self._results.get((member, turn))

    def finished(self) -> list[list[Result]]:
        """Returns the results of each turn that all members have finished, in order."""
        found: list[list[Result]] = []
        for turn in range(self.population.file.turns):
            results = [self.result(member, turn) for member in range(self.population.file.members)]
            known = [each for each in results if each is not None]
            if len(known) < len(results):
                break
            found.append(known)
        return found

    def due(self) -> list[Job]:
        """Returns the jobs of all turns that may start and are not finished."""
        finished = self.finished()
        if (turn := len(finished)) == self.population.file.turns:
            return []
        return [self._job(order) for order in self._orders(finished) if self.result(order.member, turn) is None]

    def _job(self, order: Order) -> Job:
        """Returns the job of a member's turn; its folder gets the order besides the parameters."""
        return Job(
            f"turn {order.turn} of member {order.member}",
            self.turn_folder(order.member, order.turn),
            "rulka.study.turn",
            self.population.sections(order.member, order.turn, order.values),
            self._inputs("train", order.member),
            {ORDER_FILE: order.model_dump_json(indent=1)},
        )

    def _orders(self, finished: list[list[Result]]) -> Iterator[Order]:
        """Yields every member's order for the next turn.

        Raises:
            UserError: if all members have diverged.
        """
        file, turn = self.population.file, len(finished)
        seed = int(np.random.SeedSequence([file.seed, _RACES, turn]).generate_state(1)[0])
        common = {"turn": turn, "races": file.races, "seed": seed}
        if turn == 0:
            for member in range(file.members):
                values = first_values(file.parameters, file.seed, member)
                yield Order(member=member, parent=member, begin=None, values=values, **common)
            return
        before = finished[-1]
        for member, parent in enumerate(parents(_scores(before), file.worst, file.seed, turn)):
            values, ended = before[parent].order.values, before[parent].checkpoint
            assert ended is not None
            begin = f"../../{self.turn_folder(parent, turn - 1).relative_to(self.path).as_posix()}/{ended}"
            if parent != member:
                values = explored(values, file.parameters, file.explore, file.seed, turn, member)
            yield Order(member=member, parent=parent, begin=begin, values=values, **common)

    def end(self, job: Job) -> str:
        """Deletes runs that no later turn can start from, and returns a summary of the finished job."""
        for turn in range(len(self.finished()) - 1):
            for member in range(self.population.file.members):
                shutil.rmtree(self.turn_folder(member, turn) / RUNS, ignore_errors=True)
        return _summary(read_record(job.folder / RESULT_FILE, Result))

    def ranking(self) -> list[int]:
        """Returns the members from best to worst after the last turn that all members have finished."""
        return ranking(_scores(self.finished()[-1]))

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of all finished turns."""
        return math.fsum(cpu_seconds_of(done) or 0.0 for done in self.path.glob(f"member-*/*/{DONE_FILE}"))

    def evaluation(self) -> Job:
        """Returns the job of stage `evaluate` for the best member's agent; all turns must be finished."""
        best = self.ranking()[0]
        inputs = self._inputs("evaluate", best) | {
            AGENT.as_posix(): self.turn_folder(best, self.population.file.turns - 1)
        }
        params = self.population.cells[best].last.params
        return Job("the evaluation of the best member", self.path / EVALUATED, "tasks.evaluate", params, inputs)

    def _inputs(self, stage: str, member: int) -> dict[str, Path]:
        """Returns the inputs of a stage that were produced before the member's first turn."""
        graph = read_graph()
        jobs = self.population.cells[member].jobs
        made = {out: job.folder for name, job in jobs.items() for out in graph[name]["outs"]}
        return {dep: made[dep] for dep in graph[stage]["deps"] if dep in made}


def _summary(result: Result) -> str:
    """Summarises a turn and its result in one line."""
    order = result.order
    begun = f"from member {order.parent}, " if order.is_copied else ""
    begun += ", ".join(f"{name} {value:.3g}" for name, value in order.values.items())
    if result.scores is None:
        return f"{begun}: it diverged: {result.diverged}"
    time_s = "" if result.mean_time_s is None else f", {result.mean_time_s:.2f} s"
    return f"{begun}: {np.mean(result.scores):.2f} m/s, {result.finish_rate:.0%} finished{time_s}"


def _scores(results: list[Result]) -> list[Scores | None]:
    scores = [None if each.scores is None else np.array(each.scores) for each in results]
    if all(each is None for each in scores):
        turn, why = results[0].order.turn, results[0].diverged
        message = f"all members have diverged in turn {turn}, none is left to go on from: {why}"
        raise UserError(message, hint="Begin with less: `start` of the parameters in the population's file.")
    return scores
