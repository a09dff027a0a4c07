"""Parameters for a stage, which `dvc.yaml` has to list: DVC misses changes of what it does not list."""

from __future__ import annotations

from rulka.machine.errors import UserError
from rulka.params.reader import read_params
from rulka.params.sections import Params
from rulka.stages.folders import AGENT, AGENT_INIT, ENCODER, FRAMES, POLICY, RACES, RECORDINGS, TAKEOVERS
from rulka.stages.graph import GRAPH_FILE, MAIN_SECTION, read_graph

_DRIVING = ("observation", "actions", "simulator", "race_end")
READS = {
    "races": (RECORDINGS, "actions", "simulator", "track", "races", "race_end"),
    "capture": (RACES, "observation", "actions", "simulator", "capture"),
    "pretrain": (FRAMES, "observation", "actions", "encoder", "pretrain"),
    "clone": (ENCODER, FRAMES, RACES, TAKEOVERS, *_DRIVING, "encoder", "network", "clone"),
    "transfer": (ENCODER, POLICY, "observation", "actions", "encoder", "network", "train", "transfer"),
    "train": (AGENT_INIT, FRAMES, RACES, *_DRIVING, "encoder", "network", "rewards", "train", MAIN_SECTION),
    "evaluate": (AGENT, AGENT_INIT, ENCODER, POLICY, RACES, *_DRIVING, "evaluate"),
}
"""Data and sections that each stage reads; `train` also reads the sections of `train.compared`."""


def params_of_stage(stage: str) -> Params:
    """Reads all parameters for a stage.

    Raises:
        UserError: if the file is not valid, see `read_params`, or `dvc.yaml` does not list all that the stage reads.
    """
    params = read_params()
    check_listed(stage, params)
    return params


def check_listed(stage: str, params: Params) -> None:
    """Checks that the entry of a stage in `dvc.yaml`, if there is one, lists all data and sections that it reads.

    Raises:
        UserError: naming what is missing.
    """
    entry = read_graph().get(stage) if GRAPH_FILE.exists() else None
    if entry is None:
        return
    listed = [*entry.get("deps", ()), *entry.get("params", ())]
    compared = params.train.compared if stage == "train" else ()
    read = [each if isinstance(each, str) else each.as_posix() for each in (*READS[stage], *compared)]
    if missing := [name for name in read if name not in listed]:
        where = "deps" if "/" in missing[0] else "params"
        message = f"the stage {stage} reads {', '.join(missing)}, which {GRAPH_FILE} does not list: DVC misses changes"
        raise UserError(message, hint=f"Add `- {missing[0]}` to its `{where}`, or take the file back from git.")
