"""The history of the nightly evaluations: an append-only table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from pandas import DataFrame

from rulka.contracts.stored import StoredFloat, checked
from rulka.machine.errors import UserError
from rulka.stages.folders import NIGHTS
from rulka.stages.graph import bring_back
from rulka.stages.outputs import new_file

HISTORY_FILE, RECORDS_FOLDER = "history.csv", "records"
ALL_TRACKS = "all tracks"


@dataclass(frozen=True)
class NightRow:
    """One agent on one track, or on all of them together, in one night.

    Attributes:
        night: the date in ISO 8601.
        raced_at: time of the races, in UTC.
        seed: seed of the first start on each track.
        role: "promoted" or "latest"; one agent may be both.
        agent: name of the agent.
        uid: UID of the track; for all tracks a hash of their UIDs, so that only nights on the same tracks are compared.
        track: name of the track, or "all tracks".
        trained_on: True if the agent was trained on the track; for all tracks, on each of them.
        races: number of races.
        finished: number of finished races.
        best_time_s: None if none finished, and for all tracks together.
        median_time_s: likewise.
        pace_mps: see `rulka.operations.nights`.
        pace_low_mps: lower end of its interval.
        pace_high_mps: upper end.
        before_mps: mean pace of earlier nights in the same role, see `nights.judge`; None in the first.
        is_worse: True if worse than these, see `rulka.operations.nights`; only set for all tracks together.
    """

    night: str
    raced_at: str
    seed: int
    role: str
    agent: str
    uid: str
    track: str
    trained_on: bool
    races: int
    finished: int
    best_time_s: StoredFloat | None
    median_time_s: StoredFloat | None
    pace_mps: StoredFloat
    pace_low_mps: StoredFloat
    pace_high_mps: StoredFloat
    before_mps: StoredFloat | None
    is_worse: bool


COLUMNS = tuple(NightRow.__dataclass_fields__)


def read_history() -> list[NightRow]:
    """Returns all rows of the history, the oldest first; none if there is no history yet.

    Raises:
        UserError: if it is damaged, or missing though DVC tracks it.
    """
    file = NIGHTS / HISTORY_FILE
    if not file.exists():
        if brought := bring_back(NIGHTS):
            message = f"{file} is missing, though {NIGHTS}.dvc says that there were nights"
            raise UserError(message, hint=f"{brought}. Remove {NIGHTS}.dvc to begin anew.")
        return []
    try:
        table = csv.DictReader(StringIO(file.read_text(encoding="utf-8")))
        rows = [{name: text or None for name, text in row.items()} for row in table]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} is damaged: {error}", hint=_BRING_BACK) from error
    if tuple(table.fieldnames or ()) != COLUMNS:
        raise UserError(f"{file} does not begin with the columns {', '.join(COLUMNS)}", hint=_BRING_BACK)
    numbered = enumerate(rows, 2)
    return [checked(row, NightRow, f"{file}, line {number},", hint=_BRING_BACK) for number, row in numbered]


_BRING_BACK = f"Bring it back with `dvc checkout {NIGHTS}.dvc`, or move it away to begin a new one."


def append_history(rows: Sequence[NightRow]) -> None:
    """Appends rows to the history.

    Raises:
        UserError: if it cannot be written.
    """
    file = NIGHTS / HISTORY_FILE
    NIGHTS.mkdir(parents=True, exist_ok=True)
    before = file.read_bytes() if file.exists() else b""
    text = DataFrame(rows).to_csv(index=False, header=not before, lineterminator="\n")
    with new_file(file) as beside:  # not in place: the file may be a link into DVC's cache
        beside.write_bytes(before + text.encode())
