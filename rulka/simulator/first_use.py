"""The first use with an empty kernel cache: rendering is compiled in another process beside everything else.

While the cache lacks the rendering kernel, whoever needs kernels first holds a lock on a file beside it, starts the
other process and compiles its own half; all others wait for the lock and then find every kernel in the cache. The lock
goes with the process that holds it, however that ends.

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

import numpy as np

from rulka.simulator.compiling import is_cached
from rulka.simulator.render import CAMERA_SIZE, POSE_SIZE, render_frames
from rulka.simulator.render_kernels import draw_frames
from rulka.simulator.scene import bake_scene
from rulka.tracks.generate import generate_track

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = "rendering_is_being_compiled"
HELPER = "from rulka.simulator.first_use import compile_rendering; compile_rendering()"


@contextmanager
def rendering_beside() -> Iterator[None]:
    """Compiles what draws in another process while the body compiles the rest, unless the cache has it already.

    The body may do anything; leaving it waits for the other process.
    """
    if is_cached(draw_frames) or (os.cpu_count() or 1) < 2:
        yield
        return
    with _locked(lock_path()) as is_locked:
        # Whoever held the lock before has compiled it in the meantime.
        if is_locked and not is_cached(draw_frames):
            with _helper():
                yield
        else:
            yield


def compile_rendering() -> None:
    """Brings the rendering kernel into the cache, by drawing no frames."""
    scene = bake_scene(generate_track(seed=0, length_m=200.0, width_m=16.0, max_slope=0.1, gate_spacing_m=100.0))
    poses, zones = np.zeros((0, POSE_SIZE), np.float32), np.zeros(0, np.int64)
    render_frames(poses, zones, scene, np.zeros(CAMERA_SIZE, np.float32), np.zeros((0, 1, 1), np.uint8))


def lock_path() -> Path:
    """Returns the file that is locked while rendering is compiled."""
    return Path(draw_frames.stats.cache_path) / LOCK  # pyright: ignore[reportFunctionMemberAccess] numba's


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Holds a lock on a file once nobody else does; False where it cannot be written or locked."""
    if fcntl is None:
        yield False
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError:
        yield False
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield True


@contextmanager
def _helper() -> Iterator[None]:
    """Runs `compile_rendering` in a process with the same modules; should none start, rendering is compiled later."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in sys.path)}
    silent = subprocess.DEVNULL
    try:
        helper = subprocess.Popen(
            [sys.executable, "-c", HELPER], env=environment, stdin=silent, stdout=silent, stderr=silent
        )
    except OSError:
        yield
        return
    try:
        yield
    except BaseException:
        helper.terminate()
        raise
    finally:
        helper.wait()
