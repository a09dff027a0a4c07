"""Throughput of learning and acting: `python -m benchmarks.agents [--device cuda] [--agent FOLDER] [--json]`.

One thread, random observations. Variants are interleaved; the best of several tries counts, in samples or decisions
per second of wall time. On a GPU, peak tensor memory is reported too.

- update: PPO and IQN with the sizes of params.yaml.
- update, reference: IQN's reference network of 1,051,805 parameters (`dense_hidden` 1024, fractions at the state,
  trainable encoder), in batches of 512, on a GPU also 4,096.
- draw: transitions sampled from the replay buffer in batches of 512, including IQN's mini-races.
- act: exploring decisions of one actor.

With `--agent` it measures a trained agent instead, in each inference precision that this processor supports: how often
its greedy action on recorded frames (`--frames`) agrees with float32, greedy races from the starts of the stage
`evaluate` on the track of `--races`, exploring decisions per second, and the size and CPU milliseconds of a weights
version. Activations are calibrated on frames held out from the comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import Rates, Variants, best_rates, show
from models.encoders.config import ENCODER_CONFIG
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.iqn.learner import IqnLearner
from rulka.agents.params import Algorithm
from rulka.agents.shared.acting import NetworkActor
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.quantisation import ActingPrecisionError, Quantiser, check_acting_precision
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.contracts.actions import Choices
from rulka.contracts.artifacts import Artifact, load_artifact
from rulka.contracts.observation import NUM_FLOATS, reference_normalisation
from rulka.contracts.schedule import Moment, Schedule
from rulka.datasets.formats.frames import FrameDataset
from rulka.datasets.formats.races import load_races
from rulka.evaluation.closed_loop import ClosedLoop
from rulka.evaluation.race import EvaluationRaces, race
from rulka.machine.device import CPU, DEVICE_VARIABLE, choose_device, wait_for
from rulka.machine.precision import ActingPrecision, Precision, raise_malloc_thresholds
from rulka.params import Params, read_params

NUM_ACTIONS = 12
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
AFTER_WARMUP = Moment(10**9)
CARS, CARS_ON_DEVICE = (1, 32, 64), (1, 64, 256, 1024, 4096)
REFERENCE_HIDDEN, REFERENCE_BATCHES, NUM_QUANTILES = 1024, (512, 4096), 8
UPDATE_TRIES, ACT_TRIES = 4, 30
NUM_CALIBRATED, NUM_COMPARED = 128, 2000


def random_block(params: Params, num_steps: int, num_cars: int) -> ExperienceBlock:
    """Returns a block of random experience without resets."""
    rng, normalisation = np.random.default_rng(0), reference_normalisation()
    block = new_block(BlockSpec(num_steps, num_cars, params.observation.height, params.observation.width, NUM_FLOATS))
    block.image[...] = rng.integers(0, 256, block.image.shape, dtype=np.uint8)
    noise = rng.standard_normal(block.floats.shape, dtype=np.float32)
    block.floats[...] = normalisation.mean + normalisation.std * noise
    block.action[...] = rng.integers(0, NUM_ACTIONS, block.action.shape, dtype=np.uint8)
    block.reward[...] = rng.standard_normal(block.reward.shape, dtype=np.float32)
    block.log_prob[...] = -np.log(NUM_ACTIONS)
    block.is_greedy[...] = True
    return block


def agent_spec(params: Params, algorithm: Algorithm, precision: Precision, **changes: object) -> AgentSpec:
    """Returns the spec of an agent, with `changes` applied to its algorithm's settings."""
    settings = params.algorithms[algorithm]
    return AgentSpec(
        algorithm,
        params.observation,
        params.encoder,
        params.network,
        type(settings).model_validate(settings.model_dump() | changes),
        Choices(NUM_ACTIONS),
        reference_normalisation(),
        precision=precision,
    )


def reference_params() -> Params:
    """Returns params.yaml with IQN's reference network and a trainable encoder."""
    params = read_params()
    body = params.network.iqn.model_copy(update={"embedding_at": "state", "guided": False})
    network = params.network.model_copy(update={"dense_hidden": REFERENCE_HIDDEN, "iqn": body})
    nothing = Schedule(interpolation="linear", points=((0, 0.0),))
    changes = {"rate_of": params.algorithms["ppo"].rate_of, "warmup_steps": 0, "guide_floor": nothing}
    return params.model_copy(update={"network": network, "iqn": params.algorithms["iqn"].model_copy(update=changes)})


