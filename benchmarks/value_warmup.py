"""The dip after cloning: how PPO drives while its value is new. `python -m benchmarks.value_warmup [--json]`.

Trains PPO from the clone on the track of the demo, serially and in float32, so that the figures are the same on every
load of the machine. Greedy races on the way, always from the same starts, say what became of the clone. `--fits` says
instead how well values solved for from so many decisions explain the returns of races that they have not seen.
Needs `data/races` and `data/agent_init` of a pipeline whose `train.algorithm` is ppo: `dvc repro transfer` makes them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.actor_critic import ActorCritic
from rulka.actions import action_table
from rulka.agents.advantages import Endings, explained_variance, solve_linear_value
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.precision import raise_malloc_thresholds
from rulka.agents.spec import AgentSpec
from rulka.agents.waiting import Segment, join_segments, keep_block
from rulka.artifacts import Artifact, load_artifact
from rulka.buffers.experience import BlockSpec, new_block
from rulka.datasets.races import read_meta, track_path
from rulka.params import Params, read_params
from rulka.race_settings import RaceSettings
from rulka.runtime.collector import Collector, LocalActor
from rulka.runtime.greedy_check import CheckResult, GreedyCheck
from rulka.runtime.specs import MakeCars
from rulka.schedule import Moment
from rulka.tracks.track import load_track
from rulka.training.races import Races
from rulka.training.run import block_spec

CHECK_SEED = 4711
SHOWN = ("explained_variance", "value_loss", "approx_kl", "update_kl", "gradient_steps", "entropy")
"""Metrics of updates that are kept beside the greedy races, as means since the last ones."""


FIT_BLOCKS, TEST_BLOCKS = (2, 4, 8), 12
"""Blocks of experience to solve for a value from, each beginning with the first, and those after them to test it on."""
FIT_RIDGES = (1e-5, 1e-3, 1e-2, 1e-1)


class Budget(NamedTuple):
    """How long to train, how often to look, and over how many races."""

    env_steps: int
    check_every: int
    num_races: int


class Setting(NamedTuple):
    """What all seeds share."""

    params: Params
    initial: Artifact
    make_cars: MakeCars

    @property
    def block(self) -> BlockSpec:
        """Shape of the experience: all cars of the collectors of the demo, in one batch."""
        return block_spec(self.params.observation, self.params.train, self.initial.actions)

    def agent(self) -> AgentSpec:
        """Returns the agent in float32."""
        params = self.params
        return AgentSpec(
            "ppo",
            params.observation,
            params.encoder,
            params.network,
            params.ppo,
            self.initial.actions.space,
            self.initial.normalisation,
            precision="float32",
        )


def read_setting(data: Path) -> Setting:
    """Reads the parameters of the project, and the initial agent and the track from its data."""
    params = read_params()
    table = action_table(params.actions.ticks_per_action)
    initial = load_artifact(data / "agent_init", "agent_init", observation=params.observation, actions=table)
    track = track_path(data / "races", read_meta(data / "races")["main_track"])
    settings = RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, params.rewards, params.train, 1
    )
    return Setting(params, initial, Races(settings, [load_track(track)]).make_cars)


def train(setting: Setting, seed: int, budget: Budget) -> list[dict[str, Any]]:
    """Trains from the clone with one seed and returns a row for each greedy check, that of the clone first."""
    spec, block = setting.agent(), new_block(setting.block)
    learner = make_learner(spec, seed)
    learner.load_network(setting.initial.tensors)
    actor = LocalActor(make_actor(spec, seed))
    actor.load(learner.version, learner.network.state_dict())
    cars = setting.make_cars(block.spec.num_cars, at_line=False)
    collector = Collector(0, cars, actor, seed, block.spec)
    races = setting.make_cars(budget.num_races, at_line=True)
    wide = BlockSpec(1, budget.num_races, block.spec.height, block.spec.width, block.spec.num_floats)
    check = GreedyCheck(races, make_actor(spec, seed), wide, lambda: None)
    rows, updates, next_check, update_s, began_s = [], [], 0, 0.0, time.process_time()
    while True:
        if learner.num_env_steps >= next_check:
            result = check.run(learner.network.state_dict(), CHECK_SEED, budget.num_races)
            times = {"update_cpu_s": update_s, "cpu_s": time.process_time() - began_s}
            rows.append(_row(seed, learner.num_env_steps, result, updates) | times)
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            updates, next_check = [], next_check + budget.check_every
            if learner.num_env_steps >= budget.env_steps:
                break
        while learner.num_env_steps < learner.num_allowed_env_steps():
            collector.fill(block, Moment(learner.num_env_steps))
            learner.insert(block, 0, learner.version)
            started_s = time.process_time()
            metrics = learner.update()
            update_s += time.process_time() - started_s
            if metrics is not None:
                updates.append(metrics)
                actor.load(learner.version, learner.network.state_dict())
                break
    collector.close()
    check.close()
    return rows


def _row(seed: int, env_steps: int, result: CheckResult, updates: list[dict[str, float]]) -> dict[str, Any]:
    reported = {name: [update[name] for update in updates if name in update] for name in SHOWN}
    means = {name: round(sum(values) / len(values), 5) for name, values in reported.items() if values}
    return {
        "seed": seed,
        "env_steps": env_steps,
        "finish_rate": result.finish_rate,
        "mean_time_s": result.mean_time_s,
        "mean_progress_m": result.mean_progress_m,
    } | means


def measure_fits(setting: Setting) -> dict[str, dict[str, float]]:
    """Returns by the number of decisions and by the ridge how much of the variance of unseen returns is explained."""
    spec, block, params = setting.agent(), new_block(setting.block), setting.params.ppo
    discount, gae_lambda = params.gamma.at(Moment(0)), params.gae_lambda.at(Moment(0))
    learner = make_learner(spec, 1)
    learner.load_network(setting.initial.tensors)
    network = learner.network
    assert isinstance(network, ActorCritic)
    actor = LocalActor(make_actor(spec, 1))
    actor.load(0, network.state_dict())
    cars = setting.make_cars(block.spec.num_cars, at_line=False)
    collector = Collector(0, cars, actor, 1, block.spec)
    seen, hidden = [], []
    for _ in range(max(FIT_BLOCKS) + TEST_BLOCKS):
        collector.fill(block, Moment(0))
        seen.append(keep_block(block))
        steps = zip(seen[-1].image, seen[-1].floats, strict=True)
        with torch.no_grad():
            hidden.append(torch.stack([network.hidden(network.encode(image), floats) for image, floats in steps]))
    collector.close()
    first = max(FIT_BLOCKS)
    returns, is_known = whole_returns(seen[first:], discount)
    unseen = torch.cat([rows[:-1] for rows in hidden[first:]])[is_known].double()
    found: dict[str, dict[str, float]] = {}
    for count in FIT_BLOCKS:
        segment, features = join_segments(seen[:count]), torch.cat(hidden[:count], dim=1)
        scores = found[f"{segment.action.numel():,}"] = {}
        for ridge in FIT_RIDGES:
            solved = solve_linear_value(
                features, segment.shaped_reward(discount), segment.endings, discount, gae_lambda, ridge
            )
            value = (unseen @ solved.weight + solved.bias).float()
            scores[str(ridge)] = explained_variance(value, returns[is_known])
    return found


def whole_returns(segments: list[Segment], discount: float) -> tuple[Tensor, Tensor]:
    """Returns the discounted rewards [T, N] up to the end of the race, and where [T, N] that end was seen.

    Args:
        segments: blocks of the same cars that follow each other, T decisions together.
        discount: gamma.
    """
    reward = torch.cat([segment.shaped_reward(discount) for segment in segments])
    columns = (torch.cat([getattr(segment, name) for segment in segments]) for name in Endings._fields)
    terminated, truncated, is_reset = columns
    returns, is_known = torch.zeros_like(reward), torch.zeros_like(is_reset)
    carried, is_seen = torch.zeros_like(reward[0]), torch.zeros_like(is_reset[0])
    for t in range(len(reward) - 1, -1, -1):
        is_seen = (is_seen | terminated[t]) & ~truncated[t]  # a race that was cut would have gone on
        carried = reward[t] + discount * torch.where(terminated[t], 0.0, carried)
        returns[t], is_known[t] = carried, is_seen & ~is_reset[t]
    return returns, is_known


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Returns what the clone did, the lowest finish rate after it and when, and the last one."""
    clone, *later = rows
    lowest = min(later, key=lambda row: row["finish_rate"])
    return {
        "seed": clone["seed"],
        "clone": clone["finish_rate"],
        "lowest": lowest["finish_rate"],
        "lowest_at": lowest["env_steps"],
        "last": later[-1]["finish_rate"],
        "last_mean_progress_m": later[-1]["mean_progress_m"],
        "update_cpu_s": later[-1]["update_cpu_s"],
        "cpu_s": later[-1]["cpu_s"],
    }


