import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rulka.contracts.schedule import Moment
from rulka.envs.game import GameEnv
from rulka.envs.race import RaceEnv
from rulka.envs.settings import read_track
from rulka.envs.vector import RaceVectorEnv
from rulka.machine.errors import UserError
from rulka.params import Params, read_params, reference_params
from rulka.simulator.race_settings import ALIKE, RaceSettings, UnknownKeywordError, read_settings
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def test_importing_rulka_is_cheap() -> None:
    code = "import sys, rulka; print([m for m in ('numba', 'torch', 'prefect', 'pandas') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert run.stdout.strip() == "[]"


def test_reference_params_are_the_repositorys_from_anywhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert reference_params() == read_params(ROOT / "params.yaml")


def test_what_is_left_out_comes_from_the_reference() -> None:
    reference: Params = reference_params()
    given = {"max_race_s": np.float32(7.0), "start_anywhere": None, "randomisation": {"physics": 0.2}}
    settings = read_settings(None, given)
    assert settings.randomisation == ALIKE.model_copy(update={"physics": 0.2})
    assert reference.train.randomisation == ALIKE
    end = reference.race_end.model_copy(update={"max_race_s": 7.0})
    assert {name: getattr(settings, name) for name in type(end).model_fields} == end.model_dump()
    assert reference.train.start_from_earlier > 0.0
    assert (settings.start_anywhere, settings.start_from_earlier) == (0.0, 0.0), "a race is timed from the start line"
    assert settings.rewards == reference.rewards
    assert settings.table.ticks_per_action == reference.actions.ticks_per_action


def test_a_section_may_be_given_in_part() -> None:
    reference: Params = reference_params()
    given = {
        "rewards": {"per_metre": 1.0},
        "observation": {"height": 84, "width": 84},
        "simulator": {"camera": {"back_m": 5.0}},
    }
    settings = read_settings(None, given)
    assert settings.rewards == reference.rewards.model_copy(update={"per_metre": 1.0})
    assert settings.observation == reference.observation.model_copy(update={"height": 84, "width": 84})
    assert settings.simulator.camera == reference.simulator.camera.model_copy(update={"back_m": 5.0})
    further = read_settings(settings, {"rewards": {"per_second": 0.5}})
    assert further.rewards == settings.rewards.model_copy(update={"per_second": 0.5})


def test_wrong_keywords_are_named(straight) -> None:
    for options, message in (
        ({"start_anywhere": 1.5}, "start_anywhere: must be less than or equal to 1"),
        ({"max_race_s": float("nan")}, r"max_race_s: must be a finite number \(got nan\)"),
        ({"max_race_s": "x"}, r"max_race_s: must be a valid number \(got 'x'\)"),
        ({"no_progress_s": True}, r"no_progress_s: must be a valid number \(got True\)"),
        ({"ticks_per_action": 2.5}, "ticks_per_action: must be a valid integer"),
        ({"action_repeat": 0}, "action_repeat: must be greater than or equal to 1"),
        ({"actions_per_decision": 3}, "5 ticks cannot be shared evenly by 3"),
        (
            {"actions_per_decision": [0, 20, 10]},
            r"offsets \[0, 20, 10\] of actions need to increase, but 10 follows 20",
        ),
        ({"actions_per_decision": 101}, r"actions_per_decision: must be a number of .* or a list .* \(got 101\)$"),
        ({"actions_per_decision": 5, "continuous": True}, "continuous needs one action per decision"),
        ({"start_anywhere": 0.6, "start_from_earlier": 0.5}, "need a sum of at most 1: lower one of them"),
        ({"observation": (1, 1)}, r"observation: .* \(got \(1, 1\)\)"),
        ({"randomisation": {"phisics": 0.2}}, "phisics"),
        ({"start_speed_mps": 301.0, "max_race_s": 1e9}, "start_speed_mps: .*; max_race_s: "),
        ({"render_mode": "human"}, "human"),
        ({"settings": {"max_race_s": 7.0}}, "settings is a RaceSettings, got"),
    ):
        with pytest.raises(UserError, match=message):
            RaceEnv(straight, **options)


def test_an_unknown_keyword_lists_all_that_are_known() -> None:
    for make in (RaceEnv, lambda **options: RaceVectorEnv(2, **options), GameEnv):
        with pytest.raises(
            UnknownKeywordError, match=r"argument 'b', 'z'; known are.* max_race_s.* observation"
        ) as caught:
            make(z=1, b=2)
        assert isinstance(caught.value, TypeError), "as Python says it"
        with pytest.raises(UnknownKeywordError, match=r"keyword argument 'reward'; did you mean rewards\?"):
            make(reward={})


def test_settings_travel_as_themselves(straight) -> None:
    """They are taken as they are, from another process too; keywords beside them are what differs."""
    params = reference_params()
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    seen = settings.model_copy(update={"observation": params.observation, "max_race_s": 7.0})
    assert RaceEnv(straight, settings=seen).settings is seen
    assert pickle.loads(pickle.dumps(seen)) == seen
    changed = RaceVectorEnv(2, straight, settings=seen, min_gain_m=3.0).settings
    assert changed == seen.model_copy(update={"min_gain_m": 3.0})
    made = gymnasium.make("rulka/Race-v0", track=straight, settings=seen).unwrapped
    assert made.settings == seen
    with pytest.raises(ValueError, match="nobody looks in these races"):
        RaceEnv(straight, settings=settings)


def test_nobody_is_paid_without_rewards(straight) -> None:
    params = reference_params()
    sections = params.observation, params.actions, params.simulator, params.evaluate, params.race_end
    env = RaceEnv(straight, settings=RaceSettings.for_evaluation(*sections))
    env.set_moment(Moment(10))
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(10)] == [0.0] * 10


def test_wrong_numbers_of_cars_and_tracks_are_named(straight) -> None:
    for num_envs in (0, 2.0, True, "2"):
        with pytest.raises(UserError, match="num_envs is a whole number from 1, got"):
            RaceVectorEnv(num_envs, straight)
    for track in (5, ["sidewinder"]):
        with pytest.raises(UserError, match="track is a track, a slug of the campaign or a track file, got"):
            read_track(track)
