"""Machine code is kept under the name of all that it follows from; the first use goes on if its helper does not."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit
from numba.core import event

from rulka.simulator import first_use, race_end
from rulka.simulator.compiling import (
    COMPILATION,
    CompilationNotice,
    cached_kernel,
    called_kernel,
    inlined_kernel,
    is_cached,
)
from rulka.simulator.first_use import compile_rendering, rendering_beside
from rulka.simulator.race_end import limit_array
from rulka.simulator.render import FrameRenderer, render_rgb
from rulka.simulator.render_kernels import draw_frames
from rulka.simulator.scene import bake_scene

PARTS = """
from typing import NamedTuple
import numpy as np
from rulka.simulator.compiling import called_kernel, inlined_kernel
WEIGHTS = np.array([1.0, 2.0])
class Pair(NamedTuple):
    a: float
    b: float
@inlined_kernel
def third(x):
    return x + 100.0
@called_kernel
def half(x):
    return third(x) * 2.0
"""
OUTER = """
from rulka.parts_of_a_test import WEIGHTS, Pair, half
from rulka.simulator.compiling import cached_kernel
@cached_kernel
def outer(x):
    pair = Pair(x, 10.0)
    return half(pair.a) + WEIGHTS[1] - pair.b
"""
HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="no flock, so no helper")


class Two(NamedTuple):
    a: np.ndarray
    b: float


class FirstUse:
    """A first use in a cache of a test's own, with a helper that leaves marks in place of machine code."""

    def __init__(self, folder: Path) -> None:
        self.lock, self.marks, self.compiled = folder / "cache" / "lock", folder / "marks", folder / "compiled"

    @property
    def num_helpers(self) -> int:
        """How many helpers were started."""
        return self.marks.read_text().count("started") if self.marks.exists() else 0

    @property
    def helper(self) -> str:
        """The helper's program."""
        return f"print('started', file=open({str(self.marks)!r}, 'a')); open({str(self.compiled)!r}, 'w')"


@pytest.fixture
def first(tmp_path, monkeypatch) -> FirstUse:
    """Makes the rendering kernel one that the cache lacks until a helper has run."""
    use = FirstUse(tmp_path)
    monkeypatch.setattr(first_use, "lock_path", lambda: use.lock)
    monkeypatch.setattr(first_use, "is_cached", lambda _: use.compiled.exists())
    monkeypatch.setattr(first_use, "HELPER", use.helper)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return use