def ppo_updates(params: Params, device: torch.device) -> Variants:
    """Returns PPO updates by precision and number of epochs that train the encoder."""
    batch, variants = params.algorithms["ppo"].batch_size, Variants()
    block = random_block(params, 2 * batch // 32, 32)
    steps = {"steps_per_update": 2 * batch, "value_warmup_steps": 0, "max_kl": 1e9, "max_versions_behind": 9}
    for precision in PRECISIONS:
        for epochs, encoder_epochs in ((1, 1), (3, 1), (3, 0)):
            settings = steps | {"epochs": epochs, "encoder_epochs": encoder_epochs}
            learner = make_learner(agent_spec(params, "ppo", precision, **settings), 0, device)

            def update(learner: Any = learner, num_samples: int = 2 * batch * epochs) -> int:
                learner.insert(block, 0, learner.version)
                assert learner.update() is not None
                return num_samples

            variants[f"ppo {precision}, encoder in {encoder_epochs} of {epochs} epochs"] = update
    return variants


def iqn_learner(params: Params, precision: Precision, device: torch.device, **changes: object) -> IqnLearner:
    """Returns a learner whose replay ring is full enough for any number of updates of two gradient steps."""
    batch = params.algorithms["iqn"].model_copy(update=changes).batch_size
    settings: dict[str, object] = {"start_steps": max(1024, batch), "buffer_steps": max(4096, 4 * batch)}
    settings |= {"samples_per_insert": 1e9, "gradient_steps_per_update": 2}
    learner = IqnLearner(agent_spec(params, "iqn", precision, **settings | changes), 0, device)
    block = random_block(params, 32, 32)
    for _ in range(2 + max(1024, batch) // 1024):
        learner.insert(block, 0, 0)
    return learner


def iqn_updates(params: Params, device: torch.device, **changes: object) -> Variants:
    """Returns IQN updates by precision."""
    variants, batch = Variants(), params.algorithms["iqn"].model_copy(update=changes).batch_size
    for precision in PRECISIONS:
        learner = iqn_learner(params, precision, device, **changes)

        def update(learner: IqnLearner = learner) -> int:
            assert learner.update() is not None
            return 2 * batch

        variants[f"iqn {precision}"] = update
    return variants


def decisions(params: Params, num_cars: int, device: torch.device) -> Variants:
    """Returns decisions of PPO's and IQN's actors by precision."""
    block, variants = random_block(params, 1, num_cars), Variants()
    image, floats = torch.from_numpy(block.image[0]), torch.from_numpy(block.floats[0])
    algorithms: tuple[Algorithm, ...] = ("ppo", "iqn")
    for algorithm in algorithms:
        for precision in (*PRECISIONS, "auto"):
            actor = make_actor(agent_spec(params, algorithm, precision), 0, device)
            actor.set_moment(AFTER_WARMUP)

            def act(actor: NetworkActor = actor) -> int:
                return len(actor.act(image, floats, explore=True).action)

            variants[f"{algorithm} {precision}"] = act
    return variants


def fresh_rates(params: Params, device: torch.device) -> dict[str, Rates]:
    """Returns the rates of agents with random weights, and on a GPU the peak memory in GB."""
    rates = {
        "update": best_rates(
            ppo_updates(params, device) | iqn_updates(params, device), UPDATE_TRIES, wait=partial(wait_for, device)
        )
    }
    for batch in REFERENCE_BATCHES[: 1 if device == CPU else None]:
        updates = iqn_updates(reference_params(), device, batch_size=batch, num_quantiles=NUM_QUANTILES)
        rates[f"update, reference, batch {batch}"] = best_rates(updates, UPDATE_TRIES, wait=partial(wait_for, device))
    replaying = iqn_learner(params, "float32", device, batch_size=REFERENCE_BATCHES[0])
    rates["draw"] = best_rates(
        {"iqn": lambda: len(replaying.sample().action)}, ACT_TRIES, wait=partial(wait_for, device)
    )
    for num_cars in CARS if device == CPU else CARS_ON_DEVICE:
        rates[f"act, {num_cars} cars"] = best_rates(
            decisions(params, num_cars, device), ACT_TRIES, wait=partial(wait_for, device)
        )
    peak = peak_bytes(device)
    return rates if peak is None else rates | {"peak memory": {"GB": peak / 1e9}}


def peak_bytes(device: torch.device) -> int | None:
    """Returns the peak tensor memory of this process on a GPU; None on other devices."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


# A trained agent ------------------------------------------------------------------------------------------------------


def spec_of(artifact: Artifact, params: Params) -> AgentSpec:
    """Returns the spec of a trained agent's actors, in float32."""
    name = artifact.config["algorithm"]
    return AgentSpec(
        algorithm=name,
        observation=artifact.observation.params(),
        encoder=ENCODER_CONFIG.validate_python(artifact.config["encoder"]),
        network=NetworkParams.model_validate(artifact.config["network"]),
        params=type(params.algorithms[name]).model_validate_json(json.dumps(artifact.config[name])),
        actions=artifact.actions.space,
        normalisation=artifact.normalisation,
        decision_ms=artifact.table.duration_ms,
        precision="float32",
        acting_precision="float32",
    )


class Greedy:
    """Greedy policy of an actor, see `rulka.evaluation.race.Policy`."""

    def __init__(self, actor: NetworkActor, artifact: Artifact) -> None:
        self.actions, self._actor = artifact.table, actor

    def __call__(self, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> NDArray:
        """Returns a decision for each car."""
        decision = self._actor.act(torch.from_numpy(image), torch.from_numpy(floats), explore=False)
        return np.array(decision.for_environment)


def cpu_ms(work: Callable[[], object]) -> float:
    """Returns CPU milliseconds of one call."""
    start_s = time.process_time()
    work()
    return 1000.0 * (time.process_time() - start_s)


def measure_agent(artifact: Artifact, frames: FrameDataset, races: EvaluationRaces, params: Params) -> dict[str, Any]:
    """Returns measurements by precision; precisions that this processor lacks are reported on standard error."""
    shown = np.sort(np.random.default_rng(0).permutation(len(frames))[: NUM_CALIBRATED + NUM_COMPARED])
    batch = frames.batch(shown)
    image, floats, spec = batch.image, batch.floats, spec_of(artifact, params)
    count = min(NUM_CALIBRATED, len(shown) // 2)
    block = new_block(BlockSpec(count, 1, image.shape[2], image.shape[3], floats.shape[1], frames=image.shape[1]))
    block.image[:count, 0], block.floats[:count, 0] = image[:count], floats[:count]
    rows: dict[str, Any] = {}
    actors: dict[str, NetworkActor] = {}
    greedy = None
    for precision in get_args(ActingPrecision):
        try:
            check_acting_precision(precision, CPU)
        except ActingPrecisionError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        actor = make_actor(replace(spec, acting_precision=precision), 0)
        actor.set_moment(AFTER_WARMUP)
        quantiser = Quantiser(make_actor(spec, 0).network, precision)
        quantiser.observe(block)
        published = quantiser.quantise(0, artifact.tensors)
        row = {
            "version_bytes": sum(tensor.numel() * tensor.element_size() for tensor in published.values()),
            "quantise_ms": cpu_ms(lambda q=quantiser: q.quantise(1, artifact.tensors)),
            "load_ms": cpu_ms(lambda a=actor, p=published: a.load_network(p)),
        }
        chosen = np.array(actor.act(image[count:], floats[count:], explore=False).for_environment)
        greedy = chosen if greedy is None else greedy  # float32 comes first
        row["same_action"] = float((chosen == greedy).reshape(len(greedy), -1).all(axis=1).mean())
        driven = ClosedLoop.of(race(Greedy(actor, artifact), races))
        rows[precision], actors[precision] = row | driven.to_json(), actor
    for num_cars in (1, 64):
        seen = image[:num_cars], floats[:num_cars]
        ways: Variants = {
            name: lambda a=actor, s=seen: len(a.act(*s, explore=True).action) for name, actor in actors.items()
        }
        for name, rate in best_rates(ways, ACT_TRIES).items():
            rows[name][f"decisions_per_s_{num_cars}"] = rate
    return rows


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--device", default=os.environ.get(DEVICE_VARIABLE, "cpu"), help="auto, cpu, cuda or mps")
    parser.add_argument("--agent", type=Path, help="folder of a trained agent")
    parser.add_argument("--frames", type=Path, default=Path("data/frames"), help="what it is shown")
    parser.add_argument("--races", type=Path, default=Path("data/races"), help="folder with the track that it races on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    params = read_params()
    if arguments.agent is None:
        found = fresh_rates(params, choose_device(arguments.device).device)
    else:
        artifact = load_artifact(arguments.agent, ("agent",))
        races = EvaluationRaces.of(load_races(arguments.races).main_track, params)
        sight, parts = artifact.observation.params(), artifact.table.parts
        frames = FrameDataset(arguments.frames, "train", sight.frames, parts)
        found = measure_agent(artifact, frames, races, params)
    show(found, arguments.json)


if __name__ == "__main__":
    main()
