"""Documentation of parameters: the JSON schema for editors, and the list for users."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rulka.agents.params import ALGORITHMS
from rulka.machine.errors import UserError
from rulka.params import read_sections, resolved
from rulka.params.presets import merge_overlay
from rulka.params.schema import Parameter, json_schema, parameters, parameters_about

ROOT = Path(__file__).parents[2]
FILE: dict[str, Any] = read_sections(ROOT / "params.yaml")
BASE: dict[str, Any] = resolved(FILE, "params.yaml")
PRESETS = sorted((ROOT / "presets").rglob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("preset", [None, *PRESETS], ids=lambda path: path.stem if path else "params")
def test_what_can_be_read_fits_the_schema(validator: jsonschema.Draft202012Validator, preset: Path | None) -> None:
    sections = merge_overlay(BASE, read_sections(preset), preset.name) if preset else BASE
    for each in (sections, read_sections(preset) if preset else FILE):
        assert [(list(error.path), error.message) for error in validator.iter_errors(each)] == []


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("ppo", "gamma", 1.5),  # a plain number instead of a schedule has the same bounds
        ("ppo", "learning_rate", 0.0),
        ("ppo", "gamma", {"interpolation": "cubic", "points": [[0, 1.0]]}),
        ("ppo", "gama", 0.9),
        ("train", "algorithm", "sac"),
        ("train", "num_collectors", "2"),
        ("encoder", "width", 2),  # a key of another kind
    ],
)
def test_what_cannot_does_not(
    validator: jsonschema.Draft202012Validator, section: str, key: str, value: object
) -> None:
    sections = copy.deepcopy(BASE)
    sections[section][key] = value
    assert not validator.is_valid(sections)


def found(key: str, **values: Any) -> Parameter:
    return next(each for each in parameters(FILE | values) if each.key == key)


def test_parameters_say_type_range_value_and_what_they_are() -> None:
    told = "number or schedule, 0 to 1: Discount of one decision."
    assert str(found("ppo.gamma")) == f"ppo.gamma = 0.985\n    {told}"
    changed = found("ppo.gamma", ppo={"gamma": 0.9})
    assert str(changed).startswith("ppo.gamma = 0.9 (default 0.985)\n")
    assert found("simulator.physics.gravity_mps2")[4:6] == ("29.43", "29.43"), "which the file leaves out"
    assert found("train.seed")[2:5] == ("whole number", "0 or more and less than 4,294,967,296", "1")
    assert found("train.max_cpu_minutes")[2:5] == ("number or null", "more than 0", "null")
    assert found("train.compared")[2:5] == ("list of choice", ", ".join(ALGORITHMS), "[iqn]")
    assert found("grpo.cut_worth")[2:5] == ("number", "", "-4.0")
    assert found("rewards.off_track")[3] == "at most 0"
    assert found("simulator.camera.pitch_deg")[3] == "more than -60 and less than 60"
    assert found("iqn.munchausen")[2:5] == ("section or null", "", "null")
    assert found("iqn.munchausen.alpha").value is None
    assert found("encoder")[2:6] == ("section", "kind: conv, impala, patches, backbone", None, None)


def test_values_are_those_that_the_file_resolves_to() -> None:
    chosen = {"encoder": {"kind": "impala", "width": 2, "adaptive_pool": 6, "spectral_norm": True}}
    pools = [each for each in parameters(FILE | chosen) if each.key == "encoder.adaptive_pool"]
    assert [(each.kind, each.value, each.default) for each in pools] == [("conv", None, "0"), ("impala", "6", "6")]
    # Every number of the resolved parameters, including defaults that the file omits.
    listed = {each.key: each.value for each in parameters(FILE) if each.value is not None}
    of_all = {each.key: each.value for each in parameters(BASE) if each.value is not None}
    assert {key: yaml.safe_load(value) for key, value in listed.items()} == {
        key: yaml.safe_load(value) for key, value in of_all.items()
    }
    assert len(listed) > 300


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("no_progres_s", "there is no parameter no_progres_s; did you mean race_end.no_progress_s?"),
        ("ppo.gama", "there is no parameter ppo.gama; did you mean ppo.gamma?"),
        ("race_en", "there is no parameter race_en; did you mean race_end?"),
        ("zzz", "there is no parameter zzz"),
    ],
)
def test_a_parameter_that_is_not_there_is_named(key: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parameters_about(key, BASE)
    assert str(error.value) == message
    assert error.value.hint == "`rulka params list` shows all."


def test_words_are_found_in_keys_and_descriptions() -> None:
    def keys(topic: str) -> list[str]:
        return [each.key for each in parameters_about(topic, BASE)]

    assert keys("no_progress_s") == ["race_end.no_progress_s"]
    assert keys("KL divergence")[0] == "pretrain.objective.kl_weight"
    assert "ppo.max_kl" in keys("kl")
    assert "pql.learning_rate" in keys("Adam")
    assert keys("ppo.gamma") == ["ppo.gamma"], "a key or a section is taken alone"
    assert all(f"{key}.".startswith("actions.") for key in keys("actions"))


def test_what_is_written_otherwise_is_not_changed() -> None:
    """7000 and 7000.0, or a point's 0 and 0.0, are the same value."""
    assert [str(each) for each in parameters(FILE) if each.is_changed] == []
    same = found("iqn.mini_race_ms", iqn={"mini_race_ms": 7000})
    assert str(same).startswith("iqn.mini_race_ms = 7000\n")
    assert found("iqn.mini_race_ms", iqn={"mini_race_ms": 7001}).is_changed
    assert found("transfer.agent", transfer={"agent": "mine"}).is_changed
