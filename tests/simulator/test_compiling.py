"""What makes compiling shorter leaves nothing behind, and the first use goes on whatever happens to its helper."""

import gc
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError
from numba.core.types.functions import BaseFunction

from rulka.simulator import first_use
from rulka.simulator.compiling import called_kernel, inlined_kernel
from rulka.simulator.first_use import compile_rendering, rendering_beside
from rulka.simulator.render import FrameRenderer, render_rgb
from rulka.simulator.rendering.frames import draw_frames
from rulka.simulator.scene import bake_scene

HOLDER = """
import fcntl, sys, time
note = open(sys.argv[1], "a+b")
fcntl.flock(note, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="no flock, so no helper")


@inlined_kernel
def first_of(numbers) -> float:
    return numbers[0]


@called_kernel
def second_of(numbers) -> float:
    return numbers[1]


@njit
def sum_of_two(numbers) -> float:
    return first_of(numbers) + second_of(numbers)


@pytest.fixture
def note(tmp_path, monkeypatch) -> Path:
    """Where the first use keeps its note in this test."""
    path = tmp_path / "cache" / "note"
    monkeypatch.setattr(first_use, "note_path", lambda: path)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return path


@pytest.fixture
def helped(tmp_path, monkeypatch, note) -> Callable[[], int]:
    """Replaces the helper by one that leaves a mark; returns how often it was started."""
    marks = tmp_path / "marks"
    monkeypatch.setattr(first_use, "HELPER", f"print('started', file=open({str(marks)!r}, 'a'))")
    return lambda: marks.read_text().count("started") if marks.exists() else 0


def test_inner_kernels_work_in_kernels_alone() -> None:
    numbers = np.array([2.0, 3.0])
    for _ in range(2):
        with pytest.raises(TypeError, match="only kernels can call"):
            first_of(numbers)
        assert sum_of_two(numbers) == 5.0


@pytest.mark.parametrize("is_collecting", [True, False])
def test_compiling_leaves_collector_and_numba_as_they_were(is_collecting: bool) -> None:
    seen, usual, was_collecting = [], BaseFunction.get_call_type, gc.isenabled()

    @njit
    def works(x):
        return x * 2.0 + 1.0

    @njit
    def fails(x):
        return x.no_such_thing

    try:
        (gc.enable if is_collecting else gc.disable)()
        assert works(1.5) == 4.0
        seen.append(gc.isenabled())
        with pytest.raises(TypingError):
            fails(1.5)
        seen.append(gc.isenabled())
    finally:
        (gc.enable if was_collecting else gc.disable)()
    assert seen == [is_collecting, is_collecting]
    assert BaseFunction.get_call_type is usual


def test_the_helper_compiles_what_everybody_calls(make_track) -> None:
    compile_rendering()
    scene, pose = bake_scene(make_track()), np.zeros((2, 12), np.float32)
    pose[:, 3:12] = np.eye(3, dtype=np.float32).ravel()
    camera = np.array([7.0, 3.0, 0.0, 1.0, 1.0], np.float32)
    FrameRenderer(pose, np.zeros(2, np.int64), scene, camera).render(np.zeros((2, 8, 8), np.uint8))
    render_rgb(scene, pose[0], 0, 16, 8, others=pose)
    assert len(draw_frames.signatures) == 1  # pyright: ignore[reportFunctionMemberAccess] numba's


@needs_locks
def test_the_helper_runs_once(note, helped) -> None:
    for _ in range(2):
        with rendering_beside():
            pass
    assert helped() == 1
    note.write_text("other sources")
    with rendering_beside():
        pass
    assert helped() == 2


@needs_locks
def test_of_many_at_once_one_starts_a_helper(note, helped) -> None:
    def begin() -> None:
        with rendering_beside():
            pass

    with ThreadPoolExecutor(4) as pool:
        for begun in [pool.submit(begin) for _ in range(4)]:
            begun.result()
    assert helped() == 1


@needs_locks
def test_a_helper_that_fails_is_tried_again(note, helped, monkeypatch) -> None:
    good = first_use.HELPER
    monkeypatch.setattr(first_use, "HELPER", good + "; raise SystemExit(1)")
    for _ in range(2):
        with rendering_beside():
            pass
    assert (helped(), note.read_bytes()) == (2, b"")


@needs_locks
def test_an_error_beside_the_helper_ends_it(note, monkeypatch) -> None:
    monkeypatch.setattr(first_use, "HELPER", "import time; time.sleep(60)")
    with pytest.raises(ZeroDivisionError), rendering_beside():
        raise ZeroDivisionError
    assert note.read_bytes() == b""


def test_one_processor_and_a_cache_that_cannot_be_written_need_no_helper(note, helped, monkeypatch) -> None:
    done = []
    note.parent.write_text("a file where the folder should be")
    with rendering_beside():
        done.append("not written")
    note.parent.unlink()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with rendering_beside():
        done.append("one processor")
    assert (done, helped(), note.exists()) == (["not written", "one processor"], 0, False)


@needs_locks
def test_a_killed_process_holds_nobody_up(note, helped) -> None:
    note.parent.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(note)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        with rendering_beside():
            pass
    assert helped() == 1
