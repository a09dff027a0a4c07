"""The board: enter an agent, verify an entry, show the table."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rulka.cli.options import AsJson, report
from rulka.stages.outputs import check_file, new_file


@dataclass(frozen=True)
class CardSettings:
    """What the file says of the driver; agents of Rulka tell most of it themselves.

    Attributes:
        name: of the driver; entries that differ in the seed alone are one row of the table.
        who: enters it.
        algorithm: that trained it.
        decisions: in training.
        cpu_seconds: of training.
        trained_on: uids of the tracks that it was trained on.
        seed: of the training.
        sees: if omitted, by the observation's withheld parts.
    """

    name: str | None = None
    who: str | None = None
    algorithm: str | None = None
    decisions: int | None = None
    cpu_seconds: float | None = None
    trained_on: tuple[str, ...] | None = None
    seed: int | None = None
    sees: Literal["everything", "no waypoints", "images alone"] | None = None


def enter(agent: str, /, card: CardSettings, out: Path | None = None, as_json: AsJson = False) -> None:
    """Race an agent on the ten tracks of the campaign and ten held-out ones, and write the races as one file.

    Example: `rulka board enter latest --who me --seed 1`

    Args:
        agent: name of an agent (`rulka agents list`), "latest", "promoted", a folder; MODULE:NAME of a function or of a
            stable-baselines3 model; an .onnx file; or a folder of drive files and reference laps, whose inputs are
            played.
        card: what the file says of the driver.
        out: file to write; if omitted, NAME-SEED.board.npz in this folder.
        as_json: print one JSON object.
    """
    from rulka.board.enter import enter as race
    from rulka.board.entry import SUFFIX, write_entry
    from rulka.board.table import format_board, rows_of

    if out is not None:
        check_file(out, SUFFIX)
    entry = race(agent, {key: value for key, value in asdict(card).items() if value is not None}, sys.stderr)
    path = out or Path(f"{entry.card.name.replace('/', '-')}-{entry.card.seed}{SUFFIX}")
    write_entry(entry, path)
    rows = rows_of([entry])
    report(rows[0] | {"file": path.as_posix()}, lambda: f"{format_board(rows)}\n\nwritten to {path}", as_json)


def verify(files: tuple[Path, ...], /, as_json: AsJson = False) -> None:
    """Drive all races of an entry from its inputs and compare every result; needs neither the agent nor torch.

    Example: `rulka board verify latest-1.board.npz`

    Args:
        files: entries.
        as_json: print a JSON list of rows of the table.
    """
    from rulka.board.entry import verify as drive_again
    from rulka.board.table import format_board, rows_of

    entries = [drive_again(path) for path in files]
    said = "\n".join(
        f"{path}: all {entry.ends.size} races end as it says" for path, entry in zip(files, entries, strict=True)
    )
    report(rows_of(entries), lambda: f"{said}\n\n{format_board(rows_of(entries))}", as_json)


def show(folder: Path, /, page: Path | None = None, as_json: AsJson = False) -> None:
    """Show the table of a folder of entries, without driving them.

    Example: `rulka board show . --page board.md`

    Args:
        folder: holds entries, *.board.npz.
        page: write the table into this Markdown file, too.
        as_json: print a JSON list of rows.
    """
    from rulka.board.table import format_board, read_board, rows_of

    if page is not None:
        check_file(page, ".md")
    rows = rows_of(read_board(folder))
    if page is not None:
        with new_file(page) as beside:
            beside.write_text(f"# The board\n\n{format_board(rows)}\n", encoding="utf-8")
    report(rows, lambda: format_board(rows), as_json)
