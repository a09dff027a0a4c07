"""Machine code is kept under the name of all that it follows from, and arrays keep their owners while a kernel runs."""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit
from numba.core import event

from rulka.simulator import race_end
from rulka.simulator.compiling import (
    COMPILATION,
    CompilationNotice,
    cached_kernel,
    called_kernel,
    inlined_kernel,
)
from rulka.simulator.race_end import limit_array

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


class Two(NamedTuple):
    a: np.ndarray
    b: float


@pytest.fixture
def answer(tmp_path, monkeypatch) -> Callable[..., tuple[float, bool]]:
    """Calls `outer` as a fresh process would after an edit of another file; returns its result and if it was cached."""

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

    def run(old: str = "", new: str = "") -> tuple[float, bool]:
        load("parts_of_a_test", PARTS.replace(old, new) if old else PARTS)
        outer = load("outer_of_a_test", OUTER).outer
        return outer(1.0), sum(outer.stats.cache_hits.values()) > 0

    return run


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
