"""What an agent's values know: `python -m benchmarks.values AGENT [--other FOLDER ...] [--json]`.

True values: in states of one greedy race each action is taken by a car of its own, and the agent goes on greedily to
the end of its race. Returns are those of training: discounted, shaped, with the rewards of params.yaml.

    correlation   of predicted and true advantages (values less their mean in a state)
    regret        return that a choice loses to the best action, mean over states: the agent's, a random one, and
                  that of each `--other` agent or clone
    level         mean predicted and true value of the agent's choice; only of action values, not of a policy

A policy's predictions are the logarithms of its probabilities. Dimensions: S states, A actions.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.agents import Greedy, spec_of
from benchmarks.harness import show
from rulka.agents.algorithms import make_actor
from rulka.agents.load import load_policy
from rulka.contracts.artifacts import load_artifact
from rulka.contracts.observation import num_floats
from rulka.contracts.schedule import Moment
from rulka.datasets.formats.races import load_main_track
from rulka.envs.batch import RaceBatch
from rulka.evaluation.race import Policy
from rulka.machine.errors import UserError
from rulka.params import Params, read_params
from rulka.simulator.race_settings import RaceSettings
from rulka.stages.folders import RACES
from rulka.tracks.find import find_track
from rulka.tracks.track import Track

Array = NDArray[np.floating]
AT_THE_END = Moment(10**9, share=1.0)


class GreedyRaces:
    """N races of an agent that drives greedily.

    Attributes:
        cars: the races.
        image, floats, potential: what the cars see, [N, L, H, W], [N, F], and [N] shaping potentials.
    """

    def __init__(self, track: Track, settings: RaceSettings, num_cars: int, policy: Policy) -> None:
        """Starts at the line, at the same place for all."""
        self.cars, self._policy = RaceBatch(track, settings, num_cars), policy
        self.image = np.zeros((num_cars, *settings.image_shape), np.uint8)
        self.floats = np.zeros((num_cars, num_floats(settings.table.actions_per_decision)), np.float32)
        self.potential = np.zeros(num_cars, np.float32)
        self.cars.reset_into(self.image, self.floats, self.potential, seed=0)

    def load(self, states: list[dict[str, Any]], times: int) -> None:
        """Puts `times` cars into each of the saved states of one car."""
        joined: dict[str, Any] = {"chance": tuple(state["chance"][0] for state in states for _ in range(times))}
        for name in states[0].keys() - joined.keys():
            joined[name] = np.repeat(np.concatenate([state[name] for state in states]), times, axis=0)
        self.cars.load_state_dict(joined)
        self.cars.observe(self.image, self.floats, self.potential)

    def choose(self) -> NDArray[np.int64]:
        """Returns the agent's actions [N]."""
        return self._policy(self.image, self.floats)

    def returns(self, first: NDArray[np.int64], gamma: float) -> Array:
        """Takes the given first actions [N], then greedy ones to the end of each race; returns discounted returns."""
        total, weight, potential = np.zeros(len(first)), np.ones(len(first)), self.potential.astype(np.float64)
        actions = first
        while weight.any():
            result = self.cars.step_into(actions, self.image, self.floats, self.potential)
            following = np.where(result.terminated, 0.0, self.potential)
            total += weight * (result.reward + gamma * following - potential)
            weight *= np.where(result.terminated | result.truncated, 0.0, gamma)
            potential, actions = self.potential.astype(np.float64), self.choose()
        return total


def measure(agent: Path, others: list[Path], track: Track, params: Params, every: int) -> dict[str, Any]:
    """Returns correlation, regret and level of an agent's values.

    Args:
        agent: folder of an agent that takes single discrete actions.
        others: agents or clones whose choices are compared.
        track: the track.
        params: parameters of the rewards.
        every: decisions from one state to the next.

    Raises:
        ArtifactError: if an artifact is damaged or of another kind.
        UserError: if decisions are chunks of actions or continuous.
    """
    artifact = load_artifact(agent, ("agent",))
    if artifact.table.is_analog or artifact.table.actions_per_decision > 1:
        raise UserError(f"{agent.as_posix()} takes no single discrete actions, which this benchmark tries one by one")
    spec = spec_of(artifact, params)
    actor, num_actions = make_actor(spec, 0), artifact.table.num_actions
    actor.load_network(artifact.tensors)
    policy = Greedy(actor, artifact)
    settings = RaceSettings.for_training(
        spec.observation, params.actions, params.simulator, params.race_end, params.rewards, params.train, 1
    )
    settings = settings.decided_by(artifact.table).at_line()
    race = GreedyRaces(track, settings, 1, policy)
    states: list[dict[str, Any]] = []
    is_over, decisions = False, 0
    while not is_over:
        if decisions % every == 0:
            states.append(race.cars.state_dict())
        result = race.cars.step_into(race.choose(), race.image, race.floats, race.potential)
        is_over, decisions = bool(result.terminated[0] | result.truncated[0]), decisions + 1

    races = GreedyRaces(track, settings, len(states) * num_actions, policy)
    races.load(states, num_actions)
    image, floats = races.image[::num_actions].copy(), races.floats[::num_actions].copy()
    chosen = races.choose()[::num_actions]
    values = actor.action_values(torch.from_numpy(image), torch.from_numpy(floats))
    assert values is not None, "actions are discrete"
    is_policy = values.name == "probability"
    predicted = np.log(values.value.clip(1e-9)) if is_policy else values.value.astype(np.float64)
    first = np.tile(np.arange(num_actions), len(states))
    true = races.returns(first, spec.params.gamma.at(AT_THE_END)).reshape(len(states), num_actions)

    def regret(choice: NDArray[np.int64]) -> float:
        return float((true.max(axis=1) - true[np.arange(len(true)), choice]).mean())

    def advantages(of: Array) -> Array:
        return (of - of.mean(axis=1, keepdims=True)).ravel()

    taken = np.arange(len(true)), chosen
    return {
        "states": len(states),
        "correlation": float(np.corrcoef(advantages(predicted), advantages(true))[0, 1]),
        "regret": {"agent": regret(chosen), "random": float((true.max(axis=1) - true.mean(axis=1)).mean())}
        | {other.as_posix(): regret(load_policy(other)(image, floats)) for other in others},
        "level": {"true": float(true[taken].mean())}
        | ({} if is_policy else {"predicted": float(predicted[taken].mean())}),
    }


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", type=Path, help="folder of an agent")
    parser.add_argument("--other", type=Path, action="append", default=[], help="folder of an agent or clone")
    parser.add_argument("--track", help="a slug of the campaign or a track file; else that of data/races")
    parser.add_argument("--every", type=int, default=3, help="decisions from one state to the next")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    track = find_track(options.track) if options.track else load_main_track(RACES)
    show(measure(options.agent, options.other, track, read_params(), options.every), options.json)


if __name__ == "__main__":
    main()
