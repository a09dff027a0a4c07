"""The metrics of a run: JSON lines for the report and the live page, and the same as TensorBoard scalars.

`tensorboard --logdir runs` compares runs. A killed process or a full disk can leave truncated lines or bytes that are
not text. A resumed run keeps every readable line and logs how many it dropped.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rulka.runtime.checkpoint import write_file
from rulka.runtime.live import METRICS_FILE

Values = Mapping[str, float | int | str | None]

_LOGGER = logging.getLogger(__name__)

_GROUP = {
    "gamma": "RL",
    "epsilon": "RL",
    "boltzmann_epsilon": "RL",
    "q_mean": "RL",
    "target_mean": "RL",
    "entropy": "RL",
    "value_mean": "RL",
    "return_mean": "RL",
    "buffer_decisions": "Buffer",
    "samples_per_insert": "Buffer",
    "importance": "Buffer",
}
"""TensorBoard groups of the learner's metrics; all others belong to `LEARNED` or to the gradients."""
LEARNED = "Training"


class MetricsLog:
    """Writes metrics as JSON lines and TensorBoard scalars, both into the folder of the run."""

    def __init__(self, folder: Path, *, env_steps: int, num_bytes: int) -> None:
        """Opens the files and discards what was written after the checkpoint that the run resumes from.

        Args:
            folder: of the run; created if it is missing.
            env_steps: of that checkpoint; 0 starts from scratch.
            num_bytes: value of `num_bytes` at that checkpoint.
        """
        # Imported here: every collector imports the stage's module, and this would be a fifth of what it loads.
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        if env_steps == 0:
            for stale in folder.glob("events.out.tfevents.*"):
                stale.unlink()
        self.path = folder / METRICS_FILE
        _keep_lines(self.path, num_bytes)
        self._file = self.path.open("ab")
        self._tensorboard = SummaryWriter(folder, purge_step=env_steps or None)

    @property
    def num_bytes(self) -> int:
        """Size of the JSON lines file."""
        return self._file.seek(0, 2)

    def write(self, env_steps: int, values: Mapping[str, Values], details: Mapping[str, float]) -> None:
        """Writes one line, and one scalar per number.

        Args:
            env_steps: now.
            values: by TensorBoard group and name; the learner's own in `LEARNED`.
            details: by TensorBoard tag; only TensorBoard gets them, because there are hundreds.
        """
        named = [(group, name, value) for group, each in values.items() for name, value in each.items()]
        line = {name: value if _is_finite(value) else None for _, name, value in named}
        self._file.write(json.dumps({"env_steps": env_steps} | line).encode() + b"\n")
        self._file.flush()
        for group, name, value in named:
            if isinstance(value, int | float) and _is_finite(value):
                self._tensorboard.add_scalar(_tag(group, name), value, env_steps)
        for tag, value in details.items():
            if _is_finite(value):
                self._tensorboard.add_scalar(tag, value, env_steps)

    def close(self) -> None:
        """Closes both files, the second even if the first cannot be flushed."""
        try:
            self._file.close()
        finally:
            self._tensorboard.close()


def _tag(group: str, name: str) -> str:
    if group == LEARNED:
        group = "Gradients" if name.startswith("grad_norm") else _GROUP.get(name, LEARNED)
    return f"{group}/{name}"


def _keep_lines(path: Path, num_bytes: int) -> None:
    """Reduces a metrics file to the intact lines within its first `num_bytes`."""
    if not path.exists():
        return
    content = path.read_bytes()
    lines = content[:num_bytes].splitlines(keepends=True)
    whole = [line for line in lines if _is_line(line)]
    if len(whole) < len(lines):
        _LOGGER.warning("%s: %d damaged lines are left out", path.as_posix(), len(lines) - len(whole))
    if (kept := b"".join(whole)) != content:
        with write_file(path) as file:
            file.write(kept)


def _is_line(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and "env_steps" in json.loads(line)
    except (ValueError, TypeError):
        return False


def _is_finite(value: float | int | str | None) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def read_metrics(path: Path) -> Sequence[dict[str, Any]]:
    """Reads all lines of a metrics file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
