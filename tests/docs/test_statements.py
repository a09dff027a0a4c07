"""What pages state about settings, defaults and limits is what the code says, as far as it can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.params import Params, checked_params
from rulka.params.problems import _places
from tests.docs.test_pages import CODE, FENCE, INDENTED, PAGES, ROOT, ids, text_of

OF_TODAY = [page for page in PAGES if page.parent.name != "experiments"]
"""Pages of experiments show the settings of their commit."""
GONE = {"impala.pull_of"}
"""Named in an error message."""
FILES = (".py", ".parquet", ".json", ".jsonl", ".npz", ".npy", ".html", ".yaml", ".png")


# Keys -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", OF_TODAY, ids=ids)
def test_keys_of_parameters_are_there(page: Path) -> None:
    sections, code = "|".join(Params.model_fields), "\n".join(CODE.findall(text_of(page)))
    named = set(re.findall(rf"^\+?((?:{sections})\.[a-z_.]+)\b", code, re.MULTILINE))
    wrong = {key for key in named - GONE - set(_places(Params)) if not key.endswith(FILES)}
    assert wrong == set()


def blocks_of(page: Path) -> Iterator[dict[str, Any]]:
    """Yields the blocks of a page that are sections of `params.yaml`."""
    text = text_of(page)
    fenced = [re.sub(r"^```\w*\n|```$", "", match.group()) for match in FENCE.finditer(text)]
    for block in [*fenced, *INDENTED.findall(FENCE.sub("", text))]:
        try:
            found = yaml.safe_load(block)
        except yaml.YAMLError:
            continue
        if isinstance(found, dict) and set(found) <= set(Params.model_fields):
            yield found


@pytest.mark.parametrize("page", OF_TODAY, ids=ids)
def test_blocks_of_parameters_are_possible(page: Path) -> None:
    for block in blocks_of(page):
        checked_params(block, f"{page.name}: {block}")


@pytest.mark.parametrize("page", OF_TODAY, ids=ids)
def test_files_that_pages_name_are_there(page: Path) -> None:
    rooms = "rulka|models|tasks|flows|tests|benchmarks|presets|experiments|populations|deploy|examples"
    named = {
        code.rstrip("/")
        for code in CODE.findall(text_of(page))
        if re.fullmatch(rf"(?:{rooms})/[\w./-]*(?:/|\.py|\.yaml|\.npz)", code)
    }
    wrong = {name for name in named if not (ROOT / name).exists() and not re.search(r"xyz|ID\.yaml", name)}
    # A generated or promised file of `deploy/`, and presets that people add, are said to be theirs.
    assert wrong - {"deploy/notify.yaml"} == set()
