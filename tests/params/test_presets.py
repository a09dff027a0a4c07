"""Presets: each is valid with the repository's parameters, and an invalid result is never written."""

from __future__ import annotations

import difflib
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rulka.agents.params import ALGORITHMS
from rulka.contracts.schedule import Schedule
from rulka.machine.errors import UserError
from rulka.params import Params, read_params, read_sections, resolved
from rulka.params.presets import apply_preset, environment_params, known_presets, merge_overlay, undo_preset
from rulka.stages.folders import PRESETS_LOG

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def params_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parameter file, in the working directory beside the presets."""
    shutil.copytree(ROOT / "presets", tmp_path / "presets")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return Path("params.yaml")


def write(text: str) -> None:
    Path("presets/mine.yaml").write_text(text)


def keys_gone(before: list[str], after: list[str]) -> Iterator[str]:
    """Yields the keys of lines that are no longer there; items of a list are their key's."""
    key = ""
    for line in difflib.ndiff(before, after):
        if line.startswith(("  ", "- ")) and not line[2:].lstrip().startswith("- "):
            key = line[2:].split(":")[0].strip()
        if line.startswith("- "):
            yield key


@pytest.mark.parametrize("name", [file.stem for file in (ROOT / "presets").glob("*.yaml")])
def test_presets_fit_the_parameters_and_touch_no_line_of_other_keys(name: str, params_file: Path):
    params = read_params(params_file)
    before = params_file.read_text().splitlines()
    changes = apply_preset(name).changes
    assert changes
    assert read_params(params_file) != params
    text = params_file.read_bytes()
    assert apply_preset(name) == ([], []), "applied twice is applied once"
    assert set(read_sections(params_file)) == set(read_sections(ROOT / "params.yaml")), "keys are added inside sections"
    assert params_file.read_bytes() == text
    changed = {key for change in changes for key in change.partition(":")[0].split(".")}
    header, *after = params_file.read_text().splitlines()
    assert header == f"# params.yaml with preset {name}"
    empty = {section for section, keys in read_sections(ROOT / "params.yaml").items() if not keys}
    assert set(keys_gone(before, after)) <= changed | empty
    assert Counter(comments(before)) <= Counter(comments(after))
    assert len(undo_preset().changes) == len(changes)
    assert params_file.read_text().splitlines() == before


def test_the_last_of_two_presets_is_undone_first_and_to_the_byte(params_file: Path):
    odd = params_file.read_bytes().replace(b"learning_rate: 0.002", b"learning_rate:   2e-3   ").replace(b"\n", b"\r\n")
    assert b"2e-3   " in odd
    params_file.write_bytes(odd + b"# the end, without a new line")
    before = params_file.read_bytes()
    apply_preset("btr")
    between = params_file.read_bytes()
    changes = apply_preset("chunks").changes
    assert params_file.read_text().startswith("# params.yaml with preset btr, chunks\n")
    assert params_file.read_text().count("with preset") == 1
    undone = undo_preset()
    assert params_file.read_bytes() == between
    assert (len(undone.changes), undone.remarks) == (len(changes), [])
    undo_preset()
    assert params_file.read_bytes() == before
    with pytest.raises(UserError, match=r"no preset lies over .*params.yaml: its first line names none"):
        undo_preset()


@pytest.mark.parametrize("name", ["impala", "grpo", "dpo", "pql"])
def test_a_preset_brings_the_section_of_its_algorithm(name: str, params_file: Path):
    before = params_file.read_text()
    assert read_sections(params_file)[name] == {}
    applied = apply_preset(name)
    begins_alike = ["train.start_from_earlier: 0.5 -> 0.0"] if name in ("grpo", "dpo") else []
    assert applied.changes == [f"train.algorithm: ppo -> {name}", *begins_alike]
    comment, *remarks = applied.remarks
    assert f"docs/algorithms/{name}.md" in comment
    assert remarks == [f"params.yaml now shows what {name} sets in {name}"]
    params, defaults = read_params(params_file), Params()
    assert params == defaults.model_copy(update={"train": params.train}), "at its defaults"
    assert read_sections(params_file)[name] == read_sections(ROOT / f"presets/{name}.yaml")[name]
    for line in (ROOT / f"presets/{name}.yaml").read_text().split(f"\n{name}:\n")[1].splitlines():
        assert line in params_file.read_text().splitlines()
    undo_preset()
    assert params_file.read_text() == before


@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_changed_since_is_not_lost(params_file: Path, is_known: bool):
    """Nor is a preset undone that was applied elsewhere."""
    apply_preset("impala")
    if is_known:
        params_file.write_text(params_file.read_text().replace("forced_lag: 0 ", "forced_lag: 3 "))
    else:
        PRESETS_LOG.unlink()
    before = params_file.read_bytes()
    with pytest.raises(UserError, match=r"params.yaml is not as preset impala left it here") as refused:
        undo_preset()
    assert "git diff params.yaml" in refused.value.hint
    assert params_file.read_bytes() == before


