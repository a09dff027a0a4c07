"""Train and evaluate the same agents in any Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rulka.cli.options import AsJson, DeviceName, report, stdout_to_stderr
from rulka.machine.errors import UserError
from rulka.stages.folders import import_from_here
from rulka.stages.outputs import check_folder, filled_folder

if TYPE_CHECKING:
    from rulka.contracts.artifacts import Artifact

MOST_EPISODES = 10_000
"""Maximum of `train.final_check_races`."""
Settings = Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")]


def train(
    environment: str,
    /,
    algorithm: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Settings = (),
    out: Path | None = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Train an agent in any Gymnasium environment, and evaluate it greedily; see docs/any-environment.md.

    Example: `rulka env train CartPole-v1 --algorithm ppo --set ppo.clip=0.1 network.dense_hidden=128`

    Args:
        environment: its ID, such as CartPole-v1, or MODULE:ID for one that a module registers.
        algorithm: algorithm to train with; if omitted, that of params.yaml.
        steps: environment steps to train for; if omitted, that of presets/environments.
        seed: of everything; if omitted, that of params.yaml.
        settings: parameters to override, such as ppo.clip=0.1 network.dense_hidden=128.
        out: folder to copy the agent into; it also stays in its run's folder, in runs/environments.
        device: where networks run; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.contracts.artifacts import write_artifact
    from rulka.envs.episodes import read_facts
    from rulka.machine.device import use_device
    from rulka.params.presets import environment_params
    from rulka.runtime.live import METRICS_FILE
    from rulka.runtime.metrics_log import read_metrics
    from rulka.training.gymnasium_environment import train_in_environment

    import_from_here()
    if out is not None:
        check_folder(out)
    facts = read_facts(environment)
    options = {"algorithm": algorithm, "max_env_steps": steps, "seed": seed}
    given = {"train": {name: value for name, value in options.items() if value is not None}}
    params = environment_params(facts.environment, given, *map(_overlay, settings))
    with stdout_to_stderr(as_json):
        folder, agent = train_in_environment(facts, params, device=use_device(device))
    if out is not None:
        with filled_folder(out) as beside:
            write_artifact(beside, agent)
    last = read_metrics(folder / METRICS_FILE)[-1]
    measured = {name: last[name] for name in ("minutes", "cpu_minutes")}
    _report(out or folder, agent, agent.provenance["training"]["returns"], measured, as_json=as_json)


def evaluate(
    folder: Path,
    /,
    episodes: int | None = None,
    seed: int = 0,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate an agent of `rulka env train` greedily in its environment.

    Example: `rulka env evaluate cart --episodes 300 --seed 7`

    Args:
        folder: folder of its run, or the folder given as --out.
        episodes: number of episodes; if omitted, as many as after its training.
        seed: of the episodes' initial states.
        device: where its network runs; if omitted, RULKA_DEVICE, else a working GPU, else the CPU.
        as_json: print one JSON object.
    """
    from rulka.machine.device import use_device
    from rulka.training.gymnasium_environment import load_environment_agent, race_in_environment

    if (episodes is not None and not 1 <= episodes <= MOST_EPISODES) or not 0 <= seed < 2**32:
        raise UserError(f"--episodes is a whole number from 1 to {MOST_EPISODES}, --seed one from 0 to 4294967295")
    import_from_here()
    agent = load_environment_agent(folder)
    num_episodes = episodes or len(agent.provenance["training"]["returns"])
    returns = race_in_environment(agent, num_episodes, seed, use_device(device))
    _report(folder, agent, returns, {}, as_json=as_json)


def _overlay(setting: str) -> dict[str, Any]:
    """Parses KEY=VALUE into a nested section that holds only that key."""
    from rulka.params.reader import parsed

    key, sign, text = setting.partition("=")
    names = key.split(".")
    if not sign or not all(names):
        message = f"{setting!r} sets nothing"
        raise UserError(message, hint="Write KEY=VALUE, such as ppo.clip=0.1; keys are those of params.yaml.")
    try:
        value = parsed(text)
    except ValueError as error:
        raise UserError(f"the value of {key} is not valid YAML: {text!r}") from error
    return reduce(lambda inner, name: {name: inner}, reversed(names), value)


def _report(
    folder: Path, agent: Artifact, returns: Sequence[float], measured: Mapping[str, float], *, as_json: bool
) -> None:
    """Prints an agent's returns and the measurements of its training."""
    import numpy as np

    values, training = np.asarray(returns), agent.provenance["training"]
    found = {
        "environment": agent.environment,
        "algorithm": agent.config["algorithm"],
        "seed": agent.provenance["parameters"]["train"]["seed"],
        "episodes": len(values),
        "mean_return": float(values.mean()),
        "std_return": float(values.std()),
        **{name: training[name] for name in ("env_steps", "weights_of_env_steps")},
        **measured,
        "folder": folder.as_posix(),
    }
    lines = [f"{name:22}{f'{value:.2f}' if isinstance(value, float) else value}" for name, value in found.items()]
    report(found, lambda: "\n".join(lines), as_json)
