"""Projects with fake stages that take no time."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def write_project(
    stages: Mapping[str, tuple[str, Sequence[str], str, Sequence[str]]], folders: Sequence[str] = ("rulka",)
) -> None:
    """Makes the working directory a project.

    Args:
        stages: by name: code, outputs of other stages that it reads, its own output, and its parameter sections.
        folders: further packages to create.
    """
    graph = {
        name: {
            "cmd": f"python -m tasks.{name}",
            "deps": [*inputs, f"tasks/{name}.py"],
            "params": list(sections),
            "outs": [out],
        }
        for name, (_, inputs, out, sections) in stages.items()
    }
    for folder in ("tasks", "models", "data", *folders):
        Path(folder).mkdir(parents=True)
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": graph}, sort_keys=False))
    Path(".dvcignore").write_text("__pycache__/\n")
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    Path("tasks/__init__.py").touch()  # otherwise Rulka's own package `tasks` is imported first
    for name, (code, *_) in stages.items():
        Path(f"tasks/{name}.py").write_text(code)
