"""A run of real agents and cars, without what the pipeline puts around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rulka.agents.shared.networks import decision_table
from rulka.contracts.observation import reference_normalisation
from rulka.params import Params, read_params
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.live import METRICS_FILE
from rulka.runtime.metrics import MEASURED
from rulka.runtime.metrics_log import read_metrics
from rulka.runtime.specs import RunSpec
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.track import load_track
from rulka.training import environment as run
from rulka.training.race_environment import RaceEnvironment

ON_POLICY = {"steps_per_update": 60, "batch_size": 24, "epochs": 2}
FROM_REPLAY = {"start_steps": 96, "buffer_steps": 288, "batch_size": 16}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": ON_POLICY | {"steps_per_update": 72, "value_warmup_steps": 144},
    "impala": {"steps_per_update": 48, "batch_size": 24, "value_warmup_steps": 144},
    "grpo": ON_POLICY | {"group_size": 3},
    "dpo": ON_POLICY | {"pairs": {"kind": "online", "group_size": 3, "gamma": 1.0, "cut_worth": -4.0, "min_gap": 0.0}},
    "iqn": FROM_REPLAY | {"samples_per_insert": 1.0, "warmup_steps": 0, "demonstration_share": 0.0},
    "pql": FROM_REPLAY
    | {
        "steps_per_critic_update": 9,
        "critic_updates_per_version": 3,
        "critic_warmup_updates": 8,
        "max_steps_ahead": 20,
    },
}
"""Sections of algorithms; one that is not named has what of all this it knows."""


def run_spec(params: Params, track: Path, folder: Path) -> RunSpec:
    """Returns a run of `params.train.algorithm` from scratch."""
    train = params.train
    race = RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, params.rewards, train, 1
    ).decided_by(decision_table(params.actions, params.network))
    races = RaceEnvironment(
        race.with_equal_starts(params.algorithms[train.algorithm].races_per_start), [load_track(track)]
    )
    spec = run.agent_spec(params, train.algorithm, races, reference_normalisation())
    return run.run_spec(races, spec, train, folder)


def small_params(algorithm: str, extras: Mapping[str, Any], **train: Any) -> Params:
    """Returns parameters of a run of some 20 updates; `extras` are of the algorithm's section, `network` or `train`."""
    params = read_params().model_dump()
    params["observation"] |= {"height": 36, "width": 36}
    params["network"] |= {"float_hidden": 16, "dense_hidden": 32}
    params["network"]["iqn"] |= {"tau_embedding": 8} | extras.get("network", {})
    params["race_end"]["max_race_s"] = 1.0
    params["train"] |= {
        "algorithm": algorithm,
        "compared": [],
        "precision": "float32",
        "num_collectors": 0,
        "cars_per_collector": 3,
        "block_steps": 8,
        "max_env_steps": 720,
        "max_minutes": None,  # schedules must not go by the clock
        "checkpoint_s": 1e-9,
        "num_checks": 3,
        "check_races": 2,
        "check_candidates": 2,
        "final_check_races": 2,
    }
    if algorithm in ("grpo", "dpo"):  # the races of a group begin alike
        params["train"]["start_from_earlier"] = 0.0
    params["train"] |= extras.get("train", {}) | train
    known = ON_POLICY | {"value_warmup_steps": 144, "start_steps": 96}
    params[algorithm] |= {name: value for name, value in known.items() if name in params[algorithm]}
    for name, section in SMALL.items():
        params[name] |= section
    params[algorithm] |= {name: value for name, value in extras.items() if name not in ("network", "train")}
    return Params.model_validate(params)


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """Compares nested dictionaries and sequences of tensors, arrays and numbers, to the bit."""
    assert type(one) is type(other), where
    if isinstance(one, Mapping):
        assert list(one) == list(other), where
        for name in one:
            assert_equal(one[name], other[name], f"{where}/{name}")
    elif isinstance(one, Sequence) and not isinstance(one, str):
        assert len(one) == len(other), where
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{where}/{number}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, where)
    else:
        assert one == other, where


def facts(loop: LearnerLoop) -> dict[str, Any]:
    """Returns all that is to be the same again."""
    learner = loop._learner
    state = replace(loop.state, seconds=0.0, cpu_seconds=0.0, num_starts=1)
    best = [(each.env_steps, each.result, each.tensors) for each in loop.best._candidates]
    experience, lines = learner.experience(), read_metrics(loop.spec.folder / METRICS_FILE)
    return {
        "state": vars(state),
        "learner": learner.state_dict(),
        "experience": (experience.state, experience.pieces),
        "best": [[*values] for values in best],
        "quantiser": loop._quantiser.state_dict(),
        "races": loop.race_counts.values(),
        "record": loop.records.time_ms,
        "log": [{name: value for name, value in line.items() if name not in MEASURED} for line in lines],
    }
