"""Commands of the pipeline and of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rulka.cli.options import AsJson, DeviceName, Flag, Names, OneName, OnePath, lines_aside, say, say_json
from rulka.errors import UserError
from rulka.outputs import check_file, new_file
from rulka.ports import DASHBOARD_PORT
from rulka.stage import EXIT_USER_ERROR

if TYPE_CHECKING:
    from rulka.dashboard.stages import Pipeline
    from rulka.doctor.finding import Finding

BENCHMARKS_DIR = Path("benchmarks")


def run(
    stages: Names = (),
    /,
    force: Flag = False,
    device: DeviceName = None,
    dry_run: Flag = False,
    as_json: AsJson = False,
) -> None:
    """Run the flow `rulka` in this process: the given stages, or all of them.

    Args:
        stages: names of stages in dvc.yaml.
        force: run them even if nothing they read has changed.
        device: where networks run; RULKA_DEVICE when left out, and without it a GPU that works, else the CPU.
        dry_run: say what would run, and run nothing.
        as_json: print one JSON object, and all other lines on standard error.
    """
    _check_folder()
    _pass_on(device)
    with _prefect_explained():
        from flows.local import preview, preview_text
        from flows.local import run as run_flow

    if dry_run:
        found = preview(list(stages) or None, force)
        say_json(found) if as_json else say(preview_text(found))
        return
    with lines_aside(as_json):
        done = run_flow(list(stages) or None, force, say)
    if as_json:
        say_json(done)


def new(folder: OnePath, /, as_json: AsJson = False) -> None:
    """Make a project folder outside a checkout, with parameters, presets and links to the installed code.

    Args:
        folder: new or empty; in a project, what is missing is added and links to another place are made anew.
        as_json: print one JSON object.
    """
    from rulka.cli.projects import make_project

    written = make_project(folder)
    if as_json:
        say_json({"folder": folder.as_posix(), "written": written})
        return
    say(f"{folder}: {', '.join(written) if written else 'nothing is missing'}")
    say(f"now: cd {folder} && dvc repro")


def up() -> None:
    """Start Prefect's server, worker and deployments on this machine; Ctrl-C or `rulka down` stops them."""
    _check_folder()
    with _prefect_explained():
        from flows.stack import up as run_stack

    run_stack(say)


def down() -> None:
    """Stop the `rulka up` of this folder, wherever it was started; active runs save their work first."""
    _check_folder()
    with _prefect_explained():
        from flows.stack import down as stop_stack

    stop_stack(say)


def status(as_json: AsJson = False) -> None:
    """Say who works in this folder, what the deployments do and did last, and what comes next.

    Args:
        as_json: print one JSON object.
    """
    _check_folder()
    with _prefect_explained():
        from flows.status import status as look
        from flows.status import status_text

    found = look()
    if as_json:
        say_json(found)
    else:
        say(status_text(found))


def cluster(
    action: Annotated[Literal["up", "status", "down"], tyro.conf.Positional],
    /,
    port: int = 6379,
    nodes: int = 1,
    cpus: int | None = None,
    object_store_mb: int = 512,
    as_json: AsJson = False,
) -> None:
    """Run a Ray cluster on this machine, on loopback; say what the one of RULKA_CLUSTER has; or end it.

    Args:
        action: up runs one until Ctrl-C or `rulka cluster down`; status looks at the one that RULKA_CLUSTER names, else
            at the port.
        port: of this machine, where its head listens.
        nodes: with up: how many it pretends to have.
        cpus: with up: that each node offers; those of the machine, parted, when left out.
        object_store_mb: with up: memory of each node for blocks of experience and weights.
        as_json: with status: print one JSON object.
    """
    from rulka.cluster import local
    from rulka.cluster.settings import chosen_address

    if as_json and action != "status":
        message = "--json goes with `rulka cluster status`"
        raise UserError(message)
    if action == "up":
        local.up(port, nodes, cpus, object_store_mb, say)
    elif action == "down":
        local.down(port, say)
    else:
        found = local.status(chosen_address() or f"{local.HOST}:{port}")
        say_json(found) if as_json else say(local.status_text(found))


def dashboard(port: int = DASHBOARD_PORT) -> None:
    """Serve pages to this machine's browser: stages, curves, cars of a running training, where results come from.

    Args:
        port: to listen on; 0 takes any free one.
    """
    from rulka.graph import read_graph

    read_graph()
    serve_pages(port, "")


