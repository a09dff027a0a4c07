"""Commands for the pipeline and the local machine."""

from __future__ import annotations

import sys
from pathlib import Path

from rulka.cli.options import AsJson, PresetName, report, say, stdout_to_stderr
from rulka.machine.errors import UserError
from rulka.machine.ports import DASHBOARD_PORT
from rulka.stages.outputs import check_folder
from rulka.stages.stage import EXIT_USER_ERROR


def new(folder: Path, /, as_json: AsJson = False) -> None:
    """Create a project folder outside a checkout, with parameters, presets and links to the installed code.

    Example: `rulka new race && cd race && dvc repro`

    Args:
        folder: new or empty; in a project, missing files are added and outdated links replaced.
        as_json: print one JSON object.
    """
    from rulka.cli.projects import make_project
    from rulka.params import PARAMS_FILE, Params, packaged_file, read_params

    written = make_project(folder)
    text = f"{folder}: {', '.join(written) if written else 'nothing is missing'}\nnow: cd {folder} && dvc repro"
    # A checkout's parameters may be edited.
    is_edited = PARAMS_FILE.name in written and read_params(folder / PARAMS_FILE) != Params()
    if is_edited:
        text += f"\n{PARAMS_FILE} has the edits of {packaged_file(PARAMS_FILE)}; "
        text += "`rulka params list --changed` shows them"
    report({"folder": folder.as_posix(), "written": written, "has_edited_params": is_edited}, lambda: text, as_json)


def up() -> None:
    """Start Prefect's server and worker on this machine, with the deployments of prefect.yaml; Ctrl-C stops them.

    Example: `rulka up`
    """
    from rulka.machine.disk import unwritable_paths
    from rulka.stages.graph import read_graph

    read_graph()
    if paths := unwritable_paths():
        message = f"{', '.join(str(path) for path in paths)} in {Path.cwd()}: not writable"
        raise UserError(message, hint="Every run writes there: change the owner or the mode, or copy the project.")
    try:
        from flows.up import up as run_prefect
    except Exception as error:  # incompatible packages, or unreadable settings
        message = f"Prefect cannot be used: {type(error).__name__}: {' '.join(str(error).split())}"
        hint = "Look at PREFECT_* in the environment and in .env; else run `make setup` in a new .venv."
        raise UserError(message, hint=hint) from error
    run_prefect(say)


def dashboard(port: int = DASHBOARD_PORT) -> None:
    """Serve the dashboard to this machine's browser: learning curves, cars of a running training, best laps, nights.

    Example: `rulka dashboard --port 8481`

    Args:
        port: port to listen on; 0 takes any free one.
    """
    from rulka.dashboard.app import serve
    from rulka.stages.graph import read_graph

    read_graph()
    serve(port, "", say)


def preset(name: PresetName, /, as_json: AsJson = False) -> None:
    """Apply a preset of presets/ to params.yaml, list them, or undo the last one; comments in params.yaml are kept.

    Example: `rulka preset chunks`

    Args:
        name: a file of presets/, `list` or `undo`.
        as_json: print one JSON object: the changes, or each preset with its description.
    """
    from rulka.params.presets import apply_preset, known_presets, undo_preset

    if name == "list":
        known = known_presets()
        report(known, lambda: "\n".join(f"{each:12}{known[each]}".rstrip() for each in known), as_json)
        return
    done = undo_preset() if name == "undo" else apply_preset(name)
    lines = [*done.changes, *(f"note: {remark}" for remark in done.remarks)]
    unchanged = f"params.yaml holds all of {name} already: nothing is changed"
    report(done._asdict(), lambda: "\n".join(lines) or unchanged, as_json)


def experiment(
    file: Path, cells: tuple[str, ...] = (), /, processes: int = 1, page: Path | None = None, as_json: AsJson = False
) -> None:
    """Run an experiment: variants of the parameters times seeds, through the stages; finished runs are not repeated.

    Example: `rulka experiment experiments/lag.yaml --processes 2 --page lag.md`

    Args:
        file: experiment file, from experiments/.
        cells: run only these, each VARIANT/SEED; if omitted, all.
        processes: maximum number of stages that run at once.
        page: Markdown file to write, with a table, curves and every run.
        as_json: print the table as a list of JSON objects, and all other lines on standard error.
    """
    from rulka.study.experiment import run_experiment

    with stdout_to_stderr(as_json):
        table = run_experiment(file, cells, processes, page, say)
    report(table.rows, lambda: table.text, as_json)


def population(file: Path, /, page: Path | None = None, as_json: AsJson = False) -> None:
    """Run population-based training: members train in parallel, copy better ones and search their parameters.

    Any number of processes may work on the same file, here or on machines that share the folder. After Ctrl-C or
    a kill the same command resumes.

    Example: `rulka population populations/learning-rate.yaml --page population.md`

    Args:
        file: population file, from populations/.
        page: Markdown file to write, with the lineage and the schedule found.
        as_json: print the members, best first, as a list of JSON objects, and all other lines on standard error.
    """
    from rulka.study.population_page import format_standings
    from rulka.study.population_run import run_population

    with stdout_to_stderr(as_json):
        ended = run_population(file, page, say)
    report([each.to_json() for each in ended], lambda: format_standings(ended), as_json)


def doctor(repeat: str | None = None, as_json: AsJson = False) -> None:
    """Check this machine and folder, and say how to fix problems; exit code 1 if something is wrong.

    A check that cannot run is reported and does not stop the rest.

    Example: `rulka doctor --repeat train`

    Args:
        repeat: a stage to run again, in runs/repeated/; its output must equal the one in data/.
        as_json: print one JSON object.
    """
    from rulka.operations.doctor import State, examine

    if repeat is not None:
        _repeat(repeat, as_json)
        return
    findings = examine()
    found = {finding.name: finding.to_json() for finding in findings}
    report(found, lambda: "\n".join(finding.describe() for finding in findings), as_json)
    if any(finding.state is State.WRONG for finding in findings):
        sys.exit(EXIT_USER_ERROR)


def _repeat(stage: str, as_json: bool) -> None:
    from rulka.study.repeat import repeat_stage

    with stdout_to_stderr(as_json):
        found = repeat_stage(stage, say)
    same = f"{found.out.as_posix()} repeats: {found.num_files} files are the same"
    lines = [f"{found.out.as_posix()} does not repeat, see {found.folder.as_posix()}", *found.differences]
    values = {"repeats": not found.differences, "num_files": found.num_files, "differences": found.differences}
    report(values, lambda: "\n".join(lines) if found.differences else same, as_json)
    if found.differences:
        sys.exit(EXIT_USER_ERROR)


def calibrate(
    folder: Path, /, *, out: Path, holdout: float = 0.34, write: bool = False, as_json: AsJson = False
) -> None:
    """Calibrate the simulator's physics on real recordings, and report the agreement by kind of driving and by map.

    Example: `rulka calibrate data/recordings --out report`

    Args:
        folder: folder of Gbx files at any depth; finished Stadium races of TrackMania Forever or United are used.
        out: folder to write the report into; docs/calibration holds the report of Rulka's default values.
        holdout: held-out share of the recordings, used for the report only.
        write: also write the fitted values to params.yaml.
        as_json: print one JSON object.
    """
    from rulka.calibration.command import calibrate as run_calibration
    from rulka.calibration.command import describe

    found = run_calibration(folder, holdout=holdout, out=check_folder(out), write=write)
    report(found, lambda: describe(found), as_json)
