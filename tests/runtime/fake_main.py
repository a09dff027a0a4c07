"""A stage made of fakes, started as a process of its own: `python fake_main.py FOLDER NUM_COLLECTORS`."""

from __future__ import annotations

import sys
from pathlib import Path

from runtime_fakes import fake_run

from rulka.runtime.connect import train_run
from rulka.stage import run_stage


def main() -> None:
    spec = fake_run(
        Path(sys.argv[1]),
        num_collectors=int(sys.argv[2]),
        max_env_steps=10**9,
        cars={"step_s": 0.002},
        checkpoint_s=0.2,
    )
    train_run(spec)


if __name__ == "__main__":
    run_stage(main)
