"""What has been fetched, so that nothing is asked for twice: one line of JSON for each thing, written at once.

A line that was cut off by an interruption is the last one and does not count. There are three kinds: `page`, an answer
to a question; `file`, a file that lies in the folder; `rejected`, a file that was not what was asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rulka.exchange.client import ExchangeError
from rulka.outputs import not_written

FILE_NAME = "fetched.jsonl"

GOES_ON = "What was fetched stays, and the same command goes on with it."


class Manifest:
    """The manifest of a folder.

    Args:
        folder: existing folder with the fetched files.
        is_fresh: whether earlier answers are asked for again; files are not.

    Raises:
        ExchangeError: if the manifest is there and is none.
    """

    def __init__(self, folder: Path, *, is_fresh: bool = False) -> None:
        self.path = folder / FILE_NAME
        self.items: dict[str, dict[str, Any]] = {}
        self._pages: dict[str, Any] = {}
        self._mend()
        for row in self._rows():
            if row.get("kind") == "page":
                self._pages[row["question"]] = row["answer"]
            else:
                self.items[row["item"]] = row
        if is_fresh:
            self._pages.clear()

    def remember(self, ask: Callable[[str, Mapping[str, str | int]], Any]) -> Callable[..., Any]:
        """Returns a function that asks only what has not been answered before."""

        def answer(path: str, parameters: Mapping[str, str | int]) -> Any:
            question = f"{path} {json.dumps(dict(parameters), sort_keys=True)}"
            if question not in self._pages:
                self._pages[question] = ask(path, parameters)
                self._append({"kind": "page", "question": question, "answer": self._pages[question]})
            return self._pages[question]

        return answer

    def add(self, kind: str, item: str, **facts: Any) -> None:
        """Notes a file by the name of what it is, for example `replay 123`."""
        self.items[item] = {"kind": kind, "item": item, **facts}
        self._append(self.items[item])

    def _append(self, row: Mapping[str, Any]) -> None:
        end = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if self.path.exists():
                os.truncate(self.path, end)  # half a line would be lost in the next one
            raise not_written(self.path, error, GOES_ON) from error

    def _mend(self) -> None:
        """Takes a cut-off last line away."""
        if self.path.exists():
            data = self.path.read_bytes()
            end = data.rfind(b"\n") + 1
            if end < len(data):
                with self.path.open("r+b") as file:
                    file.truncate(end)

    def _rows(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        try:
            rows = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            if all("question" in row and "answer" in row if row["kind"] == "page" else "item" in row for row in rows):
                return rows
        except (ValueError, KeyError, TypeError):
            pass
        message = f"{self.path} is not the manifest of fetched files, or it is damaged"
        raise ExchangeError(message, hint="Move it away to start anew; files that are there stay and are kept.")
