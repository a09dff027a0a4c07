"""Learning to drive from scratch: no recordings, no cloning, random weights, the simplest track."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_run import run_spec

from rulka.agents.params import ALGORITHMS
from rulka.agents.shared.params import AlgorithmParams, OffPolicyParams, PolicyParams
from rulka.params import Params, read_params
from rulka.runtime.connect import connect
from rulka.runtime.greedy_check import CheckResult
from rulka.runtime.stop import StopSignals
from rulka.tracks.generate import generate_track

ROOT = Path(__file__).parents[2]
LESSONS: dict[str, tuple[int, dict[str, Any]]] = {
    "ppo": (
        60_000,
        {
            "steps_per_update": 1024,
            "batch_size": 256,
            "value_warmup_steps": 0,
            "gamma": 0.970225,
            "gae_lambda": 0.96,
            "learning_rate": {"interpolation": "linear", "shares": [[0, 0.0003], [1, 0.00002]]},
            "entropy_weight": {"interpolation": "linear", "shares": [[0, 0.003], [1, 0.0]]},
        },
    ),
    "impala": (
        100_000,
        {
            "steps_per_update": 512,
            "batch_size": 256,
            "value_warmup_steps": 0,
            "learning_rate": {"interpolation": "linear", "shares": [[0, 0.0005], [1, 0.00003]]},
        },
    ),
    "grpo": (100_000, {"steps_per_update": 1024, "batch_size": 256, "initial_kl_weight": 0.0, "learning_rate": 0.0005}),
    "dpo": (150_000, {"steps_per_update": 1024, "batch_size": 256, "learning_rate": 0.0005}),
    "iqn": (
        40_000,
        {
            "warmup_steps": 0,
            "guide_floor": 0.0,
            "epsilon": {"interpolation": "linear", "shares": [[0, 1.0], [0.4, 0.1], [1, 0.02]]},
            "demonstration_share": 0.0,
            "start_steps": 2048,
            "buffer_steps": 50_000,
            "batch_size": 128,
            "samples_per_insert": 4.0,
        },
    ),
    "pql": (
        40_000,
        {
            "critic_warmup_updates": 0,
            "rate_of": {"encoder": 1.0, "float_head": 1.0, "trunk": 1.0, "heads": 1.0},
            "start_steps": 2048,
            "buffer_steps": 50_000,
            "batch_size": 128,
            "policy_learning_rate": 0.0003,
        },
    ),
}
"""Environment steps of one budget, and what is changed of its section. PPO needs one or two budgets and IQN up to five,
by the seed and the last bits of a processor's sums."""
ANY_LESSON: dict[type[AlgorithmParams], tuple[int, dict[str, Any]]] = {
    PolicyParams: (100_000, {"steps_per_update": 1024, "batch_size": 256, "learning_rate": 0.0005}),
    OffPolicyParams: (
        40_000,
        {
            "start_steps": 2048,
            "buffer_steps": 50_000,
            "batch_size": 128,
            "rate_of": {"encoder": 1.0, "float_head": 1.0, "trunk": 1.0, "heads": 1.0},
        },
    ),
}
"""The lesson of an algorithm that is not among these, by the base class of its section."""
MOST_BUDGETS = 10
FROM_PIXELS = ("ppo",)
"""This sees images too; the others, and two learners, floats alone, which takes half the time and less. IQN learns from
pixels in benchmarks/qrdqn."""


def lesson_of(algorithm: str) -> tuple[int, dict[str, Any]]:
    section = ALGORITHMS[algorithm]
    return LESSONS.get(algorithm) or next(each for base, each in ANY_LESSON.items() if issubclass(section, base))


def has_learned(result: CheckResult) -> bool:
    return result.finish_rate == 1.0 and result.mean_time_s is not None and result.mean_time_s < 5.5


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("algorithm", "learners"), [*((name, 1) for name in ALGORITHMS), ("ppo", 2)])
def test_a_network_that_knows_nothing_learns_to_finish(tmp_path: Path, algorithm: str, learners: int) -> None:
    """Greedy races from starts that were not trained on: none finishes with the first weights, all with the last.

    The 150 m then take about 4.8 s. Who has not learned it by then goes on with as much again.
    """
    params = read_params(ROOT / "params.yaml").model_dump()
    generate_track(**params["track"] | {"length_m": 150.0, "difficulty": "easy"}).save(tmp_path / "track.npz")
    params["network"] |= {"float_hidden": 64, "dense_hidden": 256}
    params["network"]["iqn"] |= {"tau_embedding": 32, "guided": False}
    params["race_end"]["max_race_s"] = 15.0
    if algorithm not in FROM_PIXELS or learners > 1:
        params["observation"]["withheld"] = ["image"]
    params["train"] |= {
        "algorithm": algorithm,
        "compared": [],
        "learners": learners,
        "precision": "float32",
        "num_collectors": 0,
        "cars_per_collector": 16 // learners,
        "block_steps": 32,
        "max_minutes": None,
        "num_checks": 8,
        "check_races": 8,
        "check_candidates": 2,
        "final_check_races": 16,
        "start_anywhere": 0.3,
        "start_from_earlier": 0.0,
        "experience": "rebuilt",
    }
    env_steps, changes = lesson_of(algorithm)
    params[algorithm] |= changes
    for num_budgets in range(1, MOST_BUDGETS + 1):
        params["train"]["max_env_steps"] = num_budgets * env_steps
        spec = run_spec(Params.model_validate(params), tmp_path / "track.npz", tmp_path / "run")
        with StopSignals() as stop, connect(spec, stop) as loop:
            if num_budgets == 1:
                first = loop._check.run(loop._learner.network.state_dict(), seed=12345, num_races=16)
                assert first.finish_rate == 0.0, "or there was nothing to learn"
            last = loop.run().best.result
        if has_learned(last):
            break
    assert has_learned(last), last
