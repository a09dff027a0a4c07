"""Machine code is kept under the name of all that it follows from."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit
from numba.core import event

from rulka.simulator import compiling
from rulka.simulator.compiling import (
    COMPILATION,
    CompilationNotice,
    cached_kernel,
    called_kernel,
    inlined_kernel,
)


class Two(NamedTuple):
    a: np.ndarray
    b: float


KERNELS = """
from rulka.simulator.compiling import cached_kernel
@cached_kernel
def outer(x):
    return x + 100.0
"""


def load_outer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads `outer` as a fresh process would."""
    path = folder / "kernels_of_a_test.py"
    if not path.exists():
        path.write_text(KERNELS)
    spec = importlib.util.spec_from_file_location("rulka.kernels_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rulka.kernels_of_a_test", module)
    spec.loader.exec_module(module)
    return module.outer


def test_a_kernel_is_cached_until_a_source_is_edited(tmp_path, monkeypatch) -> None:
    outer = load_outer(tmp_path, monkeypatch)
    assert outer(1.0) == 101.0
    assert not outer.stats.cache_hits
    again = load_outer(tmp_path, monkeypatch)
    assert again(1.0) == 101.0
    assert sum(again.stats.cache_hits.values()) == 1
    monkeypatch.setattr(
        compiling, "DIGEST", compiling.digest_of([*compiling.SOURCES, tmp_path / "kernels_of_a_test.py"])
    )
    edited = load_outer(tmp_path, monkeypatch)
    assert edited(1.0) == 101.0
    assert not edited.stats.cache_hits


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_damaged_cache_is_said_once_and_repaired(
    kind: str, left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a power cut leaves it, or a copy that was not finished: index and machine code."""
    load_outer(tmp_path, monkeypatch)(1.0)
    (file,) = tmp_path.rglob(f"*.{kind}")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(left * len(whole))])
    caplog.clear()
    assert load_outer(tmp_path, monkeypatch)(1.0) == 101.0
    assert caplog.text.count("damaged and removed") == 1
    again = load_outer(tmp_path, monkeypatch)
    assert again(1.0) == 101.0
    assert again.stats.cache_hits
    assert caplog.text.count("damaged and removed") == 1


def test_all_that_kernels_import_is_in_the_digest() -> None:
    """Constants and kernels alike; classes and functions that only Python calls are no part of machine code."""
    package = Path(compiling.__file__).parents[1]
    kernel_files = [file for file in package.rglob("*.py") if "_kernel\ndef " in file.read_text(encoding="utf-8")]
    assert len(kernel_files) > 5
    assert set(kernel_files) <= set(compiling.SOURCES)
    for file in kernel_files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rulka."):
                module = package.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
                text = module.read_text(encoding="utf-8") if module.exists() else ""
                names = [alias.name for alias in node.names]
                used = [name for name in names if name.isupper() or f"_kernel\ndef {name}(" in text]
                assert not used or module in compiling.SOURCES, (file.name, node.module, used)


def test_what_is_compiled_is_said_once_and_only_where_the_cache_lacks_it(tmp_path, monkeypatch, caplog) -> None:
    with event.install_listener(COMPILATION, CompilationNotice()):
        outer = load_outer(tmp_path, monkeypatch)
        outer(1.0)
        outer(1)
    told = [record for record in caplog.records if "compiling kernels" in record.message]
    assert 1 <= len(told) <= 2, "of two compilations one is told; the process's own listener may tell of it as well"
    caplog.clear()
    with event.install_listener(COMPILATION, CompilationNotice()):
        load_outer(tmp_path, monkeypatch)(1.0)
        njit(doubled)(2.0)
    assert not caplog.records


def test_arrays_keep_their_owners() -> None:
    numbers, row = np.arange(6.0).reshape(2, 3), np.zeros(3, np.float32)
    counts = sys.getrefcount(numbers), sys.getrefcount(row)
    for _ in range(1000):
        assert add_rows(Two(numbers, 10.0), row) == 12.0
    assert (sys.getrefcount(numbers), sys.getrefcount(row)) == counts
    assert row.tolist() == [13.0, 15.0, 17.0]


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
