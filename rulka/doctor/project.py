"""The project's folder: its parameters, and whether it can be worked in."""

from __future__ import annotations

from pathlib import Path

from rulka.disk import unwritable_paths
from rulka.doctor.finding import Finding, State
from rulka.graph import GRAPH_FILE, PARAMS_FILE, read_graph
from rulka.params import read_params, read_sections


def parameters() -> Finding:
    """Looks whether params.yaml is possible, which raises what is not, and has every section that DVC looks at."""
    read_params()
    wanted = (
        set().union(*(stage.get("params", ()) for stage in read_graph().values())) if GRAPH_FILE.is_file() else set()
    )
    if missing := sorted(wanted - set(read_sections(PARAMS_FILE))):
        names = ", ".join(missing)
        return Finding(
            "params.yaml",
            State.WRONG,
            f"no section {names}, without which DVC runs no stage",
            f"add `{missing[0]}: {{}}`",
        )
    return Finding("params.yaml", State.OK, "possible")


def folder() -> Finding:
    """Looks whether everything that a run writes can be written."""
    if paths := unwritable_paths():
        names = ", ".join(str(path) for path in paths)
        return Finding("folder", State.WRONG, f"{names} in {Path.cwd()}: not writable", "change the owner or the mode")
    return Finding("folder", State.OK, str(Path.cwd()))
