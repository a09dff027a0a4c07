"""The machine: Python and packages, where networks run, the cache of kernels, memory."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from rulka.doctor.finding import Finding, State, named

PYTHONS = ("3.11", "3.12")
CONSTRAINTS_FILE = Path("constraints.txt")
KERNEL_MODULES = ("rulka.simulator.physics", "rulka.simulator.render_kernels")
"""What the first race of a machine would compile."""
SHARED_MEMORY = Path("/dev/shm")
MIN_MEMORY_GB = 6.0
MIN_SHARED_MEMORY_MB = 256.0
"""Training as shipped takes a tenth of it; Docker gives a container 64 MB."""


def python() -> Finding:
    """Looks whether this is a Python that the project was tested with."""
    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found in PYTHONS:
        return Finding("python", State.OK, f"{found}, {sys.executable}")
    return Finding("python", State.WRONG, f"{found}, {sys.executable}", f"make a new .venv with {' or '.join(PYTHONS)}")


def packages() -> Finding:
    """Compares what is installed with the pins of constraints.txt.

    What the project itself asks for is wrong in another version; of anything else that is a note.
    """
    try:
        asked = {_key(line) for line in requires("rulka") or () if "extra ==" not in line}
    except PackageNotFoundError:
        return Finding("packages", State.WRONG, "rulka is not installed in this Python", "run `make setup`")
    installed = {_key(each.name): each.version.partition("+")[0] for each in distributions() if each.name}
    if missing := sorted(asked - installed.keys()):
        return Finding("packages", State.WRONG, f"not installed: {named(missing)}", "run `make setup`")
    if not CONSTRAINTS_FILE.is_file():
        return Finding("packages", State.NOTE, f"there is no {CONSTRAINTS_FILE} here to compare versions with")
    pins = _pins()
    others = {name: installed[name] for name, pin in pins.items() if installed.get(name, pin) != pin}
    if not others:
        return Finding("packages", State.OK, f"{len(pins.keys() & installed.keys())} as {CONSTRAINTS_FILE} pins them")
    state = State.WRONG if asked & others.keys() else State.NOTE
    differing = [f"{name} {others[name]} instead of {pins[name]}" for name in sorted(others, key=_first(asked))]
    return Finding("packages", state, named(differing), "run `make setup` in a new .venv, or pin what you have tested")


def _first(asked: set[str]) -> Any:
    return lambda name: (name not in asked, name)


def _key(requirement: str) -> str:
    """Returns the name that a requirement begins with, as all spellings of it are compared."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def _pins() -> dict[str, str]:
    lines = CONSTRAINTS_FILE.read_text(encoding="utf-8").splitlines()
    return {_key(name): pin.strip() for name, equals, pin in (line.partition("==") for line in lines) if equals}


def compute() -> Finding:
    """Looks whether what computes can be imported."""
    try:
        for name in ("torch", "numba"):
            importlib.import_module(name)
    except (ImportError, OSError) as error:
        return Finding("compute", State.WRONG, str(error), "run `make setup` in a new .venv")
    return Finding("compute", State.OK, f"{os.cpu_count()} cores")


def device() -> Finding:
    """Says where networks run; a GPU that is there and cannot be used ends no run, unless it was asked for."""
    try:
        chosen = importlib.import_module("rulka.device").choose_device()
    except (ImportError, OSError) as error:
        return Finding("device", State.UNKNOWN, f"not looked at: torch cannot be imported: {error}")
    return Finding("device", State.NOTE if chosen.problem else State.OK, f"{chosen.device}: {chosen.why}")


def kernels() -> Finding:
    """Looks whether the machine code of the simulator can be kept, and whether it lies there."""
    try:
        modules = [importlib.import_module(name) for name in KERNEL_MODULES]
        is_cached = importlib.import_module("rulka.simulator.compiling").is_cached
    except ImportError as error:
        return Finding("kernels", State.UNKNOWN, f"not looked at: numba cannot be imported: {error}")
    except RuntimeError as error:  # numba's, where no folder of its own can be written
        return Finding("kernels", State.WRONG, f"they cannot be kept: {error}", _CACHE_ELSEWHERE)
    found = [kernel for module in modules for kernel in _kernels_of(module)]
    folders = sorted({Path(kernel.stats.cache_path) for kernel in found})
    if closed := [folder for folder in folders if folder.exists() and not os.access(folder, os.W_OK)]:
        return Finding("kernels", State.WRONG, f"{closed[0]} is not writable: each start compiles", _CACHE_ELSEWHERE)
    size_mb = sum(file.stat().st_size for folder in folders for file in folder.glob("*.nb[ic]")) / 1e6
    missing = [kernel for kernel in found if not is_cached(kernel)]
    where = f"{size_mb:.0f} MB in {os.path.commonpath(folders)}"
    if missing:
        text = f"{len(missing)} of {len(found)} are not compiled yet: the first race takes some 20 s more; {where}"
        return Finding("kernels", State.NOTE, text)
    return Finding("kernels", State.OK, f"compiled; {where}")


_CACHE_ELSEWHERE = "set NUMBA_CACHE_DIR to a folder that can be written"


def _kernels_of(module: ModuleType) -> list[Any]:
    """Returns the kernels that a module defines and Python calls."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    return [value for value in own if getattr(getattr(value, "stats", None), "cache_path", None)]


def memory() -> Finding:
    """Looks whether a run fits into what is free."""
    free_gb = psutil.virtual_memory().available / 1e9
    text = f"{free_gb:.0f} GB free"
    if free_gb >= MIN_MEMORY_GB:
        return Finding("memory", State.OK, text)
    return Finding("memory", State.WRONG, f"{text}, a run takes up to {MIN_MEMORY_GB:.0f}", "end something else first")


def shared_memory() -> Finding:
    """Looks at what collectors and learner share; training itself says to the byte what it needs."""
    if sys.platform != "linux":
        return Finding("shared memory", State.OK, "no file system of its own on this system")
    room = shutil.disk_usage(SHARED_MEMORY)
    text = f"{room.free / 1e6:.0f} of {room.total / 1e6:.0f} MB free in {SHARED_MEMORY}"
    if room.free >= MIN_SHARED_MEMORY_MB * 1e6:
        return Finding("shared memory", State.OK, text)
    hint = "end other runs; start a container with --shm-size=1g, elsewhere `mount -o remount,size=1G /dev/shm`"
    return Finding("shared memory", State.WRONG, text, hint)
