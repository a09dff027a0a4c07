"""Machine-checked rules about the repository itself."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import grimp
import pytest
import yaml
from pathspec import GitIgnoreSpec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rulka.agents.params import ALGORITHMS
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import Section
from rulka.machine.errors import UserError
from rulka.operations import doctor
from rulka.operations.doctor import State
from rulka.params import Params, read_params, read_sections
from rulka.params.of_stages import READS, check_listed, params_of_stage
from rulka.stages import folders
from rulka.stages.graph import MAIN_SECTION, SECTIONS_SUFFIX, ignored_by_dvc, read_graph, sections_of_stage
from rulka.tracks.params import TrackParams
from rulka.training.agent_run import SECTIONS as SECTIONS_OF_TRAINING

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "rulka", "models")
STAGES = ("races", "capture", "pretrain", "clone", "transfer", "train", "evaluate")
SHIPPED_WEIGHTS = "rulka/shipped/weights.safetensors"
BINARY = (".gbx", ".npz", ".png", ".webp", ".mp4", ".safetensors")
MAX_FILE_BYTES = 400_000
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git repository")

GRAPH = read_graph(ROOT / "dvc.yaml")
SHIPPED = read_sections(ROOT / "params.yaml")


@cache
def tracked_files() -> list[Path]:
    """Returns the files that git tracks, or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in answer.stdout.splitlines() if (ROOT / line).is_file()]


def own_sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


# Imports of stages ----------------------------------------------------------------------------------------------------


IMPORTS = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
"""Import graph, including imports inside functions, and those of learners and actors, which sections name."""
for section in ALGORITHMS.values():
    for name in (section.LEARNER, section.ACTOR):
        IMPORTS.add_import(importer="rulka.agents.algorithms", imported=name.partition(":")[0])


def module_file(module: str) -> str:
    base = module.replace(".", "/")
    return f"{base}.py" if (ROOT / f"{base}.py").is_file() else f"{base}/__init__.py"


DECIDES_NOTHING, WITHOUT_STAGE = (
    GitIgnoreSpec.from_lines(part.splitlines())
    for part in (ROOT / ".dvcignore").read_text().split("# No stage imports these.\n")
)
"""Two parts of `.dvcignore`: imported modules that do not affect a stage's result, and modules no stage imports."""


SETTINGS = {"models/encoders/config.py", "models/fusion_config.py"}
"""Further modules of settings classes: those of networks, which lie beside the network code."""


def is_settings(name: str) -> bool:
    return name.endswith(SECTIONS_SUFFIX) or name in SETTINGS


@cache
def reached_files(stage: str, *, is_whole: bool = False) -> set[str]:
    """Returns our own files that a stage imports, transitively.

    Unless `is_whole`, excludes modules that do not affect results, settings, and modules imported only by these.
    """
    todo, reached = [f"tasks.{stage}"], set[str]()
    while todo:
        module = todo.pop()
        file = module_file(module)
        # Settings include sections that the stage may not read; see the test of dependencies.
        if file in reached or (not is_whole and (DECIDES_NOTHING.match_file(file) or is_settings(file))):
            continue
        reached.add(file)
        todo += [*IMPORTS.find_modules_directly_imported_by(module), *filter(None, [module.rpartition(".")[0]])]
    return reached


def code_dependencies(stage: str) -> list[str]:
    """Returns a stage's dependencies on our own code, without data inside a package, such as the bundled laps."""
    own = [path for path in GRAPH[stage]["deps"] if path.split("/")[0] in PACKAGES]
    return [path for path in own if path.endswith(".py") or any((ROOT / path).rglob("*.py"))]


def covers(dependency: str, file: str) -> bool:
    return file == dependency or file.startswith(f"{dependency}/")


def test_the_graph_has_the_seven_stages_in_running_order() -> None:
    assert tuple(GRAPH) == STAGES
    made: set[str] = {"data/recordings", "data/takeovers"}
    for stage in STAGES:
        assert {path for path in GRAPH[stage]["deps"] if path.startswith("data/")} <= made
        made |= set(GRAPH[stage]["outs"])


