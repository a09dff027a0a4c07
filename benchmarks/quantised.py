"""What quantised actors cost and gain: `python -m benchmarks.quantised [--agent FOLDER] [--races FOLDER] [--json]`.

A trained agent, and `data/races` with the track that it was trained on, in each precision that this processor can act
in, beside torch in float32:

- same action: the share of frames in which it takes the same greedy action; frames are those that it has driven through
  in float32 as collectors do, exploring, from the starts of training;
- races: greedy ones from the start line, from the same starts for all: share that finished, and the median time;
- decisions a second of CPU, exploring, as collectors take them: interleaved calls, medians, and the ratio to float32;
- bytes of a version, and CPU milliseconds to quantise it, once for all actors, and to load it, for each of them.

Activations are calibrated on the first frames, all else is measured on others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from benchmarks.iqn import median_ms
from models.encoders.config import ENCODER_CONFIG
from rulka.agents.algorithms import make_actor
from rulka.agents.network_params import NetworkParams
from rulka.agents.precision import ActingPrecision, raise_malloc_thresholds
from rulka.agents.quantisation import ActingPrecisionError, Quantiser, check_acting_precision
from rulka.agents.spec import Actor, AgentSpec
from rulka.artifacts import Artifact, load_artifact
from rulka.buffers.experience import ExperienceBlock, new_block
from rulka.datasets.races import read_meta, track_path
from rulka.device import CPU
from rulka.params import Params, read_params
from rulka.race_settings import RaceSettings
from rulka.runtime.collector import Collector, LocalActor
from rulka.runtime.greedy_check import GreedyCheck
from rulka.schedule import Moment
from rulka.tracks.track import load_track
from rulka.training.races import Races
from rulka.training.run import block_spec

CARS_DRIVEN, NUM_CALIBRATED, NUM_BLOCKS = 32, 4, 8
CARS_TIMED: Mapping[int, int] = {1: 50, 64: 4}
"""Cars in a batch, and calls of which the mean is one measurement."""
NUM_ROUNDS, NUM_VERSIONS = 15, 9
NUM_RACES, RACE_SEED = 128, 5
AFTER_WARMUP = Moment(10**9)


@dataclass
class Row:
    """What was measured of one precision; times in CPU milliseconds."""

    same_action: float = 0.0
    finish_rate: float = 0.0
    median_s: float | None = None
    version_bytes: int = 0
    quantise_ms: float = 0.0
    load_ms: float = 0.0
    decisions_per_s: dict[int, float] | None = None


class Agent:
    """A trained agent on its track.

    Attributes:
        spec: of its actors, in float32.
        tensors: its weights.
    """

    def __init__(self, artifact: Artifact, track: Path, params: Params) -> None:
        config, observation = artifact.config, artifact.observation.params()
        name = config["algorithm"]
        self.spec = AgentSpec(
            algorithm=name,
            observation=observation,
            encoder=ENCODER_CONFIG.validate_python(config["encoder"]),
            network=NetworkParams.model_validate(config["network"]),
            settings=type(params.algorithms[name]).model_validate_json(json.dumps(config[name])),
            actions=artifact.actions.space,
            normalisation=artifact.normalisation,
            decision_ms=artifact.table.duration_ms,
            precision="float32",
            acting_precision="float32",
        )
        self.tensors, self._track, count = artifact.tensors, track, artifact.table.actions_per_decision
        race = RaceSettings.for_training(
            observation, params.actions, params.simulator, params.race_end, params.rewards, params.train, count
        )
        self._race = race.decided_by(artifact.table)
        train = params.train.model_copy(update={"cars_per_collector": CARS_DRIVEN})
        self._block = block_spec(observation, train, artifact.table, len(artifact.normalisation.mean))

    def actor(self, precision: ActingPrecision) -> Actor:
        """Returns one without weights, that explores as after a warm-up."""
        actor = make_actor(replace(self.spec, acting_precision=precision), 0)
        actor.set_moment(AFTER_WARMUP)
        return actor

    def quantiser(self, precision: ActingPrecision, blocks: list[ExperienceBlock]) -> Quantiser:
        """Returns one that has seen some blocks."""
        quantiser = Quantiser(self.actor("float32").network, precision)
        for block in blocks:
            quantiser.observe(block)
        return quantiser

    def driven(self) -> list[ExperienceBlock]:
        """Returns blocks that it drives in float32, exploring."""
        actor = LocalActor(self.actor("float32"))
        actor.load(0, self.tensors)
        cars = Races(self._race, [load_track(self._track)]).make_cars(CARS_DRIVEN, at_line=False)
        collector = Collector(0, cars, actor, 1, self._block)
        blocks = [new_block(self._block) for _ in range(NUM_BLOCKS)]
        for block in blocks:
            collector.fill(block, AFTER_WARMUP)
        collector.close()
        return blocks

    def races(self, actor: Actor, published: Mapping[str, Tensor]) -> tuple[float, float | None]:
        """Returns the share of greedy races that finish, and the median time of those in seconds."""
        cars = Races(self._race, [load_track(self._track)]).make_cars(CARS_DRIVEN, at_line=True)
        check = GreedyCheck(cars, actor, self._block, lambda: None)
        outcomes = check.race(published, RACE_SEED, NUM_RACES)
        check.close()
        times = outcomes.time_ms[outcomes.finished]
        return float(outcomes.finished.mean()), float(np.median(times)) / 1000.0 if len(times) else None


def precisions() -> list[ActingPrecision]:
    """Returns those that this processor can act in."""
    able = []
    for precision in get_args(ActingPrecision):
        try:
            check_acting_precision(precision, CPU)
            able.append(precision)
        except ActingPrecisionError as error:
            print(f"left out: {error}", file=sys.stderr)
    return able


def measure(agent: Agent) -> dict[str, Row]:
    """Returns a row for each precision."""
    blocks = agent.driven()
    image = torch.from_numpy(np.concatenate([block.image[:-1].reshape(-1, *block.image.shape[2:]) for block in blocks]))
    floats = torch.from_numpy(
        np.concatenate([block.floats[:-1].reshape(-1, block.floats.shape[2]) for block in blocks])
    )
    others = slice(NUM_CALIBRATED * len(image) // NUM_BLOCKS, None)
    rows: dict[str, Row] = {}
    actors: dict[str, Actor] = {}
    greedy = None
    for precision in precisions():
        row, actor = Row(), agent.actor(precision)
        quantiser = agent.quantiser(precision, blocks[:NUM_CALIBRATED])
        published = quantiser.quantise(0, agent.tensors)
        row.version_bytes = sum(tensor.numel() * tensor.element_size() for tensor in published.values())
        row.quantise_ms = _median_ms(lambda version, q=quantiser: q.quantise(version, agent.tensors))
        row.load_ms = _median_ms(lambda _version, a=actor, p=published: a.load_network(p))
        chosen = actor.act(image[others], floats[others], explore=False).action
        greedy = chosen if greedy is None else greedy  # float32 comes first
        row.same_action = float((chosen == greedy).reshape(len(greedy), -1).all(axis=1).mean())
        row.finish_rate, row.median_s = agent.races(actor, published)
        rows[precision], actors[precision], row.decisions_per_s = row, actor, {}
    for num_cars, num_calls in CARS_TIMED.items():
        seen = image[:num_cars], floats[:num_cars]
        ways: dict[str, Callable[[], object]] = {
            name: partial(actor.act, *seen, explore=True) for name, actor in actors.items()
        }
        for name, cpu_ms in median_ms(ways, NUM_ROUNDS, num_calls).items():
            of_row = rows[name].decisions_per_s
            assert of_row is not None
            of_row[num_cars] = 1000.0 * num_cars / cpu_ms
    return rows


def _median_ms(work: Callable[[int], object]) -> float:
    """Returns the median CPU milliseconds of calls of what takes the number of a version, after one to warm up."""
    times = []
    for version in range(1, NUM_VERSIONS + 2):
        start_s = time.process_time()
        work(version)
        times.append(1000.0 * (time.process_time() - start_s))
    return statistics.median(times[1:])


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--agent", type=Path, default=Path("data/agent"), help="folder of a trained agent")
    parser.add_argument("--races", type=Path, default=Path("data/races"), help="folder with its track")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    track = track_path(arguments.races, read_meta(arguments.races)["main_track"])
    agent = Agent(load_artifact(arguments.agent, ("agent",)), track, read_params())
    start_s = time.process_time()
    rows = measure(agent)
    cpu_s = time.process_time() - start_s
    if arguments.json:
        by_name = {name: asdict(row) for name, row in rows.items()}
        print(json.dumps({"algorithm": agent.spec.algorithm, "cpu_s": cpu_s, "rows": by_name}))
        return
    base = rows["float32"].decisions_per_s or {}
    print(f"{agent.spec.algorithm}, {cpu_s:.0f} CPU seconds")
    for name, row in rows.items():
        rates = row.decisions_per_s or {}
        speed = ", ".join(f"{n} cars {rate:9,.0f}/s {rate / base[n]:5.2f} times" for n, rate in rates.items())
        median = "none" if row.median_s is None else f"{row.median_s:.3f} s"
        print(
            f"{name:9s} same action {100 * row.same_action:6.2f} %, finished {100 * row.finish_rate:5.1f} %, "
            f"median {median}, {speed}, version {row.version_bytes:,} bytes, quantised in {row.quantise_ms:.1f} ms, "
            f"loaded in {row.load_ms:.1f} ms"
        )


if __name__ == "__main__":
    main()
