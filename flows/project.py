"""The project's folder, as the flow and the stack need it: where their own files lie, and whether work can begin."""

from __future__ import annotations

from pathlib import Path

from rulka.disk import unwritable_paths
from rulka.errors import UserError
from rulka.graph import read_graph

HOME = Path(".prefect")
"""Everything of Prefect that is this machine's own: records, password, logs, and who runs the pipeline."""


class ProjectFolderError(UserError):
    """This folder cannot be worked in."""


def check_project() -> None:
    """Checks, before anything is started, that this is the root of the project and that it can be written to.

    Raises:
        UserError: naming the folder and what is missing or not writable.
    """
    read_graph()
    if paths := unwritable_paths():
        message = f"{', '.join(str(path) for path in paths)} in {Path.cwd()}: not writable"
        raise ProjectFolderError(
            message, hint="Every run writes there: change the owner or the mode, or copy the project."
        )