@pytest.mark.parametrize("stage", STAGES)
def test_dependencies_cover_the_imports_and_no_more(stage: str) -> None:
    dependencies = code_dependencies(stage)
    missing = [file for file in reached_files(stage) if not any(covers(path, file) for path in dependencies)]
    assert not sorted(missing), f"add these to deps of {stage} in dvc.yaml, or to .dvcignore with the reason"
    imported = reached_files(stage, is_whole=True)  # schedules reach a training as values of parameters
    idle = [path for path in code_dependencies(stage) if not any(covers(path, file) for file in imported)]
    assert not idle, f"remove these from deps of {stage} in dvc.yaml"
    # DVC sees defaults of keys that `params.yaml` omits only through the code.
    classes = set().union(
        *(sections_of(Params.model_fields[name].annotation) for name in sections_of_stage(GRAPH[stage], SHIPPED))
    )
    bases = {base for each in classes for base in each.mro() if base.__module__.split(".")[0] in PACKAGES}
    files = {f"{base.__module__.replace('.', '/')}.py" for base in bases - {Section}}
    dependencies = code_dependencies(stage)
    assert not sorted(file for file in files if not any(covers(path, file) for path in dependencies))
    assert {path for path in dependencies if is_settings(path)} <= files


def test_folders_among_dependencies_hold_only_what_some_stage_imports() -> None:
    """Otherwise a change to an unrelated module, such as a command, would invalidate a stage."""
    imported = set().union(*map(reached_files, STAGES))
    code = {path for stage in STAGES for path in code_dependencies(stage) if not path.endswith(".py")}
    files = {file.relative_to(ROOT).as_posix() for folder in code for file in (ROOT / folder).rglob("*.py")}
    idle = sorted(file for file in files - imported if not is_settings(file) and not ignored_by_dvc().match_file(file))
    assert not idle, "list these in .dvcignore, at its end"


def test_what_no_stage_imports_is_imported_by_none() -> None:
    """DVC would miss changes to a listed module that affects a result."""
    imported = set().union(*(reached_files(stage, is_whole=True) for stage in STAGES))
    assert sorted(file for file in imported if WITHOUT_STAGE.match_file(file)) == []