def fits_table(fits: dict[str, dict[str, float]]) -> str:
    """Returns a table for people."""
    lines = ["decisions   " + "".join(f"{'ridge ' + ridge:>14s}" for ridge in next(iter(fits.values())))]
    lines += [f"{count:>9s}   " + "".join(f"{score:14.2f}" for score in row.values()) for count, row in fits.items()]
    return "\n".join(lines)


def main() -> None:
    """Prints a table with a line for each seed, or one JSON object with every check; progress goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with races and agent_init")
    parser.add_argument("--seeds", default="1,2,3", help="seeds of training, with commas between")
    parser.add_argument("--env-steps", type=int, default=100_000, help="decisions to train for")
    parser.add_argument("--check-every", type=int, default=10_000, help="decisions between greedy races")
    parser.add_argument("--races", type=int, default=36, help="greedy races in each check")
    parser.add_argument("--fits", action="store_true", help="measure solved values on unseen races, train nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    setting = read_setting(arguments.data)
    if arguments.fits:
        fits = measure_fits(setting)
        print(json.dumps({"explained_variance": fits}) if arguments.json else fits_table(fits))
        return
    budget = Budget(arguments.env_steps, arguments.check_every, arguments.races)
    runs = [train(setting, int(seed), budget) for seed in arguments.seeds.split(",")]
    if arguments.json:
        print(json.dumps({"budget": budget._asdict(), "checks": runs}))
        return
    print("seed  clone finishes  lowest  at env step    last  CPU s  of them updating")
    for run in map(summarise, runs):
        print(
            f"{run['seed']:4.0f} {run['clone']:14.0%} {run['lowest']:8.0%} {run['lowest_at']:12,.0f} {run['last']:7.0%}"
            f" {run['cpu_s']:6.0f} {run['update_cpu_s']:17.0f}"
        )


if __name__ == "__main__":
    main()
