"""How the stages of `dvc.yaml` stand: what ran, what runs, what has changed since."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rulka.errors import UserError
from rulka.folders import STAGE_DURATIONS
from rulka.graph import read_graph, read_lock
from rulka.report.durations import StageDuration, read_durations

RUNNING, CHANGED, CURRENT, NEVER, RECORDED = "running", "changed", "up to date", "never ran", "has run"
MOST_REASONS = 4


class Pipeline(NamedTuple):
    """Whom to ask about the pipeline; each raises UserError where nobody can say.

    Attributes:
        changes: returns what has changed for each stage since it ran; a stage without changes is left out.
        at_work: returns who runs which stages.
    """

    changes: Callable[[], Mapping[str, Sequence[str]]]
    at_work: Callable[[], Mapping[str, str]]


class StageRow(NamedTuple):
    """One stage.

    Attributes:
        name: in `dvc.yaml`.
        state: one of the words above.
        why: what has changed, or who runs it.
        outs: paths of its outputs.
        last: how long its last run took; None where nobody knows.
    """

    name: str
    state: str
    why: tuple[str, ...]
    outs: tuple[str, ...]
    last: StageDuration | None

    @property
    def css(self) -> str:
        """Class of its state."""
        return self.state.replace(" ", "-")


def recorded_stages() -> list[StageRow]:
    """Returns all stages as far as files tell at once: which ran, not whether something has changed since.

    Raises:
        UserError: if there is no `dvc.yaml`, or `dvc.lock` is damaged.
    """
    return _rows(lambda name, is_recorded: (RECORDED if is_recorded else NEVER, ()))


def stages(pipeline: Pipeline) -> list[StageRow]:
    """Returns all stages in the order of `dvc.yaml`; while one runs, of the others only whether they ever ran.

    Raises:
        UserError: if there is no `dvc.yaml`, or DVC cannot say what has changed.
    """
    at_work = pipeline.at_work()
    try:
        # DVC compares no outputs that one of its processes is writing.
        changes = {} if at_work else pipeline.changes()
    except UserError:
        at_work, changes = pipeline.at_work(), {}
        if not at_work:  # a stage that began in between is no fault
            raise

    def stand(name: str, is_recorded: bool) -> tuple[str, tuple[str, ...]]:
        if name in at_work:
            return RUNNING, (at_work[name],)
        if not is_recorded:
            return NEVER, ()
        if at_work:
            return RECORDED, ()
        reasons = tuple(changes.get(name, ()))
        more = len(reasons) - MOST_REASONS
        shown = reasons if more <= 0 else (*reasons[:MOST_REASONS], f"{more} more")
        return (CHANGED, shown) if reasons else (CURRENT, ())

    return _rows(stand)


def _rows(stand: Callable[[str, bool], tuple[str, tuple[str, ...]]]) -> list[StageRow]:
    lock, durations = read_lock(), {last.stage: last for last in read_durations(STAGE_DURATIONS)}
    return [
        StageRow(name, *stand(name, name in lock), tuple(parts["outs"]), durations.get(name))
        for name, parts in read_graph().items()
    ]
