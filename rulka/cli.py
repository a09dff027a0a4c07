"""The `rulka` command. Every subcommand imports what it needs when it is called, so that `--help` is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from rulka.errors import UserError
from rulka.stage import EXIT_INTERRUPTED, EXIT_USER_ERROR

Names = Annotated[tuple[str, ...], tyro.conf.Positional]
OnePath = Annotated[Path, tyro.conf.Positional]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
AsJson = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json")]

BENCHMARKS_DIR = Path("benchmarks")


def run(stages: Names = (), /, force: Flag = False) -> None:
    """Run the flow `rulka` in this process: the given stages, or all of them.

    Args:
        stages: names of stages in dvc.yaml.
        force: run them even if nothing they read has changed.
    """
    from flows.local import run as run_flow

    run_flow(list(stages) or None, force)


def up() -> None:
    """Start Prefect's server, worker and deployments on this machine; Ctrl-C stops them."""
    from flows.stack import up as run_stack

    run_stack(_say)


def inspect(path: OnePath, /, as_json: AsJson = False) -> None:
    """Show what is in a recording, or in every Gbx file of a folder.

    Args:
        path: a Gbx file, or a folder of them.
        as_json: print one JSON object, or for a folder a list of them.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() == ".gbx") if path.is_dir() else [path]
    if not files:
        message = f"no Gbx file is in {path}"
        raise UserError(message)
    from rulka.recordings.summary import inspect_file

    summaries = [inspect_file(file) for file in files]
    if as_json:
        _say_json(summaries if path.is_dir() else summaries[0])
    else:
        _say("\n".join(map(_line, summaries)) if path.is_dir() else _lines(summaries[0]))
    if not path.is_dir() and summaries[0]["error"]:
        sys.exit(EXIT_USER_ERROR)


def evaluate(
    agent: Path = Path("data/agent"), track: str | None = None, races: int | None = None, as_json: AsJson = False
) -> None:
    """Let an agent race greedily from fixed seeds.

    Args:
        agent: folder of the agent's weights.
        track: uid or file of the track; the main track of data/races when left out.
        races: number of races; the one of params.yaml when left out.
        as_json: print one JSON object.
    """
    from rulka.evaluation.command import evaluate_agent, format_evaluation
    from rulka.params import read_params

    result = evaluate_agent(agent, track=track, num_races=races, params=read_params())
    if as_json:
        _say_json(result)
    else:
        _say(format_evaluation(result))


def doctor(as_json: AsJson = False) -> None:
    """Check this machine and say what to do where something is wrong.

    Args:
        as_json: print one JSON object.
    """
    from flows.server import api_url
    from rulka.doctor import examine

    findings = examine(api_url())
    if as_json:
        _say_json({finding.name: finding._asdict() for finding in findings})
    for finding in () if as_json else findings:
        _say(f"{'ok   ' if finding.is_fine else 'WRONG'} {finding.name}: {finding.text}")
    if not all(finding.is_fine for finding in findings):
        sys.exit(EXIT_USER_ERROR)


def bench(names: Names = (), /, as_json: AsJson = False) -> None:
    """Run benchmarks, each of which prints a table.

    Args:
        names: names of modules in benchmarks/; all of them when left out.
        as_json: let each print one JSON object instead.
    """
    known = sorted(path.stem for path in BENCHMARKS_DIR.glob("*.py") if not path.stem.startswith("_"))
    unknown = sorted(set(names) - set(known))
    if unknown or not known:
        message = f"no benchmark is called {', '.join(unknown) or 'anything'}; {BENCHMARKS_DIR}/ holds {known}"
        raise UserError(message)
    for name in names or known:
        command = [sys.executable, "-m", f"{BENCHMARKS_DIR}.{name}", *(["--json"] if as_json else [])]
        if subprocess.run(command, check=False).returncode != 0:
            message = f"benchmark {name} failed"
            raise UserError(message)


def preset(name: Annotated[str, tyro.conf.Positional], /) -> None:
    """Lay a preset of presets/ over params.yaml; comments in it are not kept.

    Args:
        name: of the preset.
    """
    from rulka.presets import apply_preset

    for change in apply_preset(name):
        _say(change)


COMMANDS = {
    "run": run,
    "up": up,
    "inspect": inspect,
    "evaluate": evaluate,
    "doctor": doctor,
    "bench": bench,
    "preset": preset,
}


def main() -> None:
    """Entry point of the `rulka` command."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="rulka", description="Teach a car to race.")
    except UserError as error:
        sys.stderr.write(f"error: {error.for_people()}\n")
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(EXIT_INTERRUPTED)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_json(value: Any) -> None:
    _say(json.dumps(value, ensure_ascii=False))


def _line(summary: dict[str, Any]) -> str:
    """One file of many: its race, or what is wrong with it."""
    race_ms = summary["race_time_ms"]
    race = f"{race_ms / 1000:8.2f} s" if race_ms is not None else " " * 10
    counts = f"{summary['num_inputs']:6,} inputs {summary['num_samples']:6,} samples"
    return f"{summary['kind'] or '?':10}{race}  {summary['error'] or counts}  {summary['file']}"


def _lines(summary: dict[str, Any]) -> str:
    """One file alone, field by field; ghosts hold the same fields."""
    shown = {**summary, "ghosts": len(summary["ghosts"])}
    return "\n".join(f"{name:21}{'' if value is None else value}" for name, value in shown.items())


if __name__ == "__main__":
    main()