def serve_pages(port: int, address: str, runs: Path | None = None) -> None:
    """Serves the dashboard until Ctrl-C.

    Args:
        port: to listen on; 0 takes any free one.
        address: of the page to name.
        runs: folder of the trainings to show; those of this project when left out.

    Raises:
        UserError: if the port is taken, or a package is missing.
    """
    from rulka.dashboard.app import HOST, make_server, open_port
    from rulka.dashboard.runs import Runs

    with open_port(port) as door:
        server = make_server(_pipeline(), None if runs is None else Runs(runs, with_agents=False))
        say(f"http://{HOST}:{door.getsockname()[1]}/{address}  (Ctrl-C ends)")
        server.run([door])


def _pipeline() -> Pipeline:
    """Returns whom the dashboard asks about the pipeline; Prefect is imported when it is asked for the first time."""
    from flows.dvc import changes, stages_at_work
    from rulka.dashboard.stages import Pipeline

    def look() -> dict[str, Any]:
        with _prefect_explained():
            from flows.status import status as look_at_flows
        return look_at_flows()

    return Pipeline(changes, stages_at_work, look)


def preset(name: OneName, /, as_json: AsJson = False) -> None:
    """Lay a preset of presets/ over params.yaml, list them, or undo the last one; comments in params.yaml are kept.

    Args:
        name: btr, chunks, dagger, dpo, frames, fusion, grpo, impala, large-batch, pql, reference, scratch, or that of
            another file of presets/; `list` shows all, and `undo` takes back what the last one changed and nobody has
            changed since.
        as_json: print one JSON object: what changed, or each preset with what it is.
    """
    from rulka.presets import apply_preset, known_presets, undo_preset

    if name == "list":
        known = known_presets()
        say_json(known) if as_json else say("\n".join(f"{each:12}{known[each]}".rstrip() for each in known))
        return
    done = undo_preset() if name == "undo" else apply_preset(name)
    if as_json:
        say_json(done._asdict())
        return
    unchanged = (
        [] if name == "undo" or done.remarks else [f"params.yaml holds all of {name} already: nothing is changed"]
    )
    say("\n".join([*(done.changes or unchanged), *(f"note: {remark}" for remark in done.remarks)]))


