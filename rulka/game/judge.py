"""An outside judge: a program that the user has installed, which drives a replay by the game's own physics.

Nothing of such a program comes with Rulka. It is started with the path of a replay, ends with exit code 0 or 1, and
prints its verdict as one JSON object on a line of its own, the last such line counts:

    valid                           required: whether the replay holds
    status, message                 texts that say why not
    simulation_outcome              object of race_completed and race_time_ms, as the judge drove it
    checkpoint_times_ms             list, the finish last
    max_deviation                   largest distance from the path of the replay, metres
    max_deviation_time_ms           where that was
    measured_sample_count, expected_sample_count    samples of the path that were compared, and all of them

What is left out or null was not judged. These are the names of ForeverValidator, which prints all but the checkpoints.
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

from rulka.errors import UserError
from rulka.folders import RUNS
from rulka.processes import end_group, ending_of, start_group
from rulka.recordings.reader import read_recording
from rulka.stored import checked

FOLDER = RUNS / "judge"
LIMIT_S = 600.0
"""A judge that takes longer is ended."""
TOLERANCE_MS = 10
"""A tick of the game's clock, as much as judges allow."""
MAX_READ_BYTES, NUM_SHOWN_LINES = 1 << 20, 20
"""Of what a judge prints: read from its end, and shown where it fails."""


class JudgeError(UserError):
    """The judge is missing, fails, hangs or gives no verdict; the message shows what it printed last."""


class _Outcome(BaseModel):
    race_completed: bool | None = None
    race_time_ms: int | None = None


class Verdict(BaseModel):
    """What a judge prints, see the module."""

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
    """What a replay says beside what its judge says.

    Attributes:
        replay: the file.
        times_ms: of its checkpoints, the finish last.
        verdict: of the judge.
    """

    replay: Path
    times_ms: tuple[int | None, ...]
    verdict: Verdict

    @property
    def times(self) -> dict[str, tuple[int | None, int | None]]:
        """The replay's time of the finish, and of each checkpoint that is judged, beside the judge's."""
        outcome, judged = self.verdict.simulation_outcome, self.verdict.checkpoint_times_ms
        found = {} if outcome.race_completed is None else {"finish": (self.times_ms[-1], outcome.race_time_ms)}
        pairs = () if judged is None else zip_longest(self.times_ms, judged)
        return found | {f"checkpoint {number}": pair for number, pair in enumerate(pairs, start=1)}

    @property
    def agrees(self) -> bool:
        """Whether the judge holds the replay to be valid, and comes to its times within a tick."""
        return self.verdict.valid and all(
            said is not None and judged is not None and abs(judged - said) <= TOLERANCE_MS
            for said, judged in self.times.values()
        )

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON: the verdict as it came, and times in ms; null where one of the two has none."""
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
    """Lets a judge drive a replay; its output lies beside that, as `.log`.

    Args:
        command: words of its command line, with {replay} where the path goes; no shell sees them.
        replay: a `.Replay.Gbx`.

    Raises:
        JudgeError: if it cannot be started, fails, takes longer than `LIMIT_S` or prints no verdict.
        RecordingError: if the replay is damaged.
    """
    if not command:
        message = "nothing says which program is the judge"
        hint = f"Name it by RULKA_GAME_JUDGE or --with, see docs/game.md. The replay is {replay.as_posix()}."
        raise JudgeError(message, hint=hint)
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
        raise JudgeError(message, hint=f"It was started as {shlex.join(words)}; its output is in {log.as_posix()}.")
    verdict = checked(said.encode(), Verdict, "the judge's verdict", JudgeError, f"It is in {log.as_posix()}.")
    return Judgement(replay, times_ms, verdict)


def _run(words: Sequence[str], log: Path) -> str:
    """Runs a program to its end, or to the end of its time; returns what was wrong with it, empty for nothing."""
    with log.open("wb") as out:
        try:
            judge = start_group(words, os.environ, out)
        except OSError as error:
            message = f"the judge cannot be started with {words[0]!r}: {error.strerror or error}"
            raise JudgeError(message, hint="Look at RULKA_GAME_JUDGE or --with; see docs/game.md.") from error
    try:
        code = judge.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT_S:g} s"
    finally:
        end_group(judge)
    return "" if code in (0, 1) else ending_of(code)
