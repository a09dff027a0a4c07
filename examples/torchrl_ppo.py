"""PPO on `rulka/Race-v0` out of torchrl's own parts: environment, collector, advantages, replay buffer and loss.

    python examples/torchrl_ppo.py --seed 1

Rulka gives the race alone, image and floats; with `--encoder` its pretrained encoder, too. The track is short and easy,
sixteen cars drive side by side, one thread computes. A line for each update says how far the races went that ended in
it, of 200 m. Seeds 1, 2 and 3 took 81 to 89 s of processor time: 1 to 2 m in the first update, 198 to 200 m in the
twentieth, where at most one car failed.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import gymnasium
import torch
import tyro
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import EnvBase, GymWrapper, InitTracker, RewardSum
from torchrl.modules import MLP, ActorValueOperator, ConvNet, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import rulka
from rulka.tracks.generate import generate_track

NUM_CARS, NUM_EPOCHS, MINIBATCH, WIDTH = 16, 4, 256, 256
LOSSES = ("loss_objective", "loss_critic", "loss_entropy")


def make_environment(seed: int) -> EnvBase:
    """Returns cars that race on an easy track of 200 m, each from the start line."""
    track = generate_track(1, length_m=200.0, width_m=16.0, max_slope=0.0, gate_spacing_m=50.0, difficulty="easy")
    # torchrl resets the cars whose races are over by itself, and keeps the last observation of each race.
    cars = gymnasium.make_vec(
        "rulka/Race-v0", num_envs=NUM_CARS, track=track, start_anywhere=0.0, autoreset_mode="Disabled"
    )
    # Of what a step tells beside the observation, such as `progress_m`, every entry comes along.
    wrapped = GymWrapper(cars, categorical_action_encoding=True).auto_register_info_dict()
    environment = wrapped.append_transform(InitTracker()).append_transform(RewardSum())
    environment.set_seed(seed)
    return environment


class Features(nn.Module):
    """What policy and value are both computed from."""

    def __init__(self, num_floats: int, encoder: Path | None) -> None:
        super().__init__()
        self.encoder = None if encoder is None else rulka.load_encoder(encoder)
        self.image = ConvNet(in_features=1, num_cells=[16, 32, 32], kernel_sizes=[8, 4, 3], strides=[4, 2, 1])
        num_features = 512 if self.encoder is None else self.encoder.num_features
        sizes = {"in_features": num_features + num_floats, "out_features": WIDTH, "num_cells": [WIDTH]}
        self.both = MLP(**sizes, activate_last_layer=True)

    def forward(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps images [..., 1, 64, 64] uint8 and raw floats [..., F] to features [..., WIDTH]."""
        # Floats are metres, speeds and flags: asinh leaves the small ones and draws in the large ones.
        if self.encoder is None:
            seen = self.image(image / 255.0)
        else:
            seen = self.encoder(image.reshape(-1, *image.shape[-3:])).reshape(*image.shape[:-3], -1)
        return self.both(torch.cat([seen, floats.asinh()], dim=-1))


def make_agent(environment: EnvBase, encoder: Path | None) -> ActorValueOperator:
    """Returns a policy and a value over the same features."""
    features = Features(environment.observation_spec["floats"].shape[-1], encoder)
    logits = nn.Linear(WIDTH, environment.action_spec.cardinality())
    policy = ProbabilisticActor(
        TensorDictModule(logits, in_keys=["features"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=environment.action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    return ActorValueOperator(
        TensorDictModule(features, in_keys=["image", "floats"], out_keys=["features"]),
        policy,
        ValueOperator(nn.Linear(WIDTH, 1), in_keys=["features"]),
    )


def how_races_went(data: TensorDictBase) -> str:
    """Says how the races went that ended in some experience."""
    is_over = data.get(("next", "done")).squeeze(-1)
    if not is_over.any():
        return "no race has ended"
    finished, metres, paid = (
        data.get(("next", name))[is_over].float() for name in ("is_finished", "progress_m", "episode_reward")
    )
    how = f"{int(finished.sum())} finished, {metres.mean():.1f} m, return {paid.mean():.2f}"
    return f"{len(finished)} races, {how}"


def main(steps: int = 40_960, seed: int = 0, steps_per_update: int = 2_048, encoder: Path | None = None) -> None:
    """Trains, and prints a line for each update.

    Args:
        steps: environment steps of all cars together.
        seed: of weights, starts and actions.
        steps_per_update: of them, what one update learns from.
        encoder: folder of a pretrained encoder, such as data/encoder, that sees the images; a new one when left out.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    environment = make_environment(seed)
    agent = make_agent(environment, encoder)
    policy, value = agent.get_policy_operator(), agent.get_value_operator()
    collector = Collector(environment, policy, frames_per_batch=steps_per_update, total_frames=steps)
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(steps_per_update), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
    )
    ppo = ClipPPOLoss(
        policy,  # pyright: ignore[reportArgumentType] - torchrl's own operator, of a wider class than it asks for
        value,
        clip_epsilon=0.2,
        entropy_coeff=0.003,
        critic_coeff=0.5,
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-4)
    num_steps = 0
    for data in collector:
        with torch.no_grad():
            advantages(data)
        buffer.extend(data.reshape(-1))
        moved = []
        for _ in range(NUM_EPOCHS):
            for minibatch in buffer:
                found = ppo(minibatch)
                optimizer.zero_grad()
                torch.stack([found[name] for name in LOSSES]).sum().backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                moved.append(found["kl_approx"].detach())
        num_steps += data.numel()
        kl = float(torch.stack(moved).mean())
        print(f"{num_steps} steps, {time.process_time():.0f} s: {how_races_went(data)}, kl {kl:.4f}", flush=True)
    collector.shutdown()


if __name__ == "__main__":
    tyro.cli(main)