@pytest.fixture
def load_outer(tmp_path, monkeypatch) -> Callable[..., Any]:
    """Loads `outer` as a fresh process would after an edit of another file."""

    def load(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"rulka.{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, f"rulka.{name}", module)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        spec.loader.exec_module(module)
        sys.dont_write_bytecode = before
        return module

    def run(old: str = "", new: str = "") -> Any:
        load("parts_of_a_test", PARTS.replace(old, new) if old else PARTS)
        return load("outer_of_a_test", OUTER).outer

    return run


@pytest.fixture
def answer(load_outer) -> Callable[..., tuple[float, bool]]:
    """Loads and calls `outer`; returns its result and if it was cached."""

    def run(old: str = "", new: str = "") -> tuple[float, bool]:
        outer = load_outer(old, new)
        return outer(1.0), sum(outer.stats.cache_hits.values()) > 0

    return run


def test_a_kernel_is_cached_until_its_file_is_edited(load_outer) -> None:
    outer = load_outer()
    assert not is_cached(outer)
    outer(1.0)
    source, (index,) = Path(outer.py_func.__code__.co_filename), Path(outer.stats.cache_path).glob("*outer*.nbi")
    made_s = source.stat().st_mtime
    os.utime(index, (made_s + 1, made_s + 1))
    assert is_cached(outer)
    os.utime(source, (made_s + 2, made_s + 2))
    assert not is_cached(outer)
    index.unlink()
    os.utime(source, (made_s, made_s))
    assert not is_cached(outer)


def test_the_helper_compiles_what_everybody_calls(make_track) -> None:
    compile_rendering()
    scene, pose = bake_scene(make_track()), np.zeros((2, 12), np.float32)
    pose[:, 3:12] = np.eye(3, dtype=np.float32).ravel()
    camera = np.array([7.0, 3.0, 0.0, 1.0, 1.0], np.float32)
    FrameRenderer(pose, np.zeros(2, np.int64), scene, camera).render(np.zeros((2, 8, 8), np.uint8))
    render_rgb(scene, pose[0], 0, 16, 8, others=pose)
    assert len(draw_frames.signatures) == 1  # pyright: ignore[reportFunctionMemberAccess] numba's
    assert is_cached(draw_frames)


@needs_locks
def test_the_helper_runs_once(first) -> None:
    for _ in range(2):
        with rendering_beside():
            pass
    assert first.num_helpers == 1
    first.compiled.unlink()
    with rendering_beside():
        pass
    assert first.num_helpers == 2


@needs_locks
def test_of_many_at_once_one_starts_a_helper(first) -> None:
    def begin() -> None:
        with rendering_beside():
            pass

    with ThreadPoolExecutor(4) as pool:
        for begun in [pool.submit(begin) for _ in range(4)]:
            begun.result()
    assert first.num_helpers == 1


@needs_locks
def test_a_helper_that_fails_is_tried_again(first, monkeypatch) -> None:
    failing, _ = first.helper.split(";")
    monkeypatch.setattr(first_use, "HELPER", failing + "; raise SystemExit(1)")
    for _ in range(2):
        with rendering_beside():
            pass
    assert first.num_helpers == 2


@needs_locks
def test_an_error_beside_the_helper_ends_it(first, monkeypatch) -> None:
    monkeypatch.setattr(first_use, "HELPER", "import time; time.sleep(60)")
    with pytest.raises(ZeroDivisionError), rendering_beside():
        raise ZeroDivisionError
    assert not first.compiled.exists()


def test_one_processor_and_a_cache_that_cannot_be_written_need_no_helper(first, monkeypatch) -> None:
    done = []
    first.lock.parent.write_text("a file where the folder should be")
    with rendering_beside():
        done.append("not written")
    first.lock.parent.unlink()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with rendering_beside():
        done.append("one processor")
    assert (done, first.num_helpers, first.lock.exists()) == (["not written", "one processor"], 0, False)


@needs_locks
def test_a_killed_process_holds_nobody_up(first) -> None:
    first.lock.parent.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(first.lock)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        with rendering_beside():
            pass
    assert first.num_helpers == 1


def test_an_edited_part_in_another_file_is_compiled_anew(answer) -> None:
    """(1 + 100) * 2 + 2 - 10 = 194."""
    assert answer() == (194.0, False)
    assert answer() == (194.0, True)
    assert answer("x + 100.0", "x + 200.0") == (394.0, False), "the part of a part"
    assert answer("[1.0, 2.0]", "[1.0, 3.0]") == (195.0, False), "a constant"
    assert answer("a: float\n    b: float", "b: float\n    a: float") == (221.0, False), "(10 + 100) * 2 + 2 - 1"
    assert answer() == (194.0, True)


def test_what_is_compiled_is_said_once_and_only_where_the_cache_lacks_it(answer, caplog) -> None:
    with event.install_listener(COMPILATION, CompilationNotice()):
        for edit in ("x + 300.0", "x + 400.0"):
            answer("x + 100.0", edit)
    told = [record for record in caplog.records if "compiling kernels of the simulator" in record.message]
    assert 1 <= len(told) <= 2, "of two compilations one is told; the process's own listener may tell of it as well"
    caplog.clear()
    with event.install_listener(COMPILATION, CompilationNotice()):
        answer("x + 100.0", "x + 300.0")
        njit(doubled)(2.0)
    assert not caplog.records


def test_a_kernel_names_nothing_whose_changes_would_go_unseen() -> None:
    def reads_a_module(x: float) -> float:
        return x + race_end.RACING

    def calls_a_function(x: Any) -> Any:
        return limit_array(x, 600.0)

    for function in (reads_a_module, calls_a_function):
        with pytest.raises(TypeError, match="changes would go unseen"):
            cached_kernel(function)


def test_arrays_keep_their_owners() -> None:
    numbers, row = np.arange(6.0).reshape(2, 3), np.zeros(3, np.float32)
    counts = sys.getrefcount(numbers), sys.getrefcount(row)
    for _ in range(1000):
        assert add_rows(Two(numbers, 10.0), row) == 12.0
    assert (sys.getrefcount(numbers), sys.getrefcount(row)) == counts
    assert row.tolist() == [13.0, 15.0, 17.0]


def test_parts_of_kernels_are_functions_to_python() -> None:
    assert last(np.array([1.0, 2.0])) == 2.0
    assert doubled(3) == 6


@inlined_kernel
def last(row: np.ndarray) -> Any:
    return row[row.shape[0] - 1]


@called_kernel
def doubled(x: Any) -> Any:
    return x + x


@cached_kernel
def add_rows(two: Two, out: np.ndarray) -> float:
    """Writes the sum of both rows and a number."""
    numbers, more = two
    for k in range(out.shape[0]):
        out[k] = numbers[0, k] + numbers[1, k] + more
    return last(numbers[0]) + doubled(more) - more
