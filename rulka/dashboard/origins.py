"""What each stage read and made, as DVC recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rulka.graph import CODE_FOLDERS, PARAMS_FILE, read_graph, read_lock

HASH_DIGITS = 8


class Used(NamedTuple):
    """A file or folder that a stage read or wrote, as DVC recorded it.

    Attributes:
        path: from the root of the project.
        digest: beginning of its MD5.
        size: bytes.
        maker: the stage that writes it; empty where none does.
        is_same: whether it is what that stage made last.
    """

    path: str
    digest: str
    size: int
    maker: str
    is_same: bool


class Link(NamedTuple):
    """One stage in the chain of results.

    Attributes:
        stage: its name.
        read: data that went in.
        made: what came out.
        sections: names of the parameter sections that it used.
        num_code: files and folders of code that decide it.
    """

    stage: str
    read: tuple[Used, ...]
    made: tuple[Used, ...]
    sections: tuple[str, ...]
    num_code: int


def chain() -> list[Link]:
    """Returns what DVC has recorded of each stage that ran, in the order of `dvc.yaml`.

    Raises:
        UserError: if there is no `dvc.yaml`, or `dvc.lock` is damaged.
    """
    lock = read_lock()
    made = {out["path"]: (name, out.get("md5", "")) for name, entry in lock.items() for out in entry.get("outs", ())}
    return [_link(name, lock[name], made) for name in read_graph() if name in lock]


def _link(stage: str, entry: Mapping[str, Any], made: Mapping[str, tuple[str, str]]) -> Link:
    deps = entry.get("deps", ())
    data = [dep for dep in deps if dep["path"].split("/")[0] not in CODE_FOLDERS]
    sections = entry.get("params", {}).get(PARAMS_FILE.as_posix(), {})
    return Link(
        stage,
        tuple(_used(dep, made) for dep in data),
        tuple(_used(out, {}) for out in entry.get("outs", ())),
        tuple(sections),
        len(deps) - len(data),
    )


def _used(entry: Mapping[str, Any], made: Mapping[str, tuple[str, str]]) -> Used:
    digest = str(entry.get("md5", ""))
    maker, last = made.get(entry["path"], ("", digest))
    return Used(entry["path"], digest[:HASH_DIGITS], int(entry.get("size", 0)), maker, digest == last)
