"""Rulka's PPO beside stable-baselines3's and Sample Factory's: environment steps per CPU second, end to end.

    python -m benchmarks.ppo_peers [--peers FOLDER] [--sample-factory FOLDER] [--updates 5] [--rounds 3] [--json]

rulka/Race-v0, 64 cars, rollouts of 64 decisions, batches of 512, 3 epochs, the same layers (encoder, float head,
trunk) and a head each for policy and value. Rulka's row "as shipped" trains the encoder in the last epoch of each
update alone, as params.yaml does; "every layer" in all of them, as the peers do. Both compute in the precision that is
faster on this machine, the peers in float32. Rulka steps all cars at once, the peers an environment for each car.

Sides take turns, each in processes with one thread; the medians of some rounds are shown. The first update is not
counted, nor are imports: of Sample Factory, which has several processes, a short run is taken from a long one.

The peers are not installed beside Rulka. `pip install --no-deps --target FOLDER stable-baselines3==2.9.2` makes the
folder of `--peers`. Sample Factory wants an older numpy and gymnasium, and so an environment of its own: FOLDER of
`--sample-factory` is made where it is missing, which takes minutes. A peer that is not there is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLE_FACTORY = (
    "sample-factory==2.1.1",
    "torch==2.13.*",
    "numba",
    "pydantic",
    "pyyaml",
    "pathspec",
    "pillow",
    "psutil",
)
"""What its environment holds; all after the second serves the races of `rulka/Race-v0`."""
WANTED = {
    ("as shipped", "stable-baselines3"): 8.0,
    ("every layer", "stable-baselines3"): 5.0,
    ("as shipped", "Sample Factory"): 3.0,
    ("every layer", "Sample Factory"): 3.0,
}
Result = dict[str, float]


def _ask(python: str, module: str, *arguments: str, paths: tuple[Path, ...] = ()) -> Result:
    """Runs one side to its end and returns what it measured.

    Raises:
        SystemExit: if it failed; its own message is on stderr.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(str(path.resolve()) for path in (ROOT, *paths)),
    }
    command = [python, "-m", f"benchmarks.ppo_peers.{module}", *arguments]
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if answer.returncode:
        message = f"{module} failed with exit code {answer.returncode}; its message is above"
        raise SystemExit(message)
    return json.loads(answer.stdout.splitlines()[-1])


def _rulka(encoder_epochs: int, num_updates: int) -> Result:
    return _ask(sys.executable, "rulka_side", str(num_updates), str(encoder_epochs))


def _sample_factory(python: str, num_updates: int) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        short, long = (
            _ask(python, "sample_factory_side", str(count), f"{folder}/{count}") for count in (1, 1 + num_updates)
        )
    return {"steps_per_cpu_s": (long["steps"] - short["steps"]) / (long["cpu_s"] - short["cpu_s"])}


def _python_of(folder: Path) -> str | None:
    """Returns the Python of Sample Factory's environment, made where it is missing; None, said why, where it cannot."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *SAMPLE_FACTORY]
    answer = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        reason = next((line for line in answer.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
        print(f"Sample Factory is left out: {reason}", file=sys.stderr)
        return None
    return str(python)


def _sides(peers: Path | None, sample_factory: Path | None) -> dict[str, Callable[[int], Result]]:
    """Returns what measures each side that is there, for a number of updates; says which is not, and why."""
    sides: dict[str, Callable[[int], Result]] = {
        "as shipped": lambda count: _rulka(1, count),
        "every layer": lambda count: _rulka(3, count),
    }
    if peers is not None and (peers / "stable_baselines3").is_dir():
        sides["stable-baselines3"] = lambda count: _ask(sys.executable, "sb3_side", str(count), paths=(peers,))
    else:
        why = f"{peers} does not hold it" if peers else "no --peers FOLDER is given"
        print(f"stable-baselines3 is left out: {why}; see --help", file=sys.stderr)
    if sample_factory is None:
        print("Sample Factory is left out: no --sample-factory FOLDER is given; see --help", file=sys.stderr)
    elif (python := _python_of(sample_factory)) is not None:
        sides["Sample Factory"] = lambda count: _sample_factory(python, count)
    return sides


def ratios_of(found: dict[str, Result]) -> dict[str, float]:
    """Returns how many times as fast Rulka is as each peer that was measured."""
    return {
        f"{ours} / {theirs}": found[ours]["steps_per_cpu_s"] / found[theirs]["steps_per_cpu_s"]
        for ours, theirs in WANTED
        if theirs in found
    }


def _show(found: dict[str, Result]) -> None:
    print("| | steps / CPU s | of it in environments |\n|---|---|---|")
    for side, result in found.items():
        share = f"{result['environment_share']:.0%}" if "environment_share" in result else "not known"
        print(f"| {side} | {result['steps_per_cpu_s']:.0f} | {share} |")
    for (ours, theirs), wanted in WANTED.items():
        if theirs in found:
            print(f"{ours} / {theirs}: {ratios_of(found)[f'{ours} / {theirs}']:.2f} (wanted {wanted:g})")


def main() -> None:
    """Runs the comparison and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with stable_baselines3")
    parser.add_argument("--sample-factory", type=Path, help="folder of its environment; made where it is missing")
    parser.add_argument("--updates", type=int, default=5, help="that are counted, of 4,096 decisions each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    sides = _sides(arguments.peers, arguments.sample_factory)
    results: dict[str, list[Result]] = {side: [] for side in sides}
    for number in range(arguments.rounds):
        for side, measure in sides.items():
            results[side].append(measure(arguments.updates))
            print(f"round {number + 1}, {side}: {json.dumps(results[side][-1])}", file=sys.stderr, flush=True)
    found = {
        side: {name: statistics.median(result[name] for result in rounds) for name in rounds[0]}
        for side, rounds in results.items()
    }
    if arguments.json:
        print(json.dumps(found | {"ratios": ratios_of(found)}))
    else:
        _show(found)


if __name__ == "__main__":
    main()
