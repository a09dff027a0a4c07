"""PPO on `rulka/Race-v0` in one loop, in the manner of CleanRL: nothing of Rulka's but the races.

    python examples/cleanrl_ppo.py --steps 40960

Sixteen cars side by side on an easy track of 200 m. A line for each update says how far the races went that ended
in it.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn
from torch.distributions import Categorical

import rulka  # noqa: F401 - registers the environments
from rulka.tracks.generate import generate_track

CARS, STEPS, EPOCHS, MINIBATCH = 16, 128, 4, 256
ROWS = ("image", "floats", "action", "log_prob", "value", "paid", "over")
GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.2, 0.01, 1e-3


class Network(nn.Module):
    """Logits of the twelve actions, and a value."""

    def __init__(self) -> None:
        super().__init__()
        image = [nn.Conv2d(1, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()]
        self.image = nn.Sequential(*image, nn.Flatten())
        self.both = nn.Sequential(nn.Linear(512 + 184, 256), nn.Tanh())
        self.policy, self.value = nn.Linear(256, 12), nn.Linear(256, 1)

    def forward(self, image: Tensor, floats: Tensor) -> tuple[Categorical, Tensor]:
        """Maps images [B, 1, 64, 64] uint8 and floats [B, 184] to a distribution and values [B]."""
        seen = self.both(torch.cat([self.image(image / 255.0), floats.asinh()], dim=1))
        return Categorical(logits=self.policy(seen)), self.value(seen)[:, 0]


def main(steps: int = 40_960, seed: int = 1) -> None:
    """Trains, and prints a line for each update.

    Args:
        steps: of all cars together.
        seed: of weights, starts and actions.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    track = generate_track(1, length_m=200.0, width_m=16.0, max_slope=0.0, gate_spacing_m=50.0, difficulty="easy")
    cars = gymnasium.make_vec("rulka/Race-v0", num_envs=CARS, track=track, autoreset_mode=AutoresetMode.SAME_STEP)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, eps=1e-5)
    seen, _ = cars.reset(seed=seed)
    for update in range(steps // (CARS * STEPS)):
        rows: dict[str, list[Tensor]] = {name: [] for name in ROWS}
        ended: list[float] = []
        for _ in range(STEPS):
            image, floats = (torch.from_numpy(seen[name].copy()) for name in ("image", "floats"))
            with torch.no_grad():
                policy, value = network(image, floats)
            action = policy.sample()
            seen, reward, terminated, truncated, info = cars.step(action.numpy())
            over = terminated | truncated
            if over.any():
                ended += info["final_info"]["progress_m"][over].tolist()
            step = (
                image,
                floats,
                action,
                policy.log_prob(action),
                value,
                torch.from_numpy(reward),
                torch.from_numpy(over),
            )
            for name, part in zip(rows, step, strict=True):
                rows[name].append(part)
        batch = {name: torch.stack(parts) for name, parts in rows.items()}
        with torch.no_grad():
            _, following = network(*(torch.from_numpy(seen[name]) for name in ("image", "floats")))
        advantage, carried = torch.zeros(STEPS, CARS), torch.zeros(CARS)
        for t in reversed(range(STEPS)):
            goes_on = ~batch["over"][t]
            delta = batch["paid"][t] + GAMMA * following * goes_on - batch["value"][t]
            advantage[t] = carried = delta + GAMMA * LAMBDA * carried * goes_on
            following = batch["value"][t]
        target = advantage + batch["value"]
        flat = {name: part.flatten(0, 1) for name, part in (batch | {"advantage": advantage, "target": target}).items()}
        for _ in range(EPOCHS):
            for index in torch.randperm(CARS * STEPS).split(MINIBATCH):
                row = {name: part[index] for name, part in flat.items()}
                policy, value = network(row["image"], row["floats"])
                ratio = (policy.log_prob(row["action"]) - row["log_prob"]).exp()
                lead = (row["advantage"] - row["advantage"].mean()) / (row["advantage"].std() + 1e-8)
                surrogate = torch.min(ratio * lead, ratio.clamp(1.0 - CLIP, 1.0 + CLIP) * lead).mean()
                loss = -surrogate + 0.5 * (value - row["target"]).square().mean() - ENTROPY * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                optimizer.step()
        metres = f"{np.mean(ended):.1f} m in {len(ended)} races" if ended else "no race has ended"
        print(f"{(update + 1) * CARS * STEPS} steps: {metres}", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
