"""Golden runs: a few hundred updates of every algorithm, objective and level on small made-up data, serial, in float32.

    python -m tests.golden.runs             # prints the values of all runs as JSON, as this processor computes them
    python -m tests.golden.runs --write     # renews values.json, after a change that is meant to change them
    python -m tests.golden.runs --add       # adds those of this maker's processors, where the code is the same

The numbers are to be those of any processor of the same maker. So the process that computes them tells torch's
libraries to use the instructions that all have (`PORTABLE`), and one thread; that is slower, and changes nothing else.
Between makers MKL still differs: by 1e-7 at first, and visibly after a hundred updates.

The world is made up as well, with everything in it that a wrong row, sign or neglected term would show in: random
images and floats by state, potentials, races of unequal lengths that end or are cut, at any place of a block, starts
that are shared by groups, two collectors, and weights that are a version old.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
VALUES_FILE = Path(__file__).with_name("values.json")
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL",
    "OPENBLAS_CORETYPE": "Nehalem",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F",
    "NUMBA_CPU_NAME": "nehalem",
    "NUMBA_CPU_FEATURES": "",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Has torch, oneDNN, MKL, NumPy, OpenBLAS, libm and numba compute alike on all processors; read when they load."""
NUM_STATES = 24
NUM_UPDATES = 200
NUM_EARLY = 20
"""Updates after which the weights are noted as well."""
NUM_FIRST = {"iqn": 1, "ppo": 2, "impala": 2, "grpo": 1, "dpo": 1, "pql": 3}
"""Updates until every metric has been there once, for a test that takes seconds."""
NUM_CARS = 8
NUM_STEPS = 16
GROUP = 4
PIXELS = 34


def read_values() -> dict[str, dict[str, Any]]:
    """Returns what the runs gave when their values were written, by the maker of the processor."""
    return json.loads(VALUES_FILE.read_text(encoding="utf-8"))


def maker() -> str:
    """Returns who made this processor; empty where Linux does not say."""
    processors = Path("/proc/cpuinfo")
    told = processors.read_text(encoding="utf-8") if processors.exists() else ""
    found = re.search(r"^vendor_id\s*: (\w+)$", told, re.MULTILINE)
    return found[1] if found else ""


