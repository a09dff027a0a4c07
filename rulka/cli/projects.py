"""Implements `rulka new`: creates a project folder in which the installed package works as in a checkout."""

from __future__ import annotations

from pathlib import Path

import rulka
from rulka.machine.errors import UserError
from rulka.params import PARAMS_FILE
from rulka.params.reader import packaged_file
from rulka.stages.graph import CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE, check_names
from rulka.stages.outputs import filled_folder, has_content

FILES = (
    PARAMS_FILE,
    GRAPH_FILE,
    IGNORE_FILE,
    Path(".dvc/config"),
    Path(".dvc/.gitignore"),
    Path(".gitignore"),
    Path("prefect.yaml"),
    Path("prefect.toml"),
    Path("data/README.md"),
    Path("presets"),
    Path("experiments"),
    Path("populations"),
)
"""Project files that the wheel carries; a test checks that `pyproject.toml` lists the same."""
NO_GIT = "[core]\n    no_scm = true\n"


def make_project(folder: Path) -> list[str]:
    """Writes the files of a project into a new or empty folder, or an existing project; existing files stay.

    The code is linked, not copied: through the links DVC sees the changed code of a newer release, and reruns stages.
    Links that lead elsewhere, as after a move of the virtual environment, are replaced.

    Returns:
        Names of the entries written, sorted.

    Raises:
        UserError: if the folder is not empty and no project, cannot be written, or has a name that is not UTF-8.
    """
    check_names(folder)
    if has_content(folder) and not (folder / GRAPH_FILE).is_file():
        message = f"{folder} holds something else than a project"
        raise UserError(message, hint="Name a new folder, or one that is empty.")
    missing = [path for path in FILES if not (folder / path.parts[0]).exists()]
    code = Path(rulka.__file__).resolve().parents[1]
    elsewhere = [name for name in CODE_FOLDERS if (folder / name).resolve() != code / name]
    with filled_folder(folder) as new:
        for path in missing:
            source = packaged_file(path)
            for file in [source] if source.is_file() else source.rglob("*.yaml"):
                target = new / path / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
        if (new / ".dvc").is_dir() and not (folder / ".git").exists():
            (new / ".dvc/config.local").write_text(NO_GIT, encoding="utf-8")
        if (new / "data").is_dir():
            for name in ("recordings", "takeovers"):
                (new / "data" / name).mkdir()
        for name in elsewhere:
            (new / name).symlink_to(code / name)
        return sorted(path.name for path in new.iterdir())
