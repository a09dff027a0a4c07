"""Runs an external judge: a user-installed program that re-simulates a replay with the game's own physics.

Rulka ships no such program. Rulka starts it with the path of a replay; it exits with code 0 or 1 and prints its verdict
as one JSON object on a line of its own (the last such line counts):

    valid                           required: whether the replay is valid
    status, message                 texts with the reason
    simulation_outcome              object of race_completed and race_time_ms, from the judge's simulation
    checkpoint_times_ms             list, the finish last
    max_deviation                   largest distance from the path of the replay, metres
    max_deviation_time_ms           time of that distance
    measured_sample_count, expected_sample_count    compared samples of the path, and all samples

Missing or null fields were not judged. The names are those of ForeverValidator, which prints all but the checkpoints.
It stops comparing the path at the first sample that is 0.1 m away.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rulka.contracts.stored import checked
from rulka.machine.errors import UserError
from rulka.machine.processes import end_group, ending_of, start_group
from rulka.recordings.reader import read_recording
from rulka.stages.folders import RUNS

FOLDER = RUNS / "judge"
LIMIT_S = 600.0
"""Timeout of a judge."""
TOLERANCE_MS = 10
"""Allowed difference of times: one tick of the game's clock, as judges allow."""
MAX_READ_BYTES, NUM_SHOWN_LINES = 1 << 20, 20
"""Bytes read from the end of a judge's output, and lines of it shown on failure."""


class _Outcome(BaseModel):
    race_completed: bool | None = None
    race_time_ms: int | None = None


class Verdict(BaseModel):
    """A judge's JSON output, see the module."""

    valid: bool
    status: str | None = None
    message: str | None = None
    simulation_outcome: _Outcome = _Outcome()
    checkpoint_times_ms: list[int] | None = None
    max_deviation: float | None = None
    max_deviation_time_ms: int | None = None
    measured_sample_count: int = 0
    expected_sample_count: int = 0


@dataclass(frozen=True)
class Judgement:
    """A replay and its judge's verdict.

    Attributes:
        replay: the file.
        times_ms: times of its checkpoints, the finish last.
        verdict: the judge's verdict.
    """

    replay: Path
    times_ms: tuple[int | None, ...]
    verdict: Verdict

    @property
    def times(self) -> dict[str, tuple[int | None, int | None]]:
        """The replay's and the judge's times of the finish and of each judged checkpoint."""
        outcome, judged = self.verdict.simulation_outcome, self.verdict.checkpoint_times_ms
        found = {} if outcome.race_completed is None else {"finish": (self.times_ms[-1], outcome.race_time_ms)}
        pairs = () if judged is None else zip_longest(self.times_ms, judged)
        return found | {f"checkpoint {number}": pair for number, pair in enumerate(pairs, start=1)}

    @property
    def agrees(self) -> bool:
        """True if the judge finds the replay valid and its times agree within a tick."""
        return self.verdict.valid and all(
            said is not None and judged is not None and abs(judged - said) <= TOLERANCE_MS
            for said, judged in self.times.values()
        )

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON: the verdict, and both times in ms, null if missing."""
        times = {name: {"replay_ms": said, "judge_ms": judged} for name, (said, judged) in self.times.items()}
        found = {"agrees": self.agrees, "replay": self.replay.as_posix(), "times": times}
        return found | {"verdict": self.verdict.model_dump()}

    def to_text(self) -> str:
        """Returns a line for the verdict, the finish, each checkpoint and the path."""
        verdict = self.verdict
        says = [verdict.status or ("valid" if verdict.valid else "invalid"), *filter(None, [verdict.message])]
        lines = [f"{'agrees' if self.agrees else 'disagrees'}: the judge says {': '.join(says)}"]
        for name, (said, judged) in self.times.items():
            apart = "" if said is None or judged is None else f" ({judged - said:+d} ms)"
            lines.append(f"{name}: {_seconds(said)}, judge {_seconds(judged)}{apart}")
        if verdict.simulation_outcome.race_completed is None:
            lines.append("finish: the judge gives none")
        if verdict.checkpoint_times_ms is None:
            lines.append("checkpoints: the judge gives none")
        path = "the judge gives none"
        if verdict.max_deviation is not None and verdict.measured_sample_count:
            path = f"at most {verdict.max_deviation:.3f} m apart, at {_seconds(verdict.max_deviation_time_ms)}, in the "
            path += f"first {verdict.measured_sample_count} of {verdict.expected_sample_count} samples"
        return "\n".join([*lines, f"path: {path}", f"replay: {self.replay.as_posix()}"])


def _seconds(time_ms: int | None) -> str:
    return "no time" if time_ms is None else f"{time_ms / 1000:.3f} s"


def judge_replay(command: Sequence[str], replay: Path) -> Judgement:
    """Runs a judge on a replay; its output goes to a `.log` file beside the replay.

    Args:
        command: words of its command line, with {replay} for the path; not run through a shell.
        replay: a `.Replay.Gbx`.

    Raises:
        UserError: if no judge is named, or it cannot be started, fails, exceeds `LIMIT_S` or prints no verdict.
        RecordingError: if the replay is corrupt.
    """
    if not command:
        message = "nothing says which program is the judge"
        hint = f"Name it by RULKA_GAME_JUDGE or --with, see docs/game.md. The replay is {replay.as_posix()}."
        raise UserError(message, hint=hint)
    times_ms = read_recording(replay).ghosts[0].checkpoint_times_ms
    words = [word.replace("{replay}", str(replay.resolve())) for word in command]
    log = replay.with_suffix(".log")
    problem = _run(words, log)
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MAX_READ_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith("{")), None)
    if problem or said is None:
        shown = lines[-NUM_SHOWN_LINES:] or ["(it printed nothing)"]
        message = "\n  ".join([f"the judge {problem or 'printed no verdict'}:", *shown])
        raise UserError(message, hint=f"It was started as {shlex.join(words)}; its output is in {log.as_posix()}.")
    verdict = checked(said.encode(), Verdict, "the judge's verdict", hint=f"It is in {log.as_posix()}.")
    return Judgement(replay, times_ms, verdict)


def _run(words: Sequence[str], log: Path) -> str:
    """Runs a program until it exits or times out; returns the problem, empty if there is none."""
    with log.open("wb") as out:
        try:
            judge = start_group(words, os.environ, out)
        except OSError as error:
            message = f"the judge cannot be started with {words[0]!r}: {error.strerror or error}"
            raise UserError(message, hint="Look at RULKA_GAME_JUDGE or --with; see docs/game.md.") from error
    try:
        code = judge.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT_S:g} s"
    finally:
        end_group(judge)
    return "" if code in (0, 1) else ending_of(code)
