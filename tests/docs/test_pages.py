"""Pages for people: links lead somewhere, on GitHub and in the site, and commands are those that there are."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.cli import COMMANDS, NOUNS, main
from rulka.contracts.problems import _places
from rulka.params import Params, checked_params

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PAGES_OF_WHAT_THERE_IS = [page for page in PAGES if page.name != "status.md"]
"""Status names commands that are missing, too."""
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^|\n)\n((?: {4}.*\n?)+)")
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?\)")
SECTION_IN_TEXT = re.compile(r"`(docs/[\w./-]+\.md)`")
OF_TODAY = [page for page in PAGES if page.parent.name != "experiments"]
"""Pages of experiments show the settings of their commit."""
GONE = {"impala.pull_of"}
"""Named in an error message."""
FILES = (".py", ".parquet", ".json", ".jsonl", ".npz", ".npy", ".html", ".yaml", ".png")
COMMAND = re.compile(r"(?<![\w./-])((?:\.venv/bin/)?rulka|python -m|make) (?=[\w\[-])(.*)")
PLACEHOLDER = re.compile(r"[A-Z_/]+|\.\.\.|\$\w+")


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors_of(page: Path) -> set[str]:
    """Returns what GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*?)\s*$", FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Links ----------------------------------------------------------------------------------------------------------------


def test_links_of_the_readme_lead_to_files_and_headings() -> None:
    """Links between pages of the site are checked as it is built: `test_site.py`."""
    wrong = []
    for target in LINK.findall(CODE.sub("", INDENTED.sub("\n", FENCE.sub("", text_of(README))))):
        path, _, anchor = target.partition("#")
        file = (ROOT / path).resolve() if path else README
        if not re.match(r"[a-z]+:", target) and (not file.is_file() or (anchor and anchor not in anchors_of(file))):
            wrong.append(target)
    assert wrong == []
    named = [name for page in PAGES for name in SECTION_IN_TEXT.findall(text_of(page))]
    assert [name for name in named if not (ROOT / name).is_file()] == []


# Commands -------------------------------------------------------------------------------------------------------------


def commands_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields every command of ours in the code of a page, by what it is called with and its words."""
    blocks = [*(match.group() for match in FENCE.finditer(text)), *INDENTED.findall(FENCE.sub("", text))]
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *CODE.findall(INDENTED.sub("\n", FENCE.sub("", text)))]:
        found = COMMAND.search(re.split(r"(?:^|\s)#", line)[0])
        if found:
            words = re.split(r"[;|&]| ──► ", found[2])[0].replace("[", " ").replace("]", " ")
            yield found[1].removeprefix(".venv/bin/"), shlex.split(words)


@cache
def options_of(command: str) -> set[str]:
    """Returns the options of a `rulka` command, as its help lists them."""
    said = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", ["rulka", *command.split(), "--help"])
        with pytest.raises(SystemExit):
            main()
    return set(re.findall(r"^\W*(?:-h, )?(--[a-z-]+)", said.getvalue(), re.MULTILINE))


@cache
def words_in_module(module: str) -> set[str]:
    """Returns every text in the code of a module, or of a package's `__main__`: its options are among them."""
    path = ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__main__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def wrong_with(program: str, words: list[str]) -> str:
    """Returns what is wrong with a command, empty for nothing."""
    name, options = words[0], {word.partition("=")[0] for word in words if word.startswith("--")}
    if program == "make":
        targets = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
        named = [word for word in words if "=" not in word]
        return "" if set(named) <= set(targets) else "there is no such target"
    if program == "python -m":
        if name.split(".")[0] not in ("benchmarks", "tasks", "rulka"):
            return ""
        try:
            unknown = options - words_in_module(name)
        except OSError:
            return "there is no such module"
        return f"has no option {unknown}" if unknown else ""
    return wrong_with_ours(words, options)


def wrong_with_ours(words: list[str], options: set[str]) -> str:
    """Returns what is wrong with a `rulka` command, empty for nothing."""
    noun = words[:1] if words[0] in NOUNS else []
    name = " ".join(words[: len(noun) + 1])
    if name.startswith("--"):
        return "" if name in ("--version", "--help", "--tyro-print-completion") else f"has no option {name}"
    if name not in COMMANDS:
        return "" if PLACEHOLDER.fullmatch(name) else "is no command"
    unknown = options - options_of(name)
    if unknown:
        return f"has no option {unknown}"
    if name == "preset" and len(words) > 1 and not PLACEHOLDER.fullmatch(words[1]):
        known = {*(file.stem for file in (ROOT / "presets").glob("*.yaml")), "list", "undo"}
        return "" if words[1] in known else "is no preset"
    if name == "experiment" and words[1:] and words[1].islower():
        return "" if (ROOT / words[1]).is_file() else "is no file of an experiment"
    return ""


@pytest.mark.parametrize("page", PAGES_OF_WHAT_THERE_IS, ids=ids)
def test_commands_and_their_options_are_there(page: Path) -> None:
    wrong = {
        f"{program} {' '.join(words)}": wrong_with(program, words) for program, words in commands_in(text_of(page))
    }
    assert {command: problem for command, problem in wrong.items() if problem} == {}


SOURCES = [file for room in ("rulka", "flows", "tasks") for file in sorted((ROOT / room).rglob("*.py"))]


def texts_of(file: Path) -> Iterator[str]:
    """Yields the texts in a module, docstrings too; what is put into one at run time stands there as X."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts_of_others = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts_of_others:
            yield node.value


def test_commands_that_messages_name_are_there() -> None:
    """A hint that names a command of another day helps nobody."""
    commands = [
        (file.name, program, words)
        for file in SOURCES
        for text in texts_of(file)
        for program, words in commands_in("\n".join(f"`{code}`" for code in CODE.findall(text)))
    ]
    wrong = {f"{name}: {program} {' '.join(words)}": wrong_with(program, words) for name, program, words in commands}
    assert {command: problem for command, problem in wrong.items() if problem} == {}
    assert len(commands) > 60


# Parameters -----------------------------------------------------------------------------------------------------------


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
