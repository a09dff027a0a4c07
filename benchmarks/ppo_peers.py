"""Compares Rulka's PPO with stable-baselines3's, in environment steps per CPU second, end to end.

    python -m benchmarks.ppo_peers [--peers FOLDER] [--updates 5] [--rounds 3] [--json]

rulka/Race-v0, 64 cars, rollouts of 64 decisions, batches of 512, 3 epochs, the same layers (encoder, float head, trunk)
and one head each for policy and value. Rulka's row "as shipped" trains the encoder only in the last epoch of each
update, as params.yaml does; "every layer" trains it in all epochs, as the peer does. Rulka uses the precision that is
faster on this machine and steps all cars as one batch; the peer uses float32 and one environment per car.

Sides take turns, each in a single-threaded process; results are medians over the rounds. Imports and the first update
are not counted. The peer is not a dependency of Rulka: `pip install --no-deps --target FOLDER
stable-baselines3==2.9.2` makes the folder of `--peers`. Without it only Rulka is measured.

Dimensions: B batch, F floats, W trunk width.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from models.actor_critic import ActorCritic
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.ppo.params import PpoParams
from rulka.agents.shared.networks import input_shape
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, new_block
from rulka.contracts.actions import Choices
from rulka.contracts.observation import NUM_FLOATS, reference_normalisation
from rulka.contracts.schedule import Moment
from rulka.envs.vector import RaceVectorEnv
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import reference_params
from rulka.runtime.collector import Collector, LocalActor

ROOT = Path(__file__).parents[1]
CARS, ROLLOUT, BATCH, EPOCHS, NUM_ACTIONS = 64, 64, 512, 3, 12
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, VALUE_WEIGHT, MAX_GRAD_NORM = 3e-4, 0.985, 0.98, 0.2, 0.5, 0.5
PEER = "stable-baselines3"
ENCODER_EPOCHS = {"as shipped": 1, "every layer": EPOCHS}
Result = dict[str, float]


class Layers(nn.Module):
    """Rulka's encoder, float head and trunk in float32, with the sizes of params.yaml; no policy or value head.

    Attributes:
        num_features: W.
    """

    def __init__(self) -> None:
        super().__init__()
        params = reference_params()
        sizes, inputs = params.network, input_shape(params.observation, reference_normalisation())
        self.network = ActorCritic(inputs, params.encoder, sizes.float_hidden, sizes.dense_hidden, NUM_ACTIONS)
        del self.network.policy_head, self.network.value_head  # the peer brings its own
        self.num_features = sizes.dense_hidden

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Maps `image` [B, 1, H, W] and `floats` [B, F] to [B, W]."""
        # Default memory format: channels-last is an optimisation of Rulka's own.
        image = (observation["image"].float() - 128.0) / 128.0
        return self.network.hidden(self.network.encoder(image), observation["floats"])


def agent_spec(encoder_epochs: int) -> AgentSpec[PpoParams]:
    """Returns the agent of params.yaml with the shared hyperparameters, and no early stopping of updates."""
    params = reference_params()
    changes = {
        "steps_per_update": CARS * ROLLOUT,
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "encoder_epochs": encoder_epochs,
        "learning_rate": LEARNING_RATE,
        "gamma": GAMMA,
        "gae_lambda": GAE_LAMBDA,
        "clip": CLIP,
        "value_weight": VALUE_WEIGHT,
        "max_grad_norm": MAX_GRAD_NORM,
        "value_warmup_steps": 0,
        "max_kl": 1e6,
    }
    ppo = PpoParams.model_validate(params.algorithms["ppo"].model_dump() | changes)
    seen = (params.observation, params.encoder, params.network)
    return AgentSpec("ppo", *seen, ppo, Choices(NUM_ACTIONS), reference_normalisation())


