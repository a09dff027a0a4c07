"""The database in which Prefect keeps the records of runs, looked at without Prefect."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from rulka.doctor.finding import Finding, State

DATABASE = Path(".prefect/prefect.db")
ELSEWHERE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
MIGRATIONS = Path("server/database/_migrations/versions/sqlite")
_REVISION = re.compile(r'^(down_)?revision = ["\'](\w+)["\']', re.MULTILINE)
_BEGIN_ANEW = f"move {DATABASE} away: the records of runs begin anew, no result is lost"


def records() -> Finding:
    """Looks whether the installed Prefect can go on with the database that lies there."""
    if ELSEWHERE in os.environ:
        return Finding("prefect records", State.UNKNOWN, f"not looked at: {ELSEWHERE} names another database")
    if not DATABASE.exists():
        return Finding("prefect records", State.OK, "none yet")
    try:
        lies_there = _revision_of(DATABASE)
    except sqlite3.DatabaseError as error:
        busy = "locked" in str(error)
        text = f"{DATABASE} {'is busy' if busy else 'is damaged'}: {error}"
        return Finding("prefect records", State.UNKNOWN if busy else State.WRONG, text, "" if busy else _BEGIN_ANEW)
    known, newest = _installed_revisions()
    size = f"{DATABASE.stat().st_size / 1e6:.0f} MB"
    if not known:
        return Finding("prefect records", State.UNKNOWN, f"{size}; no Prefect is installed to compare its schema with")
    if lies_there is None:
        return Finding("prefect records", State.NOTE, f"{size}; its tables are made at the next start of the server")
    if lies_there not in known:
        text = f"{DATABASE} has schema {lies_there}, which the installed Prefect does not know: a newer one made it"
        return Finding("prefect records", State.WRONG, text, f"run `make setup` in a new .venv, or {_BEGIN_ANEW}")
    if lies_there not in newest:
        text = f"{size}, schema {lies_there}; the next start of the server brings it up to {', '.join(sorted(newest))}"
        return Finding("prefect records", State.NOTE, text)
    return Finding("prefect records", State.OK, f"{size}, schema {lies_there}, the newest")


def _revision_of(database: Path) -> str | None:
    """Returns the schema's revision; None where no table was made yet.

    Raises:
        sqlite3.DatabaseError: if it is no database, or locked.
    """
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
        table = connection.execute("SELECT name FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if table else None
    return row[0] if row else None


def _installed_revisions() -> tuple[set[str], set[str]]:
    """Returns the revisions that the installed Prefect knows, and those of them that no other one follows."""
    package = find_spec("prefect")
    if package is None or package.origin is None:
        return set(), set()
    known, followed = set(), set()
    for file in (Path(package.origin).parent / MIGRATIONS).glob("*.py"):
        for is_followed, revision in _REVISION.findall(file.read_text(encoding="utf-8")):
            (followed if is_followed else known).add(revision)
    return known, known - followed
