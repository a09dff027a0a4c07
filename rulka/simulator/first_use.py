"""The first use with an empty kernel cache: rendering is compiled in another process beside everything else.

A file beside the cached rendering kernel says for which sources it was compiled. While it does not say the present
ones, whoever needs kernels first holds a lock on it, starts the other process and compiles its own half; all others
wait for the lock and then find every kernel in the cache. The lock goes with the process that holds it, however that
ends.

Nothing depends on this: a kernel that is not in the cache is compiled when it is called, as ever. That is what happens
where the cache cannot be written, where there is one processor, and on Windows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import llvmlite.binding
import numba
import numpy as np

from rulka.simulator.compiling import source_stamp
from rulka.simulator.render import CAMERA_SIZE, POSE_SIZE, render_frames
from rulka.simulator.rendering import frames
from rulka.simulator.scene import bake_scene
from rulka.tracks.generate import generate_track

try:
    import fcntl
except ImportError:
    fcntl = None

NOTE = "rendering_is_compiled"
HELPER = "from rulka.simulator.first_use import compile_rendering; compile_rendering()"


@contextmanager
def rendering_beside() -> Iterator[None]:
    """Compiles what draws in another process while the body compiles the rest, unless the cache has it all.

    The body may do anything; leaving it waits for the other process.
    """
    path = note_path()
    if _says(path) == _present() or (os.cpu_count() or 1) < 2:
        yield
        return
    with _locked(path) as note:
        if note is None or note.read() == _present():
            yield
            return
        with _helper() as helper:
            yield
        if helper is not None and helper.returncode == 0:
            note.truncate(0)
            note.write(_present())


def compile_rendering() -> None:
    """Brings the rendering kernel into the cache, by drawing no frames."""
    scene = bake_scene(generate_track(seed=0, length_m=200.0, width_m=16.0, max_slope=0.1, gate_spacing_m=100.0))
    poses, zones = np.zeros((0, POSE_SIZE), np.float32), np.zeros(0, np.int64)
    render_frames(poses, zones, scene, np.zeros(CAMERA_SIZE, np.float32), np.zeros((0, 1, 1), np.uint8))


def note_path() -> Path:
    """Returns where it is noted what the cached rendering kernel was compiled for."""
    return Path(frames.draw_frames.stats.cache_path) / NOTE  # pyright: ignore[reportFunctionMemberAccess] numba's


def _present() -> bytes:
    """Returns what the rendering kernel depends on: sources, numba and the processor, as numba's cache."""
    stamp = source_stamp((*frames.MODULES, frames))
    return f"{stamp:x} {numba.__version__} {sys.version} {llvmlite.binding.get_host_cpu_name()}".encode()


def _says(path: Path) -> bytes | None:
    """Returns what the note says, or None where there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO | None]:
    """Opens the note once nobody else holds it; None where it cannot be written or locked."""
    if fcntl is None:
        yield None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        note = path.open("a+b")
    except OSError:
        yield None
        return
    with note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.seek(0)
        yield note


@contextmanager
def _helper() -> Iterator[subprocess.Popen[bytes] | None]:
    """Runs `compile_rendering` in a process with the same modules; None where none can be started."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in sys.path)}
    try:
        helper = subprocess.Popen(
            [sys.executable, "-c", HELPER],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield None
        return
    try:
        yield helper
    except BaseException:
        helper.terminate()
        raise
    finally:
        helper.wait()
