"""Values written into `params.yaml`: no other line changes, and DVC writes the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides

from rulka.params import read_params, read_sections
from rulka.params.writer import with_values

PARAMS = Path(__file__).resolve().parents[2] / "params.yaml"
TEXT = PARAMS.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("override", "keys", "value"),
    [
        ("iqn.n_steps=5", ("iqn", "n_steps"), 5),
        ("network.iqn.guided=false", ("network", "iqn", "guided"), False),
        ("ppo.clip=null", ("ppo", "clip"), None),
    ],
)
def test_a_changed_value_is_one_changed_line(tmp_path: Path, override: str, keys: tuple[str, ...], value: Any) -> None:
    """By `dvc exp run -S` (DVC's `apply_overrides`), and by Rulka's commands."""
    file = tmp_path / "params.yaml"
    shutil.copy(PARAMS, file)
    apply_overrides(file, [override])
    written = file.read_text(encoding="utf-8")
    before, after = TEXT.splitlines(), written.splitlines()
    assert len(before) == len(after)
    changed = [line for old, line in zip(before, after, strict=True) if old != line]
    assert [line.split(":")[0].strip() for line in changed] == [keys[-1]]
    assert with_values(TEXT, {keys: value}) == written


@pytest.mark.parametrize(
    ("keys", "value", "line", "above"),
    [
        (("iqn", "kappa"), 0.1, "  kappa: 0.1", "iqn"),
        (("network", "iqn", "noisy_sigma"), 0.5, "    noisy_sigma: 0.5", "iqn"),
        (("races", "select", "device"), "keyboard", "  select: {device: keyboard}", "races"),
        (("iqn", "rate_of", "heads"), 0.5, None, ""),
        (("simulator", "physics", "rest_m"), 0.1, "  physics: {rest_m: 0.1}", "simulator"),
    ],
)
def test_a_key_that_is_not_there_is_added_at_the_beginning_of_its_section(
    tmp_path: Path, keys: tuple[str, ...], value: Any, line: str | None, above: str
) -> None:
    written = with_values(TEXT, {keys: value})
    (tmp_path / "params.yaml").write_text(written)
    found: Any = read_sections(tmp_path / "params.yaml")
    for key in keys:
        found = found[key]
    assert found == value
    before, after = TEXT.splitlines(), written.splitlines()
    if line is not None:
        assert line in after
        assert after[after.index(line) - 1].split(":")[0].strip() == above
        assert [each for each in before if each not in after and "{}" not in each] == []


def test_dvc_adds_it_to_the_same_section_in_the_same_layout(tmp_path: Path) -> None:
    """By `dvc exp run -S +iqn.kappa=0.1`: keys that the file lacks need a plus."""
    file = tmp_path / "params.yaml"
    shutil.copy(PARAMS, file)
    apply_overrides(file, ["+iqn.kappa=0.1", "+impala.forced_lag=3"])
    found = read_params(file)
    assert (found.iqn.kappa, found.impala.forced_lag) == (0.1, 3)
    file.write_text(with_values(TEXT, {("iqn", "kappa"): 0.1, ("impala", "forced_lag"): 3}))
    assert read_params(file) == found


EXAMPLE = """a:
  pairs:
  - - 0
    - 1.5    # of a pair

# about b
b:
  one: {x: 1}    # of one
  two:
  - 1

# the end
"""


@pytest.mark.parametrize("pairs", [((0.0, 2.0), (1.0, 3.0), (2.0, 4.0)), (), None])
def test_what_stands_behind_a_list_stays(tmp_path: Path, pairs: Any) -> None:
    text = with_values(EXAMPLE, {("a", "pairs"): pairs, ("b", "one"): {"x": [1, 2]}, ("b", "two"): []})
    assert "\n# about b\nb:\n  one: {x: [1, 2]} # of one\n  two: []" in text
    assert text.endswith("\n# the end\n")
    (tmp_path / "params.yaml").write_text(text)
    plain = [list(pair) for pair in pairs] if pairs is not None else None
    assert read_sections(tmp_path / "params.yaml") == {"a": {"pairs": plain}, "b": {"one": {"x": [1, 2]}, "two": []}}


@pytest.mark.parametrize("keys", [("b", "two", "x"), ("b", "one", "x", "y")])
def test_keys_inside_what_is_no_section_are_named(keys: tuple[str, ...]) -> None:
    with pytest.raises(KeyError, match=r"'" + r"\.".join(keys) + "'"):
        with_values(EXAMPLE, {keys: 1})
