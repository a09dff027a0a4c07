"""sb3-contrib's side of `benchmarks.qrdqn`, run as a separate process.

`python -m benchmarks.qrdqn.peer_side TASK SEED SECONDS` prints one line of JSON. stable-baselines3 and sb3-contrib come
from the folder that the benchmark puts on the path.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib import QRDQN  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.monitor import Monitor  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.vec_env import DummyVecEnv  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn

from benchmarks.qrdqn import tasks as shared
from benchmarks.qrdqn.tasks import TASKS, Episode, Task, Watch
from models.encoders.config import ConvConfig
from models.encoders.convolutions import ConvEncoder


class Extractor(BaseFeaturesExtractor):
    """Rulka's encoder in float32 and, if the task has floats, Rulka's two-layer float head."""

    def __init__(self, observation_space: spaces.Space, task: Task) -> None:
        encoder = ConvEncoder(ConvConfig(kind="conv", adaptive_pool=0), task.size, task.size)
        float_width = shared.FLOAT_WIDTH if isinstance(observation_space, spaces.Dict) else 0
        super().__init__(observation_space, encoder.num_features + float_width)
        self.encoder = encoder
        mean, std = torch.tensor(task.normalisation.mean), torch.tensor(task.normalisation.std)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.head = nn.Sequential(
            nn.Linear(len(mean), shared.FLOAT_WIDTH),
            nn.LeakyReLU(inplace=True),
            nn.Linear(shared.FLOAT_WIDTH, shared.FLOAT_WIDTH),
            nn.LeakyReLU(inplace=True),
        )

    def forward(self, observations: Any) -> Tensor:
        """Maps observations, cast to float32, to features."""
        if not isinstance(observations, dict):
            return self.encoder((observations - 128.0) / 128.0)
        features = self.encoder((observations["image"] - 128.0) / 128.0)
        return torch.cat([features, self.head((observations["floats"] - self.mean) / self.std)], dim=1)


class Watching(BaseCallback):
    """Callback that reports episodes to a `Watch` and stops training when it is over."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self._watch.note(Episode(float(info["episode"]["r"]), bool(info.get("is_finished", False))))
        return not self._watch.is_over(self.num_timesteps)


def run(task: Task, seed: int, max_cpu_s: float) -> dict[str, float]:
    """Trains on a task until the watch is over, and returns its result."""
    torch.set_num_threads(1)
    environments = DummyVecEnv([lambda: Monitor(task.make_env()) for _ in range(shared.NUM_ENVS)])
    watch = Watch(task, max_cpu_s)
    is_dict = isinstance(environments.observation_space, spaces.Dict)
    model = QRDQN(
        "MultiInputPolicy" if is_dict else "MlpPolicy",
        environments,
        learning_rate=shared.LEARNING_RATE,
        buffer_size=task.max_steps,
        learning_starts=shared.START_STEPS,
        batch_size=shared.BATCH,
        gamma=task.gamma,
        train_freq=1,
        gradient_steps=shared.NUM_ENVS // shared.STEPS_PER_UPDATE,
        target_update_interval=shared.TARGET_STEPS,
        exploration_fraction=task.explore_steps / task.max_steps,
        exploration_final_eps=shared.LAST_EPSILON,
        policy_kwargs={
            "features_extractor_class": Extractor,
            "features_extractor_kwargs": {"task": task},
            "n_quantiles": shared.NUM_QUANTILES,
            "net_arch": [shared.HEAD_WIDTH],
            "activation_fn": nn.LeakyReLU,
            "normalize_images": False,
            "optimizer_class": torch.optim.RAdam,
            # Its loss is the mean over a batch, Rulka's the sum.
            "optimizer_kwargs": {"eps": shared.OPTIMIZER_EPSILON / shared.BATCH},
        },
        seed=seed,
        device="cpu",
    )
    model.learn(task.max_steps, callback=Watching(watch))
    return watch.result(model.num_timesteps)


if __name__ == "__main__":
    print(json.dumps(run(TASKS[sys.argv[1]](), int(sys.argv[2]), float(sys.argv[3]))))
