"""Rulka's side of `benchmarks.qrdqn`, run as a separate process.

`python -m benchmarks.qrdqn.rulka_side TASK SEED SECONDS KIND` prints one line of JSON. One thread; collecting and
learning alternate. KIND is "specified", or "found": fractions at the hidden units, the default, and 5-step returns.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

import rulka.agents.iqn.learner  # noqa: F401 else imported with the first learner, and counted as its time
from benchmarks.qrdqn import tasks as shared
from benchmarks.qrdqn.tasks import TASKS, Episode, Task, Watch
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.iqn.params import IqnParams
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, new_block
from rulka.contracts.actions import Choices
from rulka.contracts.schedule import Moment, Schedule
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import reference_params
from rulka.runtime.collector import Collector, LocalActor

BLOCK_STEPS = 4
UPDATES_PER_CALL = 4
KINDS = {"specified": ("state", 1), "found": ("hidden", 5)}
"""`network.iqn.embedding_at`, where the fractions enter, and `iqn.n_steps`. 5 steps were chosen among 1, 3 and 5 on
both tasks, with seeds 4 and 5."""


def agent_spec(task: Task, kind: str) -> AgentSpec:
    """Returns the agent with the shared settings; features that QR-DQN lacks are off, except those of `KINDS`."""
    embedding_at, n_steps = KINDS[kind]
    params = reference_params()
    line = {"interpolation": "linear"}
    changes = {
        "num_quantiles": shared.NUM_QUANTILES,
        "num_quantiles_acting": shared.NUM_QUANTILES,
        "kappa": 1.0,
        "n_steps": n_steps,
        # Each quantile maximises over actions separately, whereas QR-DQN takes the action with the best mean. This is
        # the cheapest rule here, one forward pass less than double DQN.
        "use_double_dqn": False,
        "batch_size": shared.BATCH,
        "learning_rate": _constant(shared.LEARNING_RATE),
        "gamma": _constant(task.gamma),
        "epsilon": line | {"points": [[0, 1.0], [task.explore_steps, shared.LAST_EPSILON]]},
        "target_tau": 1.0,
        "target_every": shared.TARGET_STEPS // shared.STEPS_PER_UPDATE,
        "buffer_steps": task.max_steps,
        "start_steps": shared.START_STEPS,
        "warmup_steps": 0,
        "guide_floor": _constant(0.0),
        "rate_of": params.algorithms["iqn"].model_dump()["rate_of"] | {"encoder": _constant(1.0)},
        "samples_per_insert": shared.BATCH / shared.STEPS_PER_UPDATE,
        "gradient_steps_per_update": UPDATES_PER_CALL,
        "weight_decay": 0.0,
        "max_grad_norm": 1e6,
        "self_loss_clamp_ratio": 1e-6,  # no target counts as wider than typical: equal weight for all transitions
    }
    iqn = IqnParams.model_validate(params.algorithms["iqn"].model_dump() | changes)
    body = params.network.iqn.model_dump() | {"embedding_at": embedding_at, "guided": False}
    sizes = {"float_hidden": shared.FLOAT_WIDTH, "dense_hidden": shared.HEAD_WIDTH, "iqn": body}
    network = NetworkParams.model_validate(params.network.model_dump() | sizes)
    seen = params.observation.model_copy(update={"height": task.size, "width": task.size})
    return AgentSpec("iqn", seen, params.encoder, network, iqn, Choices(task.num_actions), task.normalisation)


def run(task: Task, seed: int, max_cpu_s: float, kind: str = "specified") -> dict[str, float]:
    """Trains on a task until the watch is over, and returns its result."""
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    cars = task.make_cars(shared.NUM_ENVS)
    watch = Watch(task, max_cpu_s)
    spec = agent_spec(task, kind)
    learner = make_learner(spec, seed)
    actor = LocalActor(make_actor(spec, seed + 1))
    actor.load(0, learner.network.state_dict())
    block = new_block(BlockSpec(BLOCK_STEPS, shared.NUM_ENVS, task.size, task.size, len(task.normalisation.mean)))
    collector = Collector(0, cars, actor, seed, block.spec)
    steps, acting_s, simulating_s, learning_s = 0, 0.0, 0.0, 0.0
    while not watch.is_over(steps):
        began_s = time.process_time()
        metrics = learner.update()
        learning_s += time.process_time() - began_s
        if metrics is not None:
            actor.load(learner.version, learner.network.state_dict())
            continue
        filled = collector.fill(block, Moment(learner.num_env_steps))
        for race in filled.races:
            watch.note(Episode(race.total_reward, race.is_finished))
        steps += int(np.count_nonzero(~block.is_reset))
        acting_s, simulating_s = acting_s + filled.spent.acting_s, simulating_s + filled.spent.simulating_s
        learner.insert(block, 0, learner.version)
    collector.close()
    shares = {"learning_cpu_s": learning_s, "acting_wall_s": acting_s, "simulating_wall_s": simulating_s}
    return watch.result(steps) | shares | {"is_bfloat16": float(learner.precision == "bfloat16")}


def _constant(value: float) -> Schedule:
    return Schedule(interpolation="linear", points=((0, value),))


if __name__ == "__main__":
    _, task_name, seed_text, seconds, kind_name = sys.argv
    print(json.dumps(run(TASKS[task_name](), int(seed_text), float(seconds), kind_name)))
