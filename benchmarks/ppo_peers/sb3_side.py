"""stable-baselines3's side of `benchmarks.ppo_peers`, in a process of its own.

`python -m benchmarks.ppo_peers.sb3_side UPDATES` prints one line of JSON. stable-baselines3 comes from the folder that
the benchmark puts on the path.
"""

from __future__ import annotations

import json
import sys
import time

import gymnasium
import torch
from gymnasium import spaces
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.vec_env import DummyVecEnv  # pyright: ignore[reportMissingImports]
from torch import Tensor

import rulka  # noqa: F401  registers rulka/Race-v0
from benchmarks.ppo_peers import shared


class Extractor(BaseFeaturesExtractor):
    """The shared layers; what follows are two heads of one layer."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        layers = shared.Layers()
        super().__init__(observation_space, layers.num_features)
        self.layers = layers

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Maps observations, cast to float32, to features."""
        return self.layers(observations)


class TimedEnvs(DummyVecEnv):
    """Counts the processor time of its steps, which lie side by side with everything else's.

    Attributes:
        spent_s: so far.
    """

    spent_s = 0.0

    def step_wait(self) -> tuple:
        """Steps all environments."""
        began_s = time.process_time()
        stepped = super().step_wait()
        self.spent_s += time.process_time() - began_s
        return stepped


class Clock(BaseCallback):
    """Notes the processor time at which the second rollout begins."""

    def __init__(self, envs: TimedEnvs) -> None:
        super().__init__()
        self._envs, self._num_rollouts, self.began_s = envs, 0, 0.0

    def _on_rollout_start(self) -> None:
        self._num_rollouts += 1
        if self._num_rollouts == 2:
            self.began_s, self._envs.spent_s = time.process_time(), 0.0

    def _on_step(self) -> bool:
        return True


def run(num_updates: int) -> dict[str, float]:
    """Measures some updates and the decisions for them, after one that is not counted."""
    torch.set_num_threads(1)
    envs = TimedEnvs([lambda: gymnasium.make("rulka/Race-v0") for _ in range(shared.CARS)])
    clock = Clock(envs)
    model = PPO(
        "MultiInputPolicy",
        envs,
        learning_rate=shared.LEARNING_RATE,
        n_steps=shared.ROLLOUT,
        batch_size=shared.BATCH,
        n_epochs=shared.EPOCHS,
        gamma=shared.GAMMA,
        gae_lambda=shared.GAE_LAMBDA,
        clip_range=shared.CLIP,
        vf_coef=shared.VALUE_WEIGHT,
        max_grad_norm=shared.MAX_GRAD_NORM,
        policy_kwargs={"features_extractor_class": Extractor, "net_arch": [], "normalize_images": False},
        seed=0,
        device="cpu",
    )
    model.learn((1 + num_updates) * shared.STEPS_PER_UPDATE, callback=clock)
    spent_s = time.process_time() - clock.began_s
    return {
        "steps_per_cpu_s": num_updates * shared.STEPS_PER_UPDATE / spent_s,
        "environment_share": envs.spent_s / spent_s,
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