def comments(lines: list[str]) -> list[str]:
    return [line[line.index("#") :] for line in lines if "#" in line]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("iqn:\n  n_stops: 5\n", UserError, "unknown key iqn.n_stops; did you mean n_steps?"),
        (
            "iqn:\n  num_quantiles: 7\n",
            UserError,
            r"^preset 'mine' does not fit .*params.yaml:\n  iqn: num_quantiles and [^\n]* even[^\n]*$",
        ),
        ("iqn: {n_steps: 1}\niqn: {n_steps: 2}\n", UserError, 'found duplicate key "iqn"'),
    ],
)
def test_bad_presets_change_nothing(params_file: Path, text: str, error: type, message: str):
    before = params_file.read_bytes()
    write(text)
    with pytest.raises(error, match=message):
        apply_preset("mine")
    assert params_file.read_bytes() == before


def test_unknown_names_are_refused(params_file: Path):
    with pytest.raises(
        UserError,
        match=r"no preset is called '../params'; .* holds a2c, btr, chunks, dpo, frames, fusion, generalist, grpo",
    ):
        apply_preset("../params")


@pytest.mark.parametrize(
    ("train", "remark"),
    [
        (
            "{algorithm: ppo, compared: [iqn]}",
            "2 of 3 changes act on IQN alone, which is trained for comparison only",
        ),
        ("{algorithm: ppo, compared: []}", "act on IQN alone, which is not trained: train.algorithm is ppo"),
        ("{algorithm: iqn, compared: []}", None),
    ],
)
def test_changes_that_do_not_act_on_it_are_named(params_file: Path, train: str, remark: str | None):
    write(f"train: {train}\n")
    apply_preset("mine")
    write("iqn: {n_steps: 5}\nnetwork: {iqn: {tau_embedding: 32}, float_hidden: 32}\n")
    found = apply_preset("mine").remarks
    assert [remark in line for line in found] == ([True] if remark else [])


def test_the_specified_agent_is_one_preset_at_any_budget(params_file: Path):
    """A smaller `train.max_env_steps` scales every schedule, and the experiment on it trains the same agent."""
    before = read_sections(params_file)
    remarks = apply_preset("reference").remarks
    assert "15 million decisions" in remarks[0], "said when it is set"
    params = read_params(params_file)
    assert params.train.algorithms == ("iqn",)
    schedules = [each for _, each in params.algorithms["iqn"] if isinstance(each, Schedule)]
    assert len([each for each in schedules if each.shares]) == 4
    assert all(each.shares or each.points == ((0, each.values[0]),) for each in schedules)
    preset = read_sections(ROOT / "presets/reference.yaml")
    file = read_sections(ROOT / "experiments/reference.yaml")
    shipped = merge_overlay(resolved(before, ""), file["overrides"], "")
    by_experiment = merge_overlay(shipped, file["variants"]["reference"], "")
    by_preset = merge_overlay(shipped, preset, "")
    assert by_preset["train"].pop("max_env_steps") == 15_000_000
    assert by_experiment["train"].pop("max_env_steps") == file["budget"]["env_steps"]
    assert by_experiment == by_preset


def test_presets_are_listed_with_what_they_are(params_file: Path):
    Path("presets/bare.yaml").write_text("iqn: {}\n")
    write("# IQN, but mine,\n# et al. 2024. And more\niqn: {n_steps: 5}\n")
    known = known_presets()
    assert (known["bare"], known["mine"]) == ("", "IQN, but mine, et al. 2024")
    assert apply_preset("mine").remarks[0] == "IQN, but mine, et al. 2024. And more"


ENVIRONMENTS = ROOT / "presets" / "environments"


@pytest.mark.parametrize("file", sorted(ENVIRONMENTS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_environments_fit_the_parameters(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    environment = file.relative_to(ENVIRONMENTS).with_suffix("").as_posix()
    params = environment_params(f"some.module:{environment}", {})
    assert (params.train.num_collectors, params.train.compared) == (0, ())
    assert {part for name in ALGORITHMS for part in dict(params.transfer.of(name)).values()} == {"fresh"}


def test_the_nearest_layer_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Outside a project, the package's parameters apply; the command line overrides all files."""
    monkeypatch.chdir(tmp_path)
    anything, cartpole = environment_params("Other-v0", {}), environment_params("CartPole-v1", {})
    assert (anything.train.max_env_steps, cartpole.train.max_env_steps) == (1_000_000, 100_000)
    assert anything.ppo.epochs != cartpole.ppo.epochs
    given = environment_params("CartPole-v1", {"train": {"max_env_steps": 7}, "ppo": {"epochs": 3}})
    assert (given.train.max_env_steps, given.ppo.epochs) == (7, 3)
    assert given.ppo.gamma == cartpole.ppo.gamma
    Path("params.yaml").write_text("{train: {seed: 77}}\n")  # the user's own, without presets beside it
    own = environment_params("CartPole-v1", {})
    assert (own.train.seed, own.train.max_env_steps) == (77, 100_000)
    Path("presets/environments").mkdir(parents=True)
    Path("presets/environments/CartPole-v1.yaml").write_text("{train: {max_env_steps: 5}}\n")
    assert environment_params("CartPole-v1", {}).train.max_env_steps == 5
