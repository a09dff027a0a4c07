"""What the parts of a training run cost on one core, and how much slower a core is while all others are busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.runtime import agent_spec, run_for, run_spec
from rulka.agents.algorithms import make_learner
from rulka.agents.params import Algorithm
from rulka.device import weights_on_host
from rulka.params import Params
from rulka.tracks.generate import generate_track

ALONE = "alone"


@dataclass(frozen=True)
class Costs:
    """Seconds of one core that is alone, and sizes.

    Attributes:
        fill_s: a collector fills a block: simulates, renders and acts.
        load_s: it loads weights.
        insert_s: the learner takes a block in.
        update_s: one update, of `gradient_steps` gradient steps.
        publish_s: it gives out weights.
        gradient_steps: of an update; several learners add up their gradients as often.
        block_env_steps: decisions of a block.
        block_bytes: its size.
        weight_bytes: size of the weights.
        crowded: speed of a core while all others are busy, of that of one that is alone.
    """

    fill_s: float
    load_s: float
    insert_s: float
    update_s: float
    publish_s: float
    gradient_steps: float
    block_env_steps: int
    block_bytes: int
    weight_bytes: int
    crowded: float = 1.0


def measure(params: Params, algorithm: Algorithm, seconds: float) -> Costs:
    """Measures a run in serial mode, in which no part waits for another, alone and on all cores at once."""
    (alone,) = _run_beside_itself(params, algorithm, seconds, 1)
    count = os.cpu_count() or 1
    if count == 1:
        return alone
    crowd = _run_beside_itself(params, algorithm, seconds, count)
    slowed = [_work_s(alone) / _work_s(one) for one in crowd]
    return Costs(**{**asdict(alone), "crowded": sum(slowed) / count})


def _work_s(costs: Costs) -> float:
    return costs.fill_s + costs.update_s


def _run_beside_itself(params: Params, algorithm: Algorithm, seconds: float, count: int) -> list[Costs]:
    """Measures so many processes at once."""
    told = json.dumps({"params": params.model_dump(mode="json"), "algorithm": algorithm, "seconds": seconds})
    command = [sys.executable, "-m", "benchmarks.scale", ALONE]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(count)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(told)
        process.stdin.close()
        process.stdin = None
    answers = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        message = "a run to be measured has failed: see above"
        raise RuntimeError(message)
    return [Costs(**json.loads(answer)) for answer in answers]


def measure_alone(told: Mapping[str, Any]) -> Costs:
    """Measures in this process, as `_run_beside_itself` told it to."""
    params, algorithm = Params.model_validate(told["params"]), told["algorithm"]
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        lines = run_for(params, track, algorithm, 0, told["seconds"])
        block = run_spec(params, track, algorithm, Path(folder)).block
    tensors = weights_on_host(make_learner(agent_spec(params, algorithm), 0).network)
    return _costs_of(lines, block.num_env_steps, block.num_bytes, tensors)


def _costs_of(
    lines: Sequence[Mapping[str, Any]], block_env_steps: int, block_bytes: int, tensors: Mapping[str, torch.Tensor]
) -> Costs:
    """Returns what the reports of a serial run say, without the first, in which kernels are compiled.

    Shares are of the time since the report before.
    """
    before, *reports = lines
    spent = dict.fromkeys(("waiting", "inserting", "updating", "publishing"), 0.0)
    minutes = before["minutes"]
    for line in reports:
        for name in spent:
            spent[name] += line[f"learner_{name}_share"] * 60.0 * (line["minutes"] - minutes)
        minutes = line["minutes"]
    num_blocks = (reports[-1]["env_steps"] - before["env_steps"]) / block_env_steps
    num_updates = reports[-1]["version"] - before["version"]
    weight_bytes = sum(tensor.nbytes for tensor in tensors.values())
    return Costs(
        fill_s=spent["waiting"] / num_blocks,  # the collector drives while the learner waits
        load_s=spent["publishing"] / num_updates,  # in serial mode publishing is one copy, into the actor
        insert_s=spent["inserting"] / num_blocks,
        update_s=spent["updating"] / num_updates,
        publish_s=spent["publishing"] / num_updates,
        gradient_steps=(reports[-1]["gradient_steps"] - before["gradient_steps"]) / num_updates,
        block_env_steps=block_env_steps,
        block_bytes=block_bytes,
        weight_bytes=weight_bytes,
    )