def params(
    action: Annotated[Literal["list", "schema"], tyro.conf.Positional],
    key: OneName = "",
    /,
    changed: Flag = False,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """List all parameters with value, default, type, range and meaning, or write their JSON schema for editors.

    Args:
        action: list the parameters, or write the schema.
        key: with list: one parameter, or a section; all when left out.
        changed: with list: those alone that differ from their default.
        out: with schema: JSON file to write; params.schema.json when left out.
        as_json: with list: print one JSON list.
    """
    from rulka.params import PARAMS_FILE, read_sections
    from rulka.params.schema import SCHEMA_FILE, parameters_below, schema_text

    if (action == "schema" and (key or as_json or changed)) or (action == "list" and out is not None):
        message = "KEY, --changed and --json are for `rulka params list`, --out is for `rulka params schema`"
        raise UserError(message)
    if action == "schema":
        written = check_file(out or SCHEMA_FILE, ".json")
        with new_file(written) as beside:
            beside.write_text(schema_text(), encoding="utf-8")
        line = f"# yaml-language-server: $schema={written}"
        say(f"{written}: with the line `{line}` in {PARAMS_FILE}, editors check and explain it")
        return
    found = parameters_below(key, read_sections(PARAMS_FILE))
    if changed:
        found = [parameter for parameter in found if parameter.value not in (None, parameter.default)]
    if as_json:
        say_json([parameter._asdict() for parameter in found])
    else:
        say("\n".join(str(parameter) for parameter in found))


def experiment(
    file: Path, cells: Names = (), /, processes: int = 1, page: Path | None = None, as_json: AsJson = False
) -> None:
    """Run an experiment: variants of the parameters times seeds, through the stages; what is done is not done again.

    Args:
        file: of the experiment, from experiments/.
        cells: run these only, each VARIANT/SEED; all when left out.
        processes: stages that may run at once.
        page: Markdown file to write, with a table, curves and every run.
        as_json: print the table as a list of JSON objects, and all other lines on standard error.
    """
    from rulka.study.experiment import run_experiment

    with lines_aside(as_json):
        table = run_experiment(file, cells, processes, page, say)
    say_json(table.rows) if as_json else say(table.text)


def population(file: OnePath, /, page: Path | None = None, cluster: Flag = False, as_json: AsJson = False) -> None:
    """Train a population: runs that learn side by side, copy the best of each other and search their parameters.

    Any number of processes may be started on the same file, here or on machines that share the folder. After Ctrl-C or
    a kill the same command goes on.

    Args:
        file: of the population, from populations/.
        page: Markdown file to write, with the lineage and the schedule that was found.
        cluster: let processes on the nodes of the Ray cluster that RULKA_CLUSTER names help; they share this folder.
        as_json: print the members, the best first, as a list of JSON objects, and all other lines on standard error.
    """
    from rulka.study.population_page import format_standings
    from rulka.study.population_run import run_population

    with lines_aside(as_json):
        ended = run_population(file, page, say, on_cluster=cluster)
    say_json([each.to_json() for each in ended]) if as_json else say(format_standings(ended))


def doctor(as_json: AsJson = False) -> None:
    """Check this machine and folder, and say what to do; exit status 1 where something is wrong.

    What cannot be looked at is said and ends nothing.

    Args:
        as_json: print one JSON object.
    """
    from rulka.doctor.examine import examine
    from rulka.doctor.finding import State

    findings = examine({"server": _look_at_prefect, "dvc at work": _look_at_dvc})
    if as_json:
        say_json({finding.name: finding.to_json() for finding in findings})
    else:
        say("\n".join(finding.describe() for finding in findings))
    if any(finding.state is State.WRONG for finding in findings):
        sys.exit(EXIT_USER_ERROR)


def bench(names: Names = (), /, as_json: AsJson = False, device: DeviceName = None) -> None:
    """Run benchmarks, each of which prints a table.

    Args:
        names: names of modules in benchmarks/; all of them when left out.
        as_json: let each print one JSON object instead.
        device: where networks run; RULKA_DEVICE when left out, and without it a GPU that works, else the CPU.
    """
    _pass_on(device)
    modules = [path.stem for path in BENCHMARKS_DIR.glob("*.py") if not path.stem.startswith("_")]
    known = sorted([*modules, *(path.parent.name for path in BENCHMARKS_DIR.glob("*/__main__.py"))])
    if not known:
        message = f"there are no benchmarks in {BENCHMARKS_DIR.absolute()}"
        raise UserError(message, hint="Run this from the root of the project.")
    if unknown := sorted(set(names) - set(known)):
        message = f"no benchmark is called {', '.join(unknown)}; {BENCHMARKS_DIR}/ holds {', '.join(known)}"
        raise UserError(message)
    for name in names or known:
        command = [sys.executable, "-m", f"{BENCHMARKS_DIR}.{name}", *(["--json"] if as_json else [])]
        if subprocess.run(command, check=False).returncode != 0:
            message = f"benchmark {name} failed"
            raise UserError(message)


def _pass_on(device: str | None) -> None:
    """Names the device for the processes that this one starts, once it has been seen to work."""
    if device is not None:
        from rulka.device import DEVICE_VARIABLE, choose_device

        choose_device(device)
        os.environ[DEVICE_VARIABLE] = device


def _check_folder() -> None:
    """Refuses a folder that cannot be worked in before Prefect is imported, which takes seconds."""
    from flows.project import check_project

    check_project()


@contextmanager
def _prefect_explained() -> Iterator[None]:
    """Turns whatever an import of `flows`, and so of Prefect, raises in the block into a UserError.

    These imports stand in functions, for they take seconds that no other command shall wait for.
    """
    try:
        yield
    except Exception as error:
        # Packages that do not fit together, and settings that cannot be read, raise whatever they like.
        reason = " ".join(str(error).split())
        message = f"Prefect cannot be used: {type(error).__name__}: {reason}"
        hint = "Look at PREFECT_* in the environment and in .env; else run `make setup` in a new .venv."
        raise UserError(message, hint=hint) from error


def _look_at_prefect() -> list[Finding]:
    with _prefect_explained():
        from flows.checkup import server
    return server()


def _look_at_dvc() -> list[Finding]:
    from flows.dvc import at_work

    return [at_work()]
