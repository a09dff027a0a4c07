"""The site of docs/: what is generated for it, and that it builds and needs nothing from outside."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rulka.params import Params
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_parameters_has_a_row_with_five_cells_for_each(site_pages: ModuleType) -> None:
    text = site_pages.page()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert "| `ppo.gamma` | number or schedule | 0 to 1 | `0.985` | Discount of one decision. |" in rows
    assert "| `encoder.width` (impala) | whole number | 1 to 64 | `2` | Factor on the channels 16, 32 and 32. |" in rows
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == list(Params.model_fields)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    answer = subprocess.run(
        # Not --quiet: a warning that is not said is none for --strict.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert answer.returncode == 0, answer.stderr
    return folder


def test_the_site_builds_and_needs_nothing_from_outside(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 25
    loaded = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*\bhref=["']?([^"'\s>]+)""")
    for page in pages:
        targets = [src or href for src, href in loaded.findall(page.read_text(encoding="utf-8"))]
        assert len(targets) > 3
        assert [name for name in targets if re.match(r"(?:[a-z]+:)?//", name)] == []
        assert [name for name in targets if not (page.parent / name).is_file()] == []
    assert json.loads((site / "params.schema.json").read_text())["title"] == "Rulka's params.yaml"
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
