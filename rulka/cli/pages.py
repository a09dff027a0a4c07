"""How commands reach Prefect, and how they serve the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulka.cli.options import say
from rulka.errors import UserError

if TYPE_CHECKING:
    from rulka.dashboard.stages import Pipeline


@contextmanager
def prefect_explained() -> Iterator[None]:
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
        with prefect_explained():
            from flows.status import status as look_at_flows
        return look_at_flows()

    return Pipeline(changes, stages_at_work, look)
