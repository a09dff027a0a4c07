"""The log of a run: lines of JSON for the report and the live page, TensorBoard scalars, DVCLive plots.

All three say the same. `dvc plots show runs/train/<run>/dvclive/plots` compares runs; `tensorboard --logdir runs` too.

A killed process or a full disk can leave any of these files cut off or with bytes that are no text. A run that goes on
keeps what can be read and says what it left out.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulka.runtime.checkpoint import write_file
from rulka.runtime.live import METRICS_FILE

if TYPE_CHECKING:
    from dvclive.live import Live

DVCLIVE_FOLDER = "dvclive"

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
"""TensorBoard group of a learner's metric; the others are in `LEARNED`, or are gradients."""
LEARNED = "Training"


class MetricsLog:
    """Writes metrics as lines of JSON, TensorBoard scalars and DVCLive plots, all into the folder of the run."""

    def __init__(self, folder: Path, *, env_steps: int, num_bytes: int) -> None:
        """Opens the files and forgets what was written after the checkpoint that the run goes on from.

        Args:
            folder: of the run; made if it is missing.
            env_steps: where the run goes on; 0 starts anew.
            num_bytes: what `num_bytes` was there.
        """
        # Not at the top: every collector imports the stage's module, and these are a fifth of what it would load.
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        if env_steps == 0:
            for stale in folder.glob("events.out.tfevents.*"):
                stale.unlink()
        self.path = folder / METRICS_FILE
        _keep_lines(self.path, num_bytes)
        self._file = self.path.open("ab")
        self._tensorboard = SummaryWriter(folder, purge_step=env_steps or None)
        self._plots = _open_plots(folder / DVCLIVE_FOLDER, env_steps)

    @property
    def num_bytes(self) -> int:
        """Length of the file of lines."""
        return self._file.seek(0, 2)

    def write(self, env_steps: int, values: Mapping[str, Values], details: Mapping[str, float]) -> None:
        """Writes one line, and one scalar for each number.

        Args:
            env_steps: now.
            values: by TensorBoard group and name; a learner's own in `LEARNED`.
            details: by TensorBoard tag; there are hundreds, so they go to TensorBoard alone.
        """
        self._plots.step = env_steps
        named = [(group, name, value) for group, each in values.items() for name, value in each.items()]
        line = {name: value if _is_finite(value) else None for _, name, value in named}
        self._file.write(json.dumps({"env_steps": env_steps} | line).encode() + b"\n")
        self._file.flush()
        for group, name, value in named:
            if isinstance(value, int | float) and _is_finite(value):
                tag = _tag(group, name)
                self._tensorboard.add_scalar(tag, value, env_steps)
                self._plots.log_metric(tag, value)
        self._plots.make_summary()
        for tag, value in details.items():
            if _is_finite(value):
                self._tensorboard.add_scalar(tag, value, env_steps)

    def close(self) -> None:
        """Closes all files, the others too where one of them cannot be written to its end."""
        with ExitStack() as stack:
            for close in (self._file.close, self._plots.end, self._tensorboard.close):
                stack.callback(close)


def _tag(group: str, name: str) -> str:
    if group == LEARNED:
        group = "Gradients" if name.startswith("grad_norm") else _GROUP.get(name, LEARNED)
    return f"{group}/{name}"


def _open_plots(folder: Path, env_steps: int) -> Live:
    """Opens DVCLive's folder and forgets what was written after `env_steps`, everything where that is 0."""
    from dvclive.live import Live

    if env_steps == 0:
        shutil.rmtree(folder, ignore_errors=True)
    for path in folder.glob("plots/metrics/**/*.tsv"):
        _keep_rows(path, env_steps)
    _keep_summary(folder / "metrics.json")
    # Runs are DVC outputs' makings, not experiments of their own: no entry in the repository, no dvc.yaml.
    return Live(str(folder), resume=env_steps > 0, save_dvc_exp=False, dvcyaml=None)


def _keep_lines(path: Path, num_bytes: int) -> None:
    """Leaves those lines of a metrics file that lie in its first bytes and are whole."""
    if not path.exists():
        return
    content = path.read_bytes()
    lines = content[:num_bytes].splitlines(keepends=True)
    whole = [line for line in lines if _is_line(line)]
    _say_left_out(path, len(lines) - len(whole))
    if (kept := b"".join(whole)) != content:
        with write_file(path) as file:
            file.write(kept)


def _is_line(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and "env_steps" in json.loads(line)
    except (ValueError, TypeError):
        return False


def _keep_rows(path: Path, env_steps: int) -> None:
    """Leaves the rows of a DVCLive plot, `step` and value, up to a step; a plot without its first line goes."""
    head, *rows = path.read_bytes().splitlines(keepends=True) or [b""]
    if not head.startswith(b"step\t"):
        _LOGGER.warning("%s is damaged and is begun anew", path.as_posix())
        path.unlink()
        return
    steps = [_step_of(row) for row in rows]
    _say_left_out(path, steps.count(None))
    kept = [row for row, step in zip(rows, steps, strict=True) if step is not None and step <= env_steps]
    if len(kept) < len(rows):
        with write_file(path) as file:
            file.writelines([head, *kept])


def _step_of(row: bytes) -> int | None:
    try:
        step, value = row.split(b"\t")
        float(value)
        return int(step)
    except ValueError:
        return None


def _keep_summary(path: Path) -> None:
    """Removes DVCLive's file of the newest values if it cannot be read; the next report writes it again."""
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        _LOGGER.warning("%s is damaged and is begun anew", path.as_posix())
        path.unlink()


def _say_left_out(path: Path, count: int) -> None:
    if count:
        _LOGGER.warning("%s: %d damaged lines are left out", path.as_posix(), count)


def _is_finite(value: float | int | str | None) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def read_metrics(path: Path) -> Sequence[dict[str, Any]]:
    """Reads all lines of a metrics file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
