import subprocess
import sys
from pathlib import Path

import pytest

from rulka.envs.race import RaceEnv
from rulka.envs.settings import SettingsError, resolve_settings
from rulka.params import Params, read_params, reference_params
from rulka.tracks.track import TrackError

ROOT = Path(__file__).resolve().parents[2]


def test_importing_rulka_is_cheap() -> None:
    code = "import sys, rulka; print([m for m in ('numba', 'torch', 'prefect', 'pandas') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


def test_reference_params_are_the_repositorys_from_anywhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert reference_params() == read_params(ROOT / "params.yaml")


def test_a_wheel_carries_the_parameters() -> None:
    """Outside a checkout they are read from the copy that the wheel is told to hold."""
    assert '"params.yaml" = "rulka/reference_params.yaml"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_what_is_left_out_comes_from_the_reference(straight) -> None:
    reference: Params = reference_params()
    settings = resolve_settings(straight, {"max_race_s": 7.0, "start_anywhere": None})
    assert settings.max_race_s == 7.0
    assert settings.start_anywhere == reference.train.start_anywhere
    assert settings.rewards == reference.rewards
    assert settings.table.ticks_per_action == reference.actions.ticks_per_action


def test_a_track_may_be_a_file(straight, tmp_path) -> None:
    straight.save(tmp_path / "straight.npz")
    assert resolve_settings(str(tmp_path / "straight.npz"), {}).track.uid == "straight"
    with pytest.raises(TrackError, match="none"):
        resolve_settings(tmp_path / "none.npz", {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_anywere": 0.5}, "start_anywere"),
        ({"start_anywhere": 1.5}, "start_anywhere is a share"),
        ({"start_lateral_m": -1.0}, "start_lateral_m must not be negative"),
        ({"max_race_s": float("nan")}, "max_race_s must not be negative"),
    ],
)
def test_wrong_keywords_are_named(straight, options, message) -> None:
    with pytest.raises(SettingsError, match=message):
        RaceEnv(straight, **options)


def test_an_unknown_render_mode_is_refused(straight) -> None:
    with pytest.raises(SettingsError, match="human"):
        RaceEnv(straight, render_mode="human")