def run_rulka(num_updates: int, encoder_epochs: int) -> Result:
    """Measures updates including their rollouts, after one warm-up update."""
    spec = agent_spec(encoder_epochs)
    learner, actor = make_learner(spec, 0), LocalActor(make_actor(spec, 1))
    observation = spec.observation
    block = new_block(BlockSpec(ROLLOUT, CARS, observation.height, observation.width, NUM_FLOATS))
    collector = Collector(0, RaceVectorEnv(CARS).batch, actor, 0, block.spec)
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
        "steps_per_cpu_s": num_updates * CARS * ROLLOUT / spent_s,
        "environment_share": simulating_s / spent_wall_s,  # wall time, as the collector measures it
    }


def run_peer(num_updates: int) -> Result:
    """Measures the same with stable-baselines3, imported from the `--peers` folder on the path."""
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import DummyVecEnv  # pyright: ignore[reportMissingImports]

    class Extractor(BaseFeaturesExtractor):
        def __init__(self, observation_space: gymnasium.spaces.Dict) -> None:
            layers = Layers()
            super().__init__(observation_space, layers.num_features)
            self.layers = layers

        def forward(self, observations: dict[str, Tensor]) -> Tensor:
            return self.layers(observations)

    class TimedEnvs(DummyVecEnv):
        spent_s = 0.0

        def step_wait(self) -> Any:
            began_s = time.process_time()
            stepped = super().step_wait()
            self.spent_s += time.process_time() - began_s
            return stepped

    class Clock(BaseCallback):
        num_rollouts, began_s = 0, 0.0

        def _on_rollout_start(self) -> None:
            self.num_rollouts += 1
            if self.num_rollouts == 2:
                self.began_s, envs.spent_s = time.process_time(), 0.0

        def _on_step(self) -> bool:
            return True

    envs, clock = TimedEnvs([lambda: gymnasium.make("rulka/Race-v0", start_anywhere=0.5) for _ in range(CARS)]), Clock()
    model = PPO(
        "MultiInputPolicy",
        envs,
        learning_rate=LEARNING_RATE,
        n_steps=ROLLOUT,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        vf_coef=VALUE_WEIGHT,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={"features_extractor_class": Extractor, "net_arch": [], "normalize_images": False},
        seed=0,
        device="cpu",
    )
    model.learn((1 + num_updates) * CARS * ROLLOUT, callback=clock)
    spent_s = time.process_time() - clock.began_s
    return {
        "steps_per_cpu_s": num_updates * CARS * ROLLOUT / spent_s,
        "environment_share": envs.spent_s / spent_s,
    }


def ask(side: str, num_updates: int, peers: Path | None) -> Result:
    """Runs one side in a separate process and returns its result.

    Raises:
        CalledProcessError: if it fails; its own message is on stderr.
    """
    paths = os.pathsep.join(str(path.resolve()) for path in (ROOT, peers) if path is not None)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "benchmarks.ppo_peers", "--side", side, "--updates", str(num_updates)]
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return json.loads(answer.stdout.splitlines()[-1])


def main() -> None:
    """Runs the comparison and prints the table, or one side and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with stable_baselines3")
    parser.add_argument("--updates", type=int, default=5, help="that are counted, of 4,096 decisions each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=[*ENCODER_EPOCHS, PEER], help="measure this one alone, here")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.side is not None:
        torch.set_num_threads(1)
        raise_malloc_thresholds()
        own = ENCODER_EPOCHS.get(arguments.side)
        print(json.dumps(run_peer(arguments.updates) if own is None else run_rulka(arguments.updates, own)))
        return
    sides = [*ENCODER_EPOCHS, PEER]
    if arguments.peers is None or not (arguments.peers / "stable_baselines3").is_dir():
        print(f"{PEER} is left out: --peers names no folder that holds it; see --help", file=sys.stderr)
        sides.remove(PEER)
    rounds = [{side: ask(side, arguments.updates, arguments.peers) for side in sides} for _ in range(arguments.rounds)]
    found = {
        side: {name: statistics.median(one[side][name] for one in rounds) for name in rounds[0][side]} for side in sides
    }
    if arguments.json:
        print(json.dumps(found))
        return
    print("| | steps / CPU s | of it in environments |\n|---|---|---|")
    for side, result in found.items():
        print(f"| {side} | {result['steps_per_cpu_s']:.0f} | {result['environment_share']:.0%} |")


if __name__ == "__main__":
    main()
