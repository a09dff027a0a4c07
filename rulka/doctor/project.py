"""The project's folder: its parameters, and whether it can be worked in."""

from __future__ import annotations

from pathlib import Path

from rulka.disk import unwritable_paths
from rulka.doctor.finding import Finding, State
from rulka.params import read_params


def parameters() -> Finding:
    """Looks whether params.yaml is complete; what it lacks is raised by name."""
    read_params()
    return Finding("params.yaml", State.OK, "complete")


def folder() -> Finding:
    """Looks whether everything that a run writes can be written."""
    if paths := unwritable_paths():
        names = ", ".join(str(path) for path in paths)
        return Finding("folder", State.WRONG, f"{names} in {Path.cwd()}: not writable", "change the owner or the mode")
    return Finding("folder", State.OK, str(Path.cwd()))