def compute(*arguments: str) -> dict[str, Any]:
    """Returns the values of some runs, or of all, computed by this module in a process of their own."""
    command = [sys.executable, "-m", "tests.golden.runs", *arguments]
    answer = subprocess.run(
        command, cwd=ROOT, env=os.environ | PORTABLE, capture_output=True, encoding="utf-8", check=False
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def digest(tensors: Mapping[str, Any]) -> str:
    """Returns a hash of what tensors hold; their names and order may change."""
    each = (
        hashlib.sha256(np.ascontiguousarray(one.detach().numpy()).tobytes()).hexdigest() for one in tensors.values()
    )
    return hashlib.sha256("".join(sorted(each)).encode()).hexdigest()[:16]


class World:
    """Cars that wander through states whose images, floats, potentials and pay are random and fixed.

    Races last 1 to 20 decisions, end or are cut, and groups of `GROUP` cars share their starts, as an environment deals
    them. Floats are the 184 of a race.
    """

    def __init__(self, spec: Any, seed: int, races_per_start: int) -> None:
        from rulka.envs.starts import EqualStarts

        rng = np.random.default_rng(100)  # the same world for all collectors
        self._spec, self._rng = spec, np.random.default_rng(seed)
        self._image = rng.integers(0, 256, (NUM_STATES, *spec.image_shape), dtype=np.uint8)
        self._floats = rng.normal(0, 1, (NUM_STATES, spec.num_floats)).astype(np.float32)
        self._potential = rng.normal(0, 1, NUM_STATES).astype(np.float32)
        self._reward = rng.normal(0, 1, (NUM_STATES, 12)).astype(np.float32)
        self._state = np.zeros(spec.num_cars, np.int64)
        self._is_over = np.zeros(spec.num_cars, np.bool_)
        self._number = 0
        self._time = np.zeros(spec.num_cars, np.int64)
        self._starts = EqualStarts(spec.num_cars, races_per_start, 1)
        self._begin(np.ones(spec.num_cars, np.bool_))

    def _begin(self, which: np.ndarray) -> None:
        chance = self._starts.draw(which, [self._rng] * len(which))[which, 0]
        self._state[which], self._time[which] = (chance * NUM_STATES).astype(np.int64), 0

    def _show(self, block: Any, row: int) -> None:
        block.image[row], block.potential[row] = self._image[self._state], self._potential[self._state]
        block.floats[row] = self._floats[self._state]
        block.floats[row, :, 0] = self._time

    def drive(self, actor: Any) -> Any:
        """Returns a block that the actor drove."""
        import torch

        from rulka.buffers.experience import new_block

        block = new_block(self._spec)
        block.number[...] = self._number = self._number + 1
        for t in range(self._spec.num_steps):
            self._show(block, t)
            decision = actor.act(torch.from_numpy(block.image[t]), torch.from_numpy(block.floats[t]), explore=True)
            block.action[t], block.is_greedy[t], block.log_prob[t] = (
                decision.action,
                decision.is_greedy,
                decision.log_prob,
            )
            block.is_reset[t] = self._is_over
            self._begin(self._is_over)
            on = ~block.is_reset[t]
            first = block.action[t] if block.action[t].ndim == 1 else block.action[t][:, 0]
            number = first.astype(np.int64) % 12
            block.reward[t, on] = self._reward[self._state, number][on]
            self._state[on] = ((5 * self._state + number + self._rng.integers(0, 2, len(on))) % NUM_STATES)[on]
            self._time[on] += 1
            chance = self._rng.random(len(on))
            block.terminated[t] = on & (chance < 0.1)
            block.truncated[t] = on & ~block.terminated[t] & ((chance < 0.15) | (self._time >= 20))
            self._is_over = block.terminated[t] | block.truncated[t]
        self._show(block, self._spec.num_steps)
        return block


def learn(
    algorithm: str, changes: Mapping[str, Any], network: Mapping[str, Any], num_updates: int, preset: str = ""
) -> dict[str, Any]:
    """Trains an algorithm of `params.yaml` with small networks and batches, and returns what became of it.

    It ends after `num_updates`; how far it is on its schedules is counted out of `NUM_UPDATES`.
    """
    from rulka.agents.algorithms import make_actor, make_learner
    from rulka.agents.shared.spec import AgentSpec
    from rulka.buffers.experience import BlockSpec
    from rulka.contracts.actions import Choices
    from rulka.contracts.observation import NUM_FLOATS, reference_normalisation
    from rulka.contracts.schedule import Moment
    from rulka.params import Params, read_params
    from rulka.params.presets import merge_overlay
    from rulka.params.reader import read_sections

    data = read_params(ROOT / "params.yaml").model_dump()
    if preset:
        data = merge_overlay(data, read_sections(ROOT / "presets" / f"{preset}.yaml"), preset)
    data["observation"] |= {"height": PIXELS, "width": PIXELS}
    data["network"] |= {"float_hidden": 16, "dense_hidden": 32}
    data["network"]["iqn"] |= {"tau_embedding": 8, **network}
    data["train"] |= {"algorithm": algorithm, "compared": [], "start_from_earlier": 0.0}
    data["transfer"]["iqn"] |= dict.fromkeys(("encoder", "float_head"), "fresh")
    data[algorithm] |= changes
    params = Params.model_validate(data)
    settings = params.algorithms[algorithm]
    spec = AgentSpec(
        algorithm,
        params.observation,
        params.encoder,
        params.network,
        settings,
        Choices(12),
        reference_normalisation(),
        precision="float32",
    )
    blocks = BlockSpec(NUM_STEPS, NUM_CARS, PIXELS, PIXELS, NUM_FLOATS)
    worlds = [World(blocks, seed, settings.races_per_start) for seed in range(2)]
    actors = [make_actor(spec, seed) for seed in range(2)]
    learner = make_learner(spec, seed=0)
    learner.load_network(learner.network.state_dict())
    if changes.get("demonstration_share"):
        learner.insert_demonstrations([World(blocks, 7, 1).drive(actors[0])])
    weights = [{name: each.clone() for name, each in learner.network.state_dict().items()}]
    metrics: dict[str, list[float]] = {}
    early, turn = "", 0
    while (version := learner.version) < num_updates:
        learner.set_budget_share(version / NUM_UPDATES)
        if learner.num_env_steps < learner.num_allowed_env_steps():
            lag = turn % 2 if learner.allowed_lag is None else min(turn % 2, learner.allowed_lag)
            used, actor = max(0, len(weights) - 1 - lag), actors[turn % 2]
            actor.load_network(weights[used])
            actor.set_moment(Moment(learner.num_env_steps, version / NUM_UPDATES))
            learner.insert(worlds[turn % 2].drive(actor), turn % 2, used)
            turn += 1
        for name, value in (learner.update() or {}).items():
            metrics.setdefault(name, []).append(value)
        if learner.version > version:
            weights.append({name: each.clone() for name, each in learner.network.state_dict().items()})
        if learner.version == NUM_EARLY:
            early = digest(learner.network.state_dict())
    return {
        "env_steps": learner.num_env_steps,
        "early": early,
        "weights": digest(learner.network.state_dict()),
        "racer": digest(learner.racer.state_dict()),
        **{name: summary(values) for name, values in sorted(metrics.items())},
    }


def summary(values: Iterable[float]) -> dict[str, Any]:
    """Returns first, middle and last of a series of numbers, for people, and a hash of all."""
    series = [float(value) for value in values]
    shown = [series[0], series[len(series) // 2], series[-1]]
    return {
        "number": len(series),
        "shown": [float(f"{value:.6g}") for value in shown],
        "all": hashlib.sha256(np.asarray(series).tobytes()).hexdigest()[:16],
    }


def pretrain_with(objective: Mapping[str, Any]) -> dict[str, Any]:
    """Trains an encoder with one objective of Level 0, by the stage itself."""
    from rulka.contracts.actions import ActionParams
    from rulka.contracts.artifacts import load_artifact
    from rulka.params import reference_params
    from rulka.pretraining.params import PretrainParams
    from tasks.pretrain import pretrain
    from tests.conftest import sees

    sections = {"observation": sees(64, 64), "actions": ActionParams(ticks_per_action=5)}
    sections["pretrain"] = PretrainParams.model_validate(FIT | {"objective": objective})
    params = reference_params().model_copy(update=sections)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {"out_dir": folder / "encoder", "runs_dir": folder / "runs"}
        pretrain(params, frames_dir=write_frames(folder), **paths)
        return level_values(folder / "encoder", load_artifact(folder / "encoder", "encoder").tensors)


def clone_with(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Clones the policy of made-up races, by the stage itself, from an encoder with random weights."""
    import torch

    from models.encoders.build import build_encoder
    from rulka.contracts.actions import ActionParams, action_table
    from rulka.contracts.artifacts import Artifact, load_artifact, network_input_contract, save_artifact
    from rulka.contracts.observation import reference_normalisation
    from rulka.params import reference_params
    from rulka.pretraining.params import CloneParams
    from tasks.clone import Folders, clone
    from tests.conftest import sees

    reference, observation = reference_params(), sees(64, 64)
    torch.manual_seed(5)
    encoder = build_encoder(reference.encoder, 64, 64).state_dict()
    artifact = Artifact(
        "encoder",
        {f"encoder.{name}": tensor for name, tensor in encoder.items()},
        {"encoder": reference.encoder.model_dump()},
        network_input_contract(observation),
        action_table(5),
        reference_normalisation(),
    )
    network = reference.network.model_copy(update={"float_hidden": 16, "dense_hidden": 64})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_artifact(folder / "encoder", artifact)
        folders = Folders(
            races=folder / "races",
            frames=write_frames(folder),
            encoder=folder / "encoder",
            out=folder / "policy",
            runs=folder / "runs",
        )
        sections = {"observation": observation, "actions": ActionParams(ticks_per_action=5), "network": network}
        sections["clone"] = CloneParams.model_validate(clone_section() | FIT | CLONE | changes)
        clone(reference.model_copy(update=sections), folders=folders)
        return level_values(folder / "policy", load_artifact(folder / "policy", "policy").tensors)


def clone_section() -> dict[str, Any]:
    """Returns the section of `params.yaml`, of which the runs change what they name."""
    from rulka.params import read_params

    return read_params(ROOT / "params.yaml").clone.model_dump()


def write_frames(folder: Path) -> Path:
    """Writes six synthetic races of 64 x 64 pixels, two of them held out."""
    from tests.conftest import write_synthetic_frames

    write_synthetic_frames(folder / "frames")
    return folder / "frames"


def level_values(out: Path, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what became of a level: a hash of its weights, and the losses that it wrote down."""
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    losses = {name: [epoch[name] for epoch in metrics["epochs"]] for name in ("train_loss", "validation_loss")}
    return {"weights": digest(tensors), **{name: summary(series) for name, series in losses.items()}}


def operations() -> dict[str, Any]:
    """Returns what single operations make of random numbers: tells where the processors of two makers differ."""
    import torch
    from torch.nn import functional

    rng = np.random.default_rng(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(0, 1, shape).astype(np.float32))

    rows, weights, image = draw(512, 1024), draw(1024, 512), draw(128, 1, 64, 64)
    first, second = draw(16, 1, 4, 4).requires_grad_(), draw(32, 16, 4, 4).requires_grad_()
    seen = functional.conv2d(torch.relu(functional.conv2d(image, first, stride=2)), second, stride=2)
    seen.square().sum().backward()
    weight = torch.nn.Parameter(rows[0].clone())
    optimiser = torch.optim.Adam([weight])
    for gradient in rows[1:4]:
        weight.grad = gradient.clone()
        optimiser.step()
    found = {
        "product of matrices": rows @ weights,
        "product of a row": rows[:1] @ weights[:, :12],
        "convolutions": seen,
        "gradient of the first convolution": first.grad,
        "gradient of the second convolution": second.grad,
        "exp": rows.exp(),
        "tanh": rows.tanh(),
        "cos": rows.cos(),
        "log_softmax": rows.log_softmax(1),
        "sum": rows.sum(),
        "mean of columns": rows.mean(0),
        "norm": rows.norm(),
        "layer norm": functional.layer_norm(rows, (1024,)),
        "Adam": weight,
        "solving": torch.linalg.solve(weights[:184, :184].double(), weights[:184, :1].double()),
        "product in NumPy": torch.from_numpy(rows.numpy() @ weights.numpy()),
        "exp in NumPy": torch.from_numpy(np.exp(rows.numpy())),
    }
    return {name: digest({name: tensor}) for name, tensor in found.items() if tensor is not None}


FIT = {
    "epochs": 8,
    "patience": None,
    "checkpoint_s": 60.0,
    "batch_size": 32,
    "learning_rate": 0.003,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "precision": "float32",
    "seed": 1,
}
CLONE = {"maps": "all", "race_every": 0, "dagger": None, "previous_action_dropout": 0.5, "float_noise": 0.02}
VIEWS = {"projection": 16, "crop_pixels": 8.0, "brightness": 0.2, "blur_pixels": 1.0, "noise": 0.1}
POLICY = {"steps_per_update": 256, "batch_size": 64}
PPO = {
    "action_repeat": 2,
    "gamma": 0.970225,
    "gae_lambda": 0.96,
    "learning_rate": {"interpolation": "linear", "shares": [[0.0, 0.0001], [1.0, 0.00001]]},
    "entropy_weight": {"interpolation": "linear", "shares": [[0.0, 0.003], [1.0, 0.0]]},
}
RELEASED = {"interpolation": "staircase", "shares": [[0.0, 1.0], [0.1, 0.0]]}
IQN = {"start_steps": 512, "buffer_steps": 2048, "batch_size": 16, "samples_per_insert": 1.0, "warmup_steps": 0}
BY_STEPS = {
    "learning_rate": {
        "interpolation": "exponential",
        "points": [[0, 0.001], [3_000_000, 0.00005], [12_000_000, 0.00005], [15_000_000, 0.00001]],
    },
    "gamma": {"interpolation": "linear", "points": [[0, 0.999], [1_500_000, 0.999], [2_500_000, 1.0]]},
    "epsilon": {
        "interpolation": "exponential",
        "points": [[0, 1.0], [50_000, 1.0], [300_000, 0.1], [3_000_000, 0.03]],
    },
    "boltzmann_epsilon": {"interpolation": "linear", "points": [[0, 0.15], [3_000_000, 0.03]]},
}
"""The reference's schedules, over its 15 million decisions."""
LEARNS_ALL = {"rate_of": {"encoder": 1.0, "float_head": 1.0, "trunk": 1.0, "heads": 1.0}}

PRIORITISED = {"alpha": 0.6, "beta": 0.4, "epsilon": 0.01, "min_actions_left": 3}
AGENTS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "iqn": ("iqn", IQN | {"demonstration_share": 0.25, "guide_floor": RELEASED}, {}, ""),
    "iqn, as specified": ("iqn", IQN | BY_STEPS | {"prioritised": None, "boltzmann_softmax": False}, {}, "reference"),
    "iqn, prioritised": (
        "iqn",
        IQN
        | LEARNS_ALL
        | {"demonstration_share": 0.0, "prioritised": PRIORITISED, "held_out_share": 0.2, "guide_floor": RELEASED},
        {"noisy_sigma": 0.5, "layer_norm": True},
        "",
    ),
    "ppo": ("ppo", POLICY | PPO | {"value_warmup_steps": 512, "initial_kl_weight": 0.1}, {}, ""),
    "impala": ("impala", POLICY | {"value_warmup_steps": 512, "initial_kl_weight": 0.1}, {}, ""),
    "grpo": ("grpo", POLICY | {"group_size": GROUP, "initial_kl_weight": 0.1}, {}, ""),
    "dpo": (
        "dpo",
        POLICY | {"pairs": {"kind": "online", "group_size": GROUP, "gamma": 0.99, "cut_worth": -1.0, "min_gap": 0.0}},
        {},
        "",
    ),
    "pql": ("pql", {"start_steps": 512, "buffer_steps": 2048, "batch_size": 32, "critic_warmup_updates": 20}, {}, ""),
}
"""Algorithm, what is changed of its section, and of `network.iqn`, and the preset that comes first."""
LEVELS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "operations": operations,
    "autoencoder": partial(pretrain_with, {"kind": "autoencoder"}),
    "vae": partial(pretrain_with, {"kind": "vae", "num_latent": 8, "kl_weight": 0.001}),
    "simclr": partial(pretrain_with, {"kind": "simclr", "temperature": 0.5, **VIEWS}),
    "vicreg": partial(
        pretrain_with, {"kind": "vicreg", "invariance": 25.0, "variance": 25.0, "covariance": 1.0, **VIEWS}
    ),
    "clone": partial(clone_with, {}),
    "clone, in the shape of IQN": partial(clone_with, {"shape": "iqn", "labels": "hard", "offsets": [0, 2]}),
}


def main(arguments: Sequence[str]) -> None:
    """Computes runs by their names, or all, in this process; prints or writes them."""
    if "--write" in arguments or "--add" in arguments:
        others = read_values() if "--add" in arguments else {}
        VALUES_FILE.write_text(json.dumps(others | {maker(): compute()}, indent=1) + "\n", encoding="utf-8")
        return
    import torch

    torch.set_num_threads(1)
    names = [name for name in arguments if not name.startswith("-")] or [*AGENTS, *LEVELS]
    found = {}
    with redirect_stdout(sys.stderr):  # stages tell people what came of them
        for name in names:
            if name in LEVELS:
                found[name] = LEVELS[name]()
            else:
                algorithm, changes, network, preset = AGENTS[name]
                num_updates = NUM_FIRST[name] if "--first" in arguments else NUM_UPDATES
                found[name] = learn(algorithm, changes, network, num_updates, preset)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
