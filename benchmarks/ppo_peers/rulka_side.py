"""Rulka's side of `benchmarks.ppo_peers`, in a process of its own.

`python -m benchmarks.ppo_peers.rulka_side UPDATES ENCODER_EPOCHS` prints one line of JSON. One thread; collecting and
learning take turns.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks.ppo_peers import shared
from rulka.actions import Choices
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.params import PpoParams
from rulka.agents.precision import raise_malloc_thresholds
from rulka.agents.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, new_block
from rulka.envs.vector import RaceVectorEnv
from rulka.observation import NUM_FLOATS, reference_normalisation
from rulka.params import reference_params
from rulka.runtime.collector import Collector, LocalActor
from rulka.schedule import Moment


def agent_spec(encoder_epochs: int) -> AgentSpec[PpoParams]:
    """Returns the agent of params.yaml with what all sides share, and nothing that makes an update end early."""
    params = reference_params()
    changes = {
        "steps_per_update": shared.STEPS_PER_UPDATE,
        "batch_size": shared.BATCH,
        "epochs": shared.EPOCHS,
        "encoder_epochs": encoder_epochs,
        "learning_rate": shared.LEARNING_RATE,
        "gamma": shared.GAMMA,
        "gae_lambda": shared.GAE_LAMBDA,
        "clip": shared.CLIP,
        "value_weight": shared.VALUE_WEIGHT,
        "max_grad_norm": shared.MAX_GRAD_NORM,
        "value_warmup_steps": 0,
        "max_kl": 1e6,
    }
    ppo = PpoParams.model_validate(params.ppo.model_dump() | changes)
    seen = (params.observation, params.encoder, params.network)
    return AgentSpec("ppo", *seen, ppo, Choices(shared.NUM_ACTIONS), reference_normalisation())


def run(num_updates: int, encoder_epochs: int) -> dict[str, float]:
    """Measures some updates and the decisions for them, after one that is not counted."""
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    spec = agent_spec(encoder_epochs)
    learner, actor = make_learner(spec, 0), LocalActor(make_actor(spec, 1))
    observation = spec.observation
    block = new_block(BlockSpec(shared.ROLLOUT, shared.CARS, observation.height, observation.width, NUM_FLOATS))
    collector = Collector(0, RaceVectorEnv(shared.CARS), actor, 0, block.spec)
    began_s, began_wall_s, simulating_s = 0.0, 0.0, 0.0
    for update in range(1 + num_updates):
        if update == 1:
            began_s, began_wall_s, simulating_s = time.process_time(), time.perf_counter(), 0.0
        actor.load(learner.version, learner.network.state_dict())
        filled = collector.fill(block, Moment(learner.num_env_steps))
        simulating_s += filled.spent.simulating_s
        learner.insert(block, 0, learner.version)
        learner.update()
    spent_s, spent_wall_s = time.process_time() - began_s, time.perf_counter() - began_wall_s
    collector.close()
    return {
        "steps_per_cpu_s": num_updates * shared.STEPS_PER_UPDATE / spent_s,
        "environment_share": simulating_s / spent_wall_s,  # which the collector measures in wall time
        "is_bfloat16": float(learner.precision == "bfloat16"),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
