"""The folder that all processes of a population share: what each turn was to do, what came of it, who is at it now.

    runs/populations/<name>-<key>/
        member-000/turn-0000/    a turn's folder, see `rulka.study.turn`; locked while somebody is at it
        evaluation/              stage `evaluate` of the best member, at the end

Nothing else is written down: what comes next follows from the results that are there. A turn may begin when all members
have finished the turn before it. So the same file gives the same turns, whoever does them, and in which order.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from rulka.folders import RUNS
from rulka.study.plan import KEY_LENGTH
from rulka.study.population_file import Population, PopulationError
from rulka.study.selection import Scores, explored, first_values, parents, ranking
from rulka.study.turn import ORDER_FILE, RESULT_FILE, Order, Result, read_record, write_record

POPULATIONS = RUNS / "populations"
_RACES = 4
"""Purpose of seeds of races; `selection` has others."""


class PopulationFolder:
    """The folder of one population.

    Attributes:
        population: whose it is.
        path: where it lies.
    """

    def __init__(self, population: Population, root: Path = POPULATIONS) -> None:
        self.population = population
        self.path = root / f"{population.name}-{population.key[:KEY_LENGTH]}"
        self._results: dict[tuple[int, int], Result] = {}

    def turn_folder(self, member: int, turn: int) -> Path:
        """Returns where a member's turn lies."""
        return self.path / f"member-{member:03d}" / f"turn-{turn:04d}"

    def result(self, member: int, turn: int) -> Result | None:
        """Returns what came of a turn; None where it is not finished."""
        known = self._results.get((member, turn))
        if known is None:
            try:
                known = read_record(self.turn_folder(member, turn) / RESULT_FILE, Result)
            except FileNotFoundError:
                return None
            self._results[member, turn] = known
        return known

    def results(self, turn: int) -> list[Result] | None:
        """Returns what came of a turn of all members; None while it is not finished."""
        found = [self.result(member, turn) for member in range(self.population.file.members)]
        return None if None in found else [each for each in found if each is not None]

    def finished(self) -> list[list[Result]]:
        """Returns what came of each turn that all members have finished, in order."""
        found: list[list[Result]] = []
        for turn in range(self.population.file.turns):
            results = self.results(turn)
            if results is None:
                break
            found.append(results)
        return found

    def due(self) -> list[tuple[int, int]]:
        """Returns member and turn of all turns that may begin and are not finished."""
        turn = len(self.finished())
        if turn == self.population.file.turns:
            return []
        members = range(self.population.file.members)
        return [(member, turn) for member in members if self.result(member, turn) is None]

    def order(self, member: int, turn: int) -> Order:
        """Returns what a turn is to do; all turns before it are finished.

        Raises:
            PopulationError: if no member has weights to go on from.
        """
        file, parent, begin = self.population.file, member, None
        values = first_values(file.parameters, file.seed, member)
        if turn > 0:
            before = self.results(turn - 1)
            assert before is not None
            parent = parents(self._scores(before, turn - 1), file.worst, file.seed, turn)[member]
            values, ended = before[parent].order.values, before[parent].checkpoint
            assert ended is not None
            begin = f"../../{self._place(parent, turn - 1)}/{ended}"
            if parent != member:
                values = explored(values, file.parameters, file.explore, file.seed, turn, member)
        seed = int(np.random.SeedSequence([file.seed, _RACES, turn]).generate_state(1)[0])
        return Order(
            member=member, turn=turn, parent=parent, begin=begin, values=dict(values), races=file.races, seed=seed
        )

    def write_order(self, order: Order) -> None:
        """Writes what a turn is to do into its folder."""
        write_record(self.turn_folder(order.member, order.turn) / ORDER_FILE, order)

    def ranking(self, turn: int) -> list[int]:
        """Returns the members from best to worst after a turn that all have finished."""
        results = self.results(turn)
        assert results is not None
        return ranking(self._scores(results, turn))

    def forget_old(self) -> None:
        """Removes the checkpoints and the experience of turns that nobody can go on from any more."""
        for turn in range(len(self.finished()) - 1):
            for member in range(self.population.file.members):
                shutil.rmtree(self.turn_folder(member, turn) / RUNS, ignore_errors=True)

    def _place(self, member: int, turn: int) -> str:
        return self.turn_folder(member, turn).relative_to(self.path).as_posix()

    def _scores(self, results: list[Result], turn: int) -> list[Scores | None]:
        scores = [None if each.scores is None else np.array(each.scores) for each in results]
        if all(each is None for each in scores):
            message = f"all members have diverged in turn {turn}, none is left to go on from: {results[0].diverged}"
            raise PopulationError(message, hint="Begin with less: `start` of the parameters in the population's file.")
        return scores
