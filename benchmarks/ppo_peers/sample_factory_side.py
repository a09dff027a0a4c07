"""Sample Factory's side of `benchmarks.ppo_peers`, in the Python of an environment of its own.

`python -m benchmarks.ppo_peers.sample_factory_side UPDATES FOLDER` trains, with one worker and a learner in processes
of their own, and prints one line of JSON: the decisions taken, and the processor time of all of it, imports included.
The folder is for what it writes.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import gymnasium
from sample_factory.algo.utils.context import global_model_factory  # pyright: ignore[reportMissingImports]
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args  # pyright: ignore[reportMissingImports]
from sample_factory.envs.env_utils import register_env  # pyright: ignore[reportMissingImports]
from sample_factory.model.encoder import Encoder  # pyright: ignore[reportMissingImports]
from sample_factory.train import run_rl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from benchmarks.ppo_peers import shared
from rulka.envs.race import RaceEnv

NAME = "race"


class SharedEncoder(Encoder):
    """The shared layers; what follows are two heads of one layer."""

    def __init__(self, cfg: Any, obs_space: gymnasium.spaces.Dict) -> None:
        super().__init__(cfg)
        del obs_space
        self.layers = shared.Layers()

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Maps observations to features."""
        return self.layers(observation)

    def get_out_size(self) -> int:
        """Returns how many features there are."""
        return self.layers.num_features


def make_env(_name: str, _cfg: Any, _config: Any, render_mode: str | None = None) -> RaceEnv:
    """Makes one environment of one car."""
    return RaceEnv(render_mode=render_mode)


def settings(num_updates: int, folder: str) -> list[str]:
    """Returns the command line of Sample Factory."""
    given = {
        "algo": "APPO",
        "env": NAME,
        "experiment": "peer",
        "train_dir": folder,
        "device": "cpu",
        "seed": 0,
        "train_for_env_steps": num_updates * shared.STEPS_PER_UPDATE,
        "num_workers": 1,
        "num_envs_per_worker": shared.CARS,
        "worker_num_splits": 2,
        "rollout": shared.ROLLOUT,
        "batch_size": shared.BATCH,
        "num_batches_per_epoch": shared.STEPS_PER_UPDATE // shared.BATCH,
        "num_epochs": shared.EPOCHS,
        "learning_rate": shared.LEARNING_RATE,
        "gamma": shared.GAMMA,
        "gae_lambda": shared.GAE_LAMBDA,
        "ppo_clip_ratio": shared.CLIP,
        "value_loss_coeff": shared.VALUE_WEIGHT,
        "max_grad_norm": shared.MAX_GRAD_NORM,
        "use_rnn": False,
        "recurrence": 1,
        "normalize_input": False,
        "obs_subtract_mean": 0.0,
        "obs_scale": 1.0,
        "decorrelate_experience_max_seconds": 0,
        "save_every_sec": 3600,
    }
    return [f"--{name}={value}" for name, value in given.items()]


def run(num_updates: int, folder: str) -> dict[str, float]:
    """Trains to the end and returns what it took."""
    register_env(NAME, make_env)
    global_model_factory().register_encoder_factory(SharedEncoder)
    parser, _ = parse_sf_args(settings(num_updates, folder))
    status = run_rl(parse_full_cfg(parser, settings(num_updates, folder)))
    assert status == 0, status
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "steps": float(num_updates * shared.STEPS_PER_UPDATE),
        "cpu_s": sum(each.ru_utime + each.ru_stime for each in spent),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), sys.argv[2])))
