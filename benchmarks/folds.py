"""Robustness of agents to physics other than that of training: `python -m benchmarks.folds AGENT ... [--json]`.

Each agent races under the default physics and under every leave-one-map-out fit of `rulka calibrate`
(`--calibration`). The table shows finish rate and median time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rulka.evaluation.one_agent import evaluate_agent
from rulka.params import Params, read_params
from rulka.simulator.params import PhysicsParams

SHIPPED = "shipped"


def worlds(params: Params, calibration: Path) -> dict[str, Params]:
    """Returns the parameters for each physics, by name."""
    folds = json.loads(calibration.read_text(encoding="utf-8"))["folds"]
    found = {SHIPPED: params}
    for uid, fitted in folds.items():
        physics = PhysicsParams.model_validate(params.simulator.physics.model_dump() | fitted)
        found[uid] = params.model_copy(update={"simulator": params.simulator.model_copy(update={"physics": physics})})
    return found


def race(agent: str, params: Params, track: str | None, num_races: int) -> dict[str, Any]:
    """Races an agent and returns its finish rate and median time."""
    found = evaluate_agent(agent, params=params, track=track, num_races=num_races)["agent"]
    return {"finish_rate": found["finish_rate"], "median_time_s": found["median_time_s"]}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="+", help="artifacts of agents")
    parser.add_argument("--calibration", type=Path, default=Path("docs/calibration/calibration.json"))
    parser.add_argument("--track", help="a slug of the campaign or a track file; else that of data/races")
    parser.add_argument("--races", type=int, default=20, help="of each agent under each physics")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    by_name = worlds(read_params(), options.calibration)
    found = {
        agent: {name: race(agent, params, options.track, options.races) for name, params in by_name.items()}
        for agent in options.agents
    }
    if options.json:
        print(json.dumps(found))
        return
    for agent, by_world in found.items():
        print(agent)
        for name, result in by_world.items():
            time = result["median_time_s"]
            print(f"  {name:<30} {result['finish_rate']:6.0%}  {'' if time is None else f'{time:.2f} s'}")


if __name__ == "__main__":
    main()
