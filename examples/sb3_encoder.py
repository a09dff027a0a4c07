"""PPO of stable-baselines3 on `rulka/Race-v0`, whose images a pretrained encoder of Rulka's sees.

    python examples/sb3_encoder.py --encoder data/encoder --steps 20000

`pip install stable-baselines3`. The encoder comes from `dvc repro pretrain`, and is trained further here. At the end
the policy races as Rulka's own agents do, from the same starts, and its numbers are those of their report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import tyro
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

import rulka

FLOATS_SEEN = 64


class Seen(BaseFeaturesExtractor):
    """Features of the image by the encoder, beside the floats, which a layer draws in."""

    def __init__(self, space: gymnasium.spaces.Dict, encoder: Path) -> None:
        loaded = rulka.load_encoder(encoder)
        super().__init__(space, loaded.num_features + FLOATS_SEEN)
        self.encoder = loaded
        self.floats = torch.nn.Linear(gymnasium.spaces.flatdim(space["floats"]), FLOATS_SEEN)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Maps `image` [B, 1, H, W], pixels as they are, and `floats` [B, F] to [B, E + 64]."""
        floats = torch.relu(self.floats(observation["floats"].asinh()))
        return torch.cat([self.encoder(observation["image"]), floats], dim=1)


def main(encoder: Path = Path("data/encoder"), steps: int = 20_000, seed: int = 1, track: str = "copper-oval") -> None:
    """Trains, and lets the policy race.

    Args:
        encoder: folder of the pretrained encoder.
        steps: of the environment.
        seed: of everything.
        track: where.
    """
    torch.set_num_threads(1)
    # Without normalize_images=False the library would divide the pixels by 255.
    seen: dict[str, Any] = {"features_extractor_class": Seen, "features_extractor_kwargs": {"encoder": encoder}}
    env = gymnasium.make("rulka/Race-v0", track=track, action_repeat=2)
    model = PPO(
        "MultiInputPolicy", env, policy_kwargs=seen | {"normalize_images": False}, n_steps=512, verbose=1, seed=seed
    )
    model.learn(steps)

    def act(observation: dict[str, np.ndarray]) -> np.ndarray:
        return model.predict(observation, deterministic=True)[0]

    score = rulka.evaluate(act, track, num_races=10, action_repeat=2)
    print(f"{score.finish_rate:.0%} finished, {score.mean_progress_m:.1f} m, lap share {score.lap_share:.3f}")


if __name__ == "__main__":
    tyro.cli(main)
