"""Presets: each fits the parameters of the repository, and nothing is written that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rulka.params import ParamsError, read_params
from rulka.presets import PresetError, apply_preset, preset_names

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def params_file(tmp_path: Path) -> Path:
    return copied(ROOT / "params.yaml", tmp_path / "params.yaml")


def copied(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes())
    return target


def write(folder: Path, text: str) -> Path:
    (folder / "mine.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("name", preset_names(ROOT / "presets"))
def test_presets_fit_the_parameters(name: str, params_file: Path):
    before = read_params(params_file)
    changes = apply_preset(name, params_file, ROOT / "presets")
    assert changes
    after = read_params(params_file)
    assert after != before
    assert apply_preset(name, params_file, ROOT / "presets") == [], "applied twice is applied once"
    assert read_params(params_file) == after


def test_btr_has_all_extras(params_file: Path):
    apply_preset("btr", params_file, ROOT / "presets")
    params = read_params(params_file)
    body = params.network.iqn
    assert (body.encoder, body.adaptive_pool, body.spectral_norm, body.layer_norm) == ("impala", 6, True, True)
    assert body.noisy_sigma == 0.5
    assert params.iqn.munchausen is not None
    assert params.iqn.prioritised is not None
    assert params.ppo == read_params(ROOT / "params.yaml").ppo, "what it does not name stays"


def test_changes_are_named(params_file: Path, tmp_path: Path):
    text = "iqn:\n  n_steps: 5\n  gamma: {interpolation: linear, points: [[0, 0.9]]}\ntrain:\n  seed: 1\n"
    lines = apply_preset("mine", params_file, write(tmp_path, text))
    assert lines[0] == "iqn.n_steps: 3 -> 5"
    assert lines[1].startswith("iqn.gamma: ")
    assert len(lines) == 2, "the seed was 1 before"
    assert read_params(params_file).iqn.gamma.points == ((0, 0.9),)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("iqn:\n  n_stops: 5\n", PresetError, "unknown key iqn.n_stops"),
        ("iqm: {}\n", PresetError, "unknown key iqm"),
        ("- 1\n", PresetError, "must hold sections"),
        ("a: [\n", PresetError, "not valid YAML"),
        ("iqn:\n  num_quantiles: 7\n", ParamsError, "even"),
    ],
)
def test_bad_presets_change_nothing(params_file: Path, tmp_path: Path, text: str, error: type, message: str):
    before = params_file.read_bytes()
    with pytest.raises(error, match=message):
        apply_preset("mine", params_file, write(tmp_path, text))
    assert params_file.read_bytes() == before


def test_unknown_names_are_refused(params_file: Path):
    with pytest.raises(PresetError, match=r"no preset is called '../params'; .* holds blocks, btr, reference"):
        apply_preset("../params", params_file, ROOT / "presets")
