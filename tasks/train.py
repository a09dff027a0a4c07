"""Stage `train`: reinforcement learning with many processes, one run per algorithm.

Reads  data/agent_init/     initial agents, and for IQN the cloned policy that guides early exploration
       data/races/          the main track
       data/frames/         demonstrations, for algorithms that learn from them
Writes data/agent/          an artifact of kind "agent" for `train.algorithm`, see rulka.contracts.artifacts
         training.jsonl     training log, one JSON object per line
         compared/<algorithm>/   the same for each of `train.compared`, trained with the same budget
Live   runs/train/<algorithm>-<fingerprint>/   checkpoints, the trained agent, metrics.jsonl, TensorBoard events

The fingerprint is a hash of parameters, inputs and code. A killed run resumes from its last checkpoint; if any of the
three has changed, the fingerprint differs and training starts from scratch. A trained agent stays in its run: if the
output is lost, it is delivered again, not retrained.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch

from rulka.contracts.artifacts import OWN_FILES
from rulka.machine.device import use_device
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, params_of_stage
from rulka.runtime.run_lock import locked
from rulka.stages.folders import AGENT, AGENT_INIT, COMPARED, FRAMES, RACES, TRAINING_RUNS
from rulka.stages.stage import check_not_cached, output_folder, require, run_stage
from rulka.training.agent_run import AgentRun, Folders
from rulka.training.old_runs import clean_up, drop_experience


def train(params: Params, *, folders: Folders) -> None:
    """Trains every algorithm with the same budget and keeps the best weights of each.

    Raises:
        UserError: if an input is missing, damaged or does not match the parameters, or another process runs the same
            training.
        WorkerCrashError: if a collector keeps crashing.
    """
    require(folders.agent_init, "transfer")
    require(folders.races, "races")
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    device = use_device()
    train = params.train
    runs = {algorithm: AgentRun(algorithm, params, folders, device) for algorithm in train.algorithms}
    with ExitStack() as stack:
        for run in runs.values():
            stack.enter_context(locked(run.folder))
        clean_up(folders.runs, [run.folder for run in runs.values()])
        for run in runs.values():
            run.train()
        with output_folder(folders.out) as out:
            for algorithm, run in runs.items():
                run.deliver(out if algorithm == train.algorithm else out / COMPARED / algorithm)
        for run in runs.values():
            drop_experience(run.folder)


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    params = params_of_stage("train")
    check_not_cached(AGENT, "train", OWN_FILES)
    train(
        params,
        folders=Folders(agent_init=AGENT_INIT, races=RACES, frames=FRAMES, runs=TRAINING_RUNS, out=AGENT),
    )


if __name__ == "__main__":
    run_stage(main, after_interrupt="Training goes on from its last checkpoint in runs/train, where it had saved one.")
