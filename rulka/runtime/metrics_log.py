"""The log of a run: lines of JSON for the report and the live page, TensorBoard scalars, DVCLive plots.

All three say the same. `dvc plots show runs/train/<run>/dvclive/plots` compares runs; `tensorboard --logdir runs` too.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dvclive.live import Live
from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"
DVCLIVE_FOLDER = "dvclive"

Values = Mapping[str, float | int | str | None]

_GROUP = {
    "finish_rate": "Race",
    "mean_return": "Race",
    "mean_progress_m": "Race",
    "best_training_time_s": "Race",
    "record_s": "Race",
    "num_races": "Race",
    "mean_training_time_s": "Race",
    "env_steps_per_s": "Performance",
    "samples_learned_per_s": "Performance",
    "blocks_under_way": "Performance",
    "blocks_ready": "Performance",
    "num_restarts": "Performance",
    "versions_behind": "Performance",
    "most_versions_behind": "Performance",
    "check_finish_rate": "Check",
    "check_mean_time_s": "Check",
    "check_mean_progress_m": "Check",
    "gradient_steps": "Total",
    "minutes": "Total",
    "version": "Total",
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
"""TensorBoard group of a metric; the rest are shares of time, gradients, or the learner's: see `_group`."""


class MetricsLog:
    """Writes metrics as lines of JSON, TensorBoard scalars and DVCLive plots, all into the folder of the run."""

    def __init__(self, folder: Path, *, env_steps: int, num_bytes: int) -> None:
        """Opens the files and forgets what was written after the checkpoint that the run goes on from.

        Args:
            folder: of the run; made if it is missing.
            env_steps: where the run goes on; 0 starts anew.
            num_bytes: what `num_bytes` was there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if env_steps == 0:
            for stale in folder.glob("events.out.tfevents.*"):
                stale.unlink()
        self.path = folder / METRICS_FILE
        self._file = self.path.open("ab")
        self._file.truncate(min(num_bytes, self._file.tell()))
        self._tensorboard = SummaryWriter(folder, purge_step=env_steps or None)
        self._plots = _open_plots(folder / DVCLIVE_FOLDER, env_steps)

    @property
    def num_bytes(self) -> int:
        """Length of the file of lines."""
        return self._file.seek(0, 2)

    def write(self, env_steps: int, values: Values, details: Mapping[str, float]) -> None:
        """Writes one line, and one scalar for each number.

        Args:
            env_steps: now.
            values: by name.
            details: by TensorBoard tag; there are hundreds, so they go to TensorBoard alone.
        """
        self._plots.step = env_steps
        line = {name: value if _is_finite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"env_steps": env_steps} | line).encode() + b"\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, int | float) and _is_finite(value):
                tag = f"{_group(name)}/{name}"
                self._tensorboard.add_scalar(tag, value, env_steps)
                self._plots.log_metric(tag, value)
        self._plots.make_summary()
        for tag, value in details.items():
            if _is_finite(value):
                self._tensorboard.add_scalar(tag, value, env_steps)

    def close(self) -> None:
        """Closes all files."""
        self._file.close()
        self._plots.end()
        self._tensorboard.close()


def _group(name: str) -> str:
    if name.startswith(("learner_", "collectors_", "inference_")):
        return "Performance"
    return "Gradients" if name.startswith("grad_norm") else _GROUP.get(name, "Training")


def _open_plots(folder: Path, env_steps: int) -> Live:
    """Opens DVCLive's folder and forgets what was written after `env_steps`, everything where that is 0."""
    if env_steps == 0:
        shutil.rmtree(folder, ignore_errors=True)
    for path in folder.glob("plots/metrics/**/*.tsv"):
        head, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text(head + "".join(row for row in rows if int(row.split("\t")[0]) <= env_steps), encoding="utf-8")
    # Runs are DVC outputs' makings, not experiments of their own: no entry in the repository, no dvc.yaml.
    return Live(str(folder), resume=env_steps > 0, save_dvc_exp=False, dvcyaml=None)


def _is_finite(value: float | int | str | None) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def read_metrics(path: Path) -> Sequence[dict[str, Any]]:
    """Reads all lines of a metrics file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
