"""The first learner's side of all others: their processes, what they are told and what they answer.

They are not started again one by one: what learns as one ends as one. Where one of them dies or falls silent,
`RanksApartError` says which, and `rulka.runtime.connect` forms the group anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from rulka.errors import UserError
from rulka.processes import STOP_GRACE_S
from rulka.runtime.messages import FromRank, Meet, Ready, Refused, Standing, ToRank
from rulka.runtime.rank_process import RankSpec, run_rank
from rulka.runtime.ranks import RanksApartError
from rulka.runtime.shared_memory import remove_left_memory
from rulka.runtime.specs import RANKS_FOLDER, RunSpec, rank_folder
from rulka.runtime.supervisor import SILENCE_LIMIT_S, Facts, Lost, Supervisor

START_LIMIT_S = 600.0
"""Longest wait for a learner to be built: it reads demonstrations, and compiles."""
GRACE_S = 4.0 * STOP_GRACE_S
"""How long a learner may take to end when it is asked to: it ends its collectors before."""
MEETING_FILE = "meeting"
_LOOK_S = 0.5

AnswerT = TypeVar("AnswerT", bound=FromRank)


class RankError(UserError):
    """A learner's process ended by an error of its own, which would come again."""


class OtherRanks(Protocol):
    """All learners of a run but the first."""

    @property
    def standings(self) -> Sequence[Standing]:
        """Where they begin."""
        ...

    def tell(self, messages: Sequence[ToRank]) -> None:
        """Sends each of them its message."""
        ...

    def tell_all(self, message: ToRank) -> None:
        """Sends all of them the same."""
        ...

    def hear(self, kind: type[AnswerT]) -> list[AnswerT]:
        """Returns what all of them answer, in their order.

        Raises:
            RanksApartError: if one is gone, or says nothing for too long.
            RankError: if one ended by an error of its own.
        """
        ...

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Says of an exchange that fails in the block why it did, where a learner is gone."""
        yield

    def stop(self) -> None:
        """Ends them; may be called again."""
        ...


class NoOtherRanks:
    """One learner is all there is."""

    standings: Sequence[Standing] = ()

    def tell(self, messages: Sequence[ToRank]) -> None:
        """Has nobody to tell."""

    def tell_all(self, message: ToRank) -> None:
        """Has nobody to tell."""

    def hear(self, kind: type[AnswerT]) -> list[AnswerT]:
        """Returns nothing."""
        del kind
        return []

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Does nothing."""
        yield

    def stop(self) -> None:
        """Has nobody to end."""


class RankProcesses:
    """All learners but the first, in processes of their own.

    Attributes:
        standings: where they begin, once they are ready.
        meeting: the file where all learners find each other.
    """

    def __init__(self, specs: Sequence[RunSpec], folder: Path, checkpoint: Path | None, num_starts: int) -> None:
        """Prepares; `start` starts, and whoever calls that has to call `stop`, whatever happens.

        Args:
            specs: what each of them has of the run, that of rank 1 first.
            folder: of the run.
            checkpoint: that it goes on from; None begins anew.
            num_starts: how often the run was started before.
        """
        self._folder, self._count = folder, len(specs)
        self.meeting = folder / RANKS_FOLDER / MEETING_FILE
        self.standings: Sequence[Standing] = ()
        num_threads = torch.get_num_threads()
        parts = [RankSpec(spec, self.meeting, checkpoint, num_starts, num_threads) for spec in specs]
        self._supervisor = Supervisor(
            "learner", run_rank, lambda index, _num_starts: parts[index], lambda _index: None, are_parents=True
        )

    def start(self) -> None:
        """Starts the processes."""
        self.meeting.parent.mkdir(parents=True, exist_ok=True)
        self.meeting.unlink(missing_ok=True)
        self._supervisor.start(self._count)

    def gather(self, check: Callable[[], None]) -> None:
        """Waits until all of them are ready, and sends them to the meeting.

        Args:
            check: called while waiting; raises to give up.

        Raises:
            RanksApartError, RankError: see `OtherRanks.hear`.
        """
        ready = self._answers(Ready, START_LIMIT_S, check)
        self.standings = [answer.standing for answer in ready]
        self.tell_all(Meet())

    def tell(self, messages: Sequence[ToRank]) -> None:
        """Sends each of them its message; one that is gone is noticed when it does not answer."""
        for index, message in enumerate(messages):
            self._supervisor.send(index, message)

    def tell_all(self, message: ToRank) -> None:
        """Sends all of them the same."""
        self.tell([message] * self._count)

    def hear(self, kind: type[AnswerT]) -> list[AnswerT]:
        """Returns what all of them answer, in their order."""
        return self._answers(kind, SILENCE_LIMIT_S, lambda: None)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Says of an exchange that fails in the block why it did, where a learner is gone."""
        try:
            yield
        except RanksApartError:
            give_up_s = time.monotonic() + STOP_GRACE_S
            while time.monotonic() < give_up_s:
                self._heard(_LOOK_S)
                self._look_for_lost()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, that of rank 1 first."""
        return self._supervisor.pids

    def stop(self) -> None:
        """Ends the processes, and removes the shared memory of those that could not do that themselves."""
        self._supervisor.stop(GRACE_S)
        for rank in range(1, self._count + 1):
            remove_left_memory(rank_folder(self._folder, rank))
        self.meeting.unlink(missing_ok=True)

    def _answers(self, kind: type[AnswerT], limit_s: float, check: Callable[[], None]) -> list[AnswerT]:
        answers: dict[int, AnswerT] = {}
        give_up_s = time.monotonic() + limit_s
        while len(answers) < self._count:
            check()
            for index, answer in self._heard(_LOOK_S):
                assert isinstance(answer, kind)
                answers[index] = answer
            is_late = time.monotonic() > give_up_s
            self._look_for_lost([index for index in range(self._count) if is_late and index not in answers], limit_s)
        return [answers[index] for index in range(self._count)]

    def _heard(self, timeout_s: float) -> list[tuple[int, Facts]]:
        heard = self._supervisor.receive(timeout_s)
        for index, answer in heard:
            if isinstance(answer, Refused):
                message = f"{self._name(index)}: {answer.message}"
                raise RankError(message, hint=answer.hint)
        return heard

    def _look_for_lost(self, silent: Sequence[int] = (), limit_s: float = SILENCE_LIMIT_S) -> None:
        lost = self._supervisor.lost(silent, limit_s)
        if not lost:
            return
        # One that was killed is the reason why others have ended by themselves.
        first = min(lost, key=_order_of_blame)
        message = f"{self._name(first.index)} {first.reason}"
        if first.traceback:
            message = f"{message}\n{first.traceback}"
            raise RankError(message)
        raise RanksApartError(message)

    def _name(self, index: int) -> str:
        return f"learner {index + 1} of {self._count + 1}"


def _order_of_blame(lost: Lost) -> int:
    if lost.traceback:
        return 0
    return 2 if "exit code 0" in lost.reason else 1