def test_what_dvc_ignores_is_there() -> None:
    lines = [line for line in (ROOT / ".dvcignore").read_text().splitlines() if line.startswith("/")]
    assert len(lines) > 20
    assert [line for line in lines if not any(ROOT.glob(line.strip("/")))] == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_knows_what_dvc_has_to_compare(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge may drop a line of `dvc.yaml`: DVC would take no notice of a change there any more."""
    entry, known = GRAPH[stage], {each if isinstance(each, str) else each.as_posix() for each in READS[stage]}
    data = {path for path in entry["deps"] if path.startswith("data/")}
    assert known == {*data, *(name for name in entry["params"] if name not in ALGORITHMS)}
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    params = params_of_stage(stage)
    for dropped in sorted(known):
        left = {name: [each for each in entry[name] if each != dropped] for name in ("deps", "params")}
        Path("dvc.yaml").write_text(yaml.safe_dump({"stages": {stage: {**entry, **left}}}))
        with pytest.raises(UserError, match=re.escape(f"the stage {stage} reads {dropped}, which dvc.yaml")) as refused:
            check_listed(stage, params)
        assert f"`{'deps' if dropped in data else 'params'}`" in refused.value.hint
    with pytest.raises(UserError, match="does not list"):
        params_of_stage(stage)
    assert doctor.findings_of("params.yaml", doctor.parameters)[0].state is State.WRONG


@pytest.mark.parametrize("stage", STAGES)
def test_data_folders_are_those_the_stage_names(stage: str) -> None:
    """A stage takes its folders from `rulka.stages.folders` and hard-codes none."""
    in_data = {name: path.as_posix() for name, path in vars(folders).items() if isinstance(path, Path)}
    nodes = list(nodes_of(ROOT / "tasks" / f"{stage}.py"))
    named = {in_data[node.id] for node in nodes if isinstance(node, ast.Name) and node.id in in_data}
    named = {path for path in named if path.startswith("data/")}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert not [text for text in texts if text in in_data.values()]
    listed = {path for path in GRAPH[stage]["deps"] if path.startswith("data/")} | set(GRAPH[stage]["outs"])
    assert named == listed


TRAINING = (
    "rulka/training/agent_run.py",
    "rulka/training/race_environment.py",
    "rulka/training/environment.py",
    "tasks/train.py",
)


def sections_read_in(files: Iterable[Path]) -> set[str]:
    """Returns the names X of all `params.X`, `own.X` and `self._params.X`."""
    attributes = [node for file in files for node in nodes_of(file) if isinstance(node, ast.Attribute)]
    whose = {"params", "own", "_params"}
    return {each.attr for each in attributes if getattr(each.value, "id", getattr(each.value, "attr", None)) in whose}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_the_sections_that_dvc_compares(stage: str) -> None:
    """A stage receives all parameters and passes them only to its own functions, so that its reads are visible."""
    file = ROOT / "tasks" / f"{stage}.py"
    assert GRAPH[stage]["cmd"] == f"python -m tasks.{stage}"
    listed = set(sections_of_stage(GRAPH[stage], SHIPPED))
    if stage == "train":  # it passes them to its runs
        read = sections_read_in(ROOT / name for name in TRAINING) & set(Params.model_fields)  # agents have `params` too
        assert read <= set(SECTIONS_OF_TRAINING)
        assert listed == {*SECTIONS_OF_TRAINING, *(name for name in GRAPH[stage]["params"] if name in ALGORITHMS)}
        assert MAIN_SECTION in GRAPH[stage]["params"], "whatever algorithm is trained, DVC compares its section"
        return
    assert sections_read_in([file]) == listed
    own = {node.name for node in nodes_of(file) if isinstance(node, ast.FunctionDef)} | {"sections_of"}
    for call in (node for node in nodes_of(file) if isinstance(node, ast.Call)):
        if any(isinstance(each, ast.Name) and each.id == "params" for each in call.args):
            assert ast.unparse(call.func) in own


# Parameters -----------------------------------------------------------------------------------------------------------


def sections_of(annotation: Any) -> set[type[BaseModel]]:
    """Returns every section in an annotation, recursively."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}.union(*(sections_of(field.annotation) for field in annotation.model_fields.values()))
    return set().union(*map(sections_of, get_args(annotation)))


SECTIONS = sorted(sections_of(Params), key=lambda each: each.__name__)


def fields_of_all() -> Iterator[tuple[str, FieldInfo]]:
    for section in SECTIONS:
        for name, field in section.model_fields.items():
            yield f"{section.__name__}.{name}", field


WITHOUT_DEFAULT = {
    "ArchitectureSource.config",
    "BackboneConfig.source",
    "CampaignTracksParams.slugs",
    "FilePairsParams.path",
    "FolderSource.path",
    "HubSource.id",
    "GeneratedTracksParams.count",
    "PartNormalisationParams.mean",
    "PartNormalisationParams.part",
    "PartNormalisationParams.std",
    "Schedule.interpolation",
}
"""Required keys: no default would suit most users."""


def test_every_parameter_has_a_default_and_is_described() -> None:
    assert len(SECTIONS) > 50
    assert {name for name, field in fields_of_all() if field.is_required()} == WITHOUT_DEFAULT
    assert [name for name, field in fields_of_all() if not field.description] == []


def test_defaults_are_valid_and_the_file_says_them_alone() -> None:
    """Otherwise a section's defaults would depend on whether any of its keys is set."""
    assert Params.model_validate(Params().model_dump(mode="json")) == Params()
    for section in SECTIONS:
        for name, field in section.model_fields.items():
            default = field.get_default(call_default_factory=True, validated_data={})
            if isinstance(default, BaseModel) and not isinstance(default, Schedule):
                assert default == type(default)(), f"{section.__name__}.{name}"
        if not any(field.is_required() for field in section.model_fields.values()):
            assert section.model_validate(section().model_dump(mode="json")) == section()
    # Sections in lower layers, which cannot inherit from `Section`, repeat its model_config.
    assert [each.__name__ for each in SECTIONS if each.model_config != Section.model_config] == []
    # params.yaml holds defaults only; name any exception here, with the reason.
    assert read_params(ROOT / "params.yaml") == Params()


def test_the_parameter_file_is_a_page_and_has_every_section_that_dvc_looks_at() -> None:
    lines = (ROOT / "params.yaml").read_text().splitlines()
    keys = [line for line in lines if re.match(r"\s*\w+:\s*\S", line) and not line.lstrip().startswith("#")]
    assert len(keys) <= 120
    sections = read_sections(ROOT / "params.yaml")
    assert set(Params.model_fields) ^ set(sections) <= set(ALGORITHMS), "a preset brings the section of another"
    assert set().union(*(sections_of_stage(GRAPH[stage], sections) for stage in STAGES)) <= set(sections)


def reads(node: ast.AST) -> Iterator[str]:
    """Yields the names of all attributes that code reads, except in checks of impossible combinations."""
    if isinstance(node, ast.FunctionDef) and "impossible" in node.name:
        return
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        yield from reads(child)


def test_every_parameter_is_read() -> None:
    """Reads count as attribute accesses outside the checks of combinations.

    An attribute of the same name elsewhere can hide an unread key; basedpyright finds misspelt reads.
    """
    files = (file for file in own_sources() if file.name != "sections.py")
    read = {name for file in files for name in reads(ast.parse(file.read_text(encoding="utf-8")))}
    unread = {
        f"{section.__name__}.{name}"
        for section in SECTIONS
        if not issubclass(section, TrackParams)  # its keys are the arguments of `generate_track`
        for name in section.model_fields
        if name not in read and name not in ALGORITHMS  # looked up by the algorithm's name
    }
    assert sorted(unread) == []


# Algorithms -----------------------------------------------------------------------------------------------------------


def is_compared(node: ast.AST) -> bool:
    """True if a node compares something with an algorithm's name, or has one as a dictionary key."""
    if isinstance(node, ast.Compare):
        parts: list[ast.AST] = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        parts = [key for key in node.keys if key is not None]
    elif isinstance(node, ast.MatchValue):
        parts = [node.value]
    else:
        return False
    inside = [inner for part in parts for inner in (part.elts if isinstance(part, ast.Tuple | ast.List) else [part])]
    return any(isinstance(each, ast.Constant) and each.value in ALGORITHMS for each in inside)


def test_only_the_table_tells_algorithms_apart_by_name() -> None:
    table, shapes = (ROOT / "rulka" / "agents" / name for name in ("params.py", "algorithms.py"))
    found = {
        f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for file in own_sources()
        for node in nodes_of(file)
        if file not in (table, shapes) and is_compared(node)  # a clone's shape may be that of IQN's network
    }
    assert sorted(found) == []
    assert any(is_compared(node) for node in nodes_of(table))


# Files ----------------------------------------------------------------------------------------------------------------


@needs_git
def test_models_hold_only_code_and_data_holds_none() -> None:
    files = [path.relative_to(ROOT) for path in tracked_files()]
    assert [str(path) for path in files if path.parts[0] == "models" and path.suffix != ".py"] == []
    assert [str(path) for path in files if path.parts[0] == "data" and path.suffix == ".py"] == []


@needs_git
def test_dvc_finds_its_stages_and_what_is_added_to_the_data_folder() -> None:
    """Otherwise `dvc status` and `dvc push` skip it, and `dvc gc` removes it from the cache."""
    from dvc.repo import Repo

    with Repo(str(ROOT)) as repo:
        ignored = [name for name in ("data/", "data/agents.dvc", "data/recordings.dvc") if repo.scm.is_ignored(name)]
        assert ignored == []
        assert repo.scm.is_ignored("data/agents/")
        assert {stage.addressing for stage in repo.index.stages} >= set(STAGES), "DVC understands dvc.yaml"


@needs_git
def test_no_large_files() -> None:
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked_files()}
    assert large.pop(SHIPPED_WEIGHTS) <= 2_500_000, "the driver in the box is part of the package"
    assert {name: size for name, size in large.items() if size > MAX_FILE_BYTES} == {}


@needs_git
def test_no_paths_of_one_machine_and_no_addresses_of_package_registries() -> None:
    machine = re.compile(r"(?<![\w.])/(home|root|work|Users)/\w|(?<!\w)[A-Z]:\\Users")
    table = re.compile(
        r"(index-url|extra-index|find-links)[ =]|//(pypi|files)\.(org|pythonhosted)|^(source|table) = .*http"
    )
    found = []
    for path in tracked_files():
        if path == Path(__file__).resolve() or path.suffix.lower() in BINARY:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if machine.search(line) or table.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip():.100}")
    assert found == []
