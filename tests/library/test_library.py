"""`import rulka` in the hands of somebody else: every public name, its right use and its wrong ones."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import rulka
from rulka.agents.onnx_file import export_onnx
from rulka.contracts.actions import FORWARD
from rulka.contracts.artifacts import ArtifactError
from rulka.contracts.observation import FLOATS
from rulka.machine.errors import UserError
from rulka.stages.folders import AGENT
from tests.docs.test_pages import ROOT
from tests.tasks.test_evaluate import short_track

PAGE = ROOT / "docs" / "library.md"
CARS = {"image": np.zeros((3, 1, 64, 64), np.uint8), "floats": np.zeros((3, 184), np.float32)}
ONE = {name: part[0] for name, part in CARS.items()}


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_public_names_are_there_and_nothing_heavy_is_loaded_before_they_are_asked_for() -> None:
    assert [name for name in rulka.__all__ if not hasattr(rulka, name)] == []
    assert set(rulka.__all__) <= set(dir(rulka))
    assert rulka.__version__ == version("rulka")
    assert (Path(rulka.__file__).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'load_agents'"):
        _ = rulka.load_agents  # pyright: ignore
    code = "import rulka, sys; assert not {'torch', 'numba', 'pandas'} & set(sys.modules); rulka.UserError"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_car_and_many_greedily_and_by_chance() -> None:
    agent = rulka.load_agent()
    assert (agent.name.partition("-")[0], agent.algorithm) == ("ppo", "ppo")
    assert agent.act(ONE) == FORWARD
    assert agent.act(CARS).tolist() == [FORWARD] * 3
    assert agent.act(CARS, sample=True).shape == (3,)
    drawn = [rulka.load_agent("data/agent", seed=seed).act(CARS, sample=True).tolist() for seed in (1, 1)]
    assert drawn[0] == drawn[1]
    with pytest.raises(rulka.UserError, match="decides by values, and has no probabilities"):
        rulka.load_agent(Path("data/values")).act(ONE, sample=True)


def test_chance_is_that_of_the_policy() -> None:
    """Action 0 is ahead of eleven equal ones by 100; with that taken back all are nearly as likely."""
    agent = rulka.load_agent("data/agent")
    with torch.no_grad():
        agent.policy.network.output_layers()[0].bias[FORWARD] -= 100.0  # pyright: ignore
    many = {name: np.repeat(part[:1], 1200, axis=0) for name, part in CARS.items()}
    counts = np.bincount(agent.act(many, sample=True), minlength=12)
    assert counts.min() > 20


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (3, "no 'floats': expected a mapping with image and floats, got a int"),
        ({"image": ONE["image"]}, r"no 'floats': expected a mapping with image and floats, got keys \['image'\]"),
        (ONE | {"image": ONE["image"].astype(np.float32)}, r"image is float32 \(1, 64, 64\), expected uint8"),
        (ONE | {"image": ONE["image"][0]}, r"image is uint8 \(64, 64\), expected uint8 \(1, 64, 64\), or N of"),
        (ONE | {"floats": ONE["floats"][:9]}, r"floats is float32 \(9,\), expected float32 \(184,\)"),
        (
            CARS | {"floats": CARS["floats"][:2]},
            r"image is \(3, 1, 64, 64\) and floats \(2, 184\): not of as many cars",
        ),
        (CARS | {"floats": ONE["floats"]}, r"image is \(3, 1, 64, 64\) and floats \(184,\): not of as many cars"),
        (ONE | {"floats": np.full(184, np.nan, np.float32)}, "floats holds NaN"),
    ],
)
def test_another_observation_is_refused(observation: Any, said: str) -> None:
    with pytest.raises(rulka.ObservationError, match=said):
        rulka.load_agent().act(observation)


def test_its_environments_are_those_that_it_was_trained_for() -> None:
    agent = rulka.load_agent()
    env = agent.make_env(short_track(), render_mode="rgb_array")
    observation, _ = env.reset(seed=1)
    env.step(agent.act(observation))
    cars = agent.make_vec(2, short_track(), start_anywhere=1.0)
    assert agent.act(cars.reset(seed=1)[0]).shape == (2,)
    assert agent.check(env) is env
    with pytest.raises(rulka.ContractError, match=r"trained with observation.height 64, .* has 34"):
        agent.make_env(observation={"height": 34})
    with pytest.raises(rulka.ContractError, match=r"trained with action_repeat 1, and this environment has 2"):
        agent.check(gymnasium.make("rulka/Race-v0", action_repeat=2))


def test_an_agent_and_a_function_that_does_the_same_score_alike() -> None:
    agent = rulka.load_agent()
    score = rulka.evaluate(agent, short_track(), num_races=3, seed=5)
    assert (score.finish_rate, len(score.races), score.times_reference) == (1.0, 3, None)
    assert rulka.evaluate("latest", short_track(), num_races=3, seed=5).median_time_s == score.median_time_s
    shown = [repr(each) for each in (score, agent, score.track, rulka.load_races(), rulka.load_frames())]
    assert max(map(len, shown)) < 500
    assert score.best_time_s == min(race.time_s or 0.0 for race in score.races)
    again = rulka.evaluate(lambda seen: agent.act(seen), short_track(), num_races=3, seed=5)
    assert again.median_time_s == score.median_time_s
    on_campaign = rulka.evaluate(agent, "copper-oval", num_races=1)
    assert on_campaign.lap_share is not None
    with pytest.raises(rulka.ContractError, match=r"trained with action_repeat 1, and this environment has 4"):
        rulka.evaluate(agent, short_track(), action_repeat=4)


def test_a_function_in_a_file_races_by_its_name_in_decisions_of_its_own(folder: Path) -> None:
    """In chunks of five actions it sees 264 floats; elsewhere 184."""
    (folder / "mine.py").write_text(
        "import numpy as np\n"
        "def act(seen):\n"
        "    assert seen['floats'].shape[1] == 264\n"
        "    return np.zeros((len(seen['floats']), 5), int)\n"
        "act.environment = {'actions_per_decision': 5}\n"
    )
    assert rulka.evaluate("mine:act", short_track(), num_races=2).finish_rate == 1.0
    for name, said in (("mine:nobody", "has no attribute"), ("nowhere:act", "No module")):
        with pytest.raises(UserError, match=said):
            rulka.evaluate(name, short_track())


def test_a_function_sees_what_its_environment_shows() -> None:
    """Of 40 waypoints the nearest three, of five decisions the newest two, and no velocity."""
    shown: list[np.ndarray] = []

    def act(seen: dict[str, np.ndarray]) -> np.ndarray:
        shown.append(seen["floats"] != 0.0)
        return np.zeros(len(seen["floats"]), int)

    observation = {"waypoints": 3, "previous_actions": 2, "withheld": ["velocity"]}
    rulka.evaluate(act, short_track(), num_races=2, observation=observation)
    seen = np.logical_or.reduce(np.concatenate(shown), axis=0)
    assert seen[FLOATS["waypoints"]].nonzero()[0].max() < 9
    assert seen[FLOATS["previous_actions"]].nonzero()[0].min() >= 12
    assert not seen[FLOATS["velocity"]].any()


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda _seen: 0, r"gave int64 of shape \(\), expected whole numbers of shape \(2,\)"),
        (lambda seen: [0.0] * len(seen["floats"]), r"gave float64 of shape \(2,\), expected whole numbers"),
        (lambda seen: [12] * len(seen["floats"]), "decided 12, expected 0 to 11"),
        (lambda _seen: 1 // 0, "failed as it drove: ZeroDivisionError"),
        (7, "7 is no function"),
    ],
)
def test_nonsense_is_refused(act: Callable[..., Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        rulka.evaluate(act, short_track(), num_races=2)
    with pytest.raises(UserError, match="decided nan, expected"):
        rulka.evaluate(lambda seen: np.full((len(seen["floats"]), 3), np.nan), short_track(), continuous=True)


def test_it_is_the_encoder_of_a_network_with_its_normalisation() -> None:
    encoder, agent = rulka.load_encoder(), rulka.load_agent()
    image = torch.randint(0, 256, (4, *encoder.image_shape), dtype=torch.uint8)
    expected = agent.policy.network.encode(image)  # pyright: ignore
    assert encoder(image).shape == (4, encoder.num_features)
    torch.testing.assert_close(encoder(image), expected)
    torch.testing.assert_close(encoder(image.float()), expected)
    assert encoder(image).requires_grad


def test_what_is_normalised_already_is_refused() -> None:
    encoder = rulka.load_encoder("data/encoder")
    with pytest.raises(rulka.ObservationError, match=r"expected whole numbers from 0 to 255") as refused:
        encoder(torch.rand(2, *encoder.image_shape))
    assert "normalize_images=False" in refused.value.hint
    with pytest.raises(rulka.ObservationError, match=r"shape \(2, 64, 64\), expected \[B, 1, 64, 64\]"):
        encoder(torch.zeros(2, 64, 64, dtype=torch.uint8))
    with pytest.raises(rulka.ObservationError, match="image is a ndarray, expected a torch tensor"):
        encoder(np.zeros((2, 1, 64, 64), np.uint8))
    with pytest.raises(ArtifactError, match="kind is 'agent', expected 'encoder'"):
        rulka.load_encoder("data/agent")


def test_frames_are_a_dataset_of_torch() -> None:
    frames = rulka.load_frames()
    assert frames[3]["image"].tolist() == frames.frame_stacks(np.array([3]))[0].tolist()
    assert frames[-1]["action"] == frames.action[np.array([len(frames) - 1])][0]
    with pytest.raises(IndexError):
        _ = frames[len(frames)]
    loader = DataLoader(frames, batch_size=4, num_workers=1, multiprocessing_context="spawn")  # pyright: ignore
    batch = next(iter(loader))
    assert {name: tuple(part.shape[1:]) for name, part in batch.items()} == {
        "image": (1, 64, 64),
        "floats": (184,),
        "action": (),
    }
    assert batch["action"].tolist() == frames.action[:4].tolist()
    with pytest.raises(rulka.UserError, match="no split 'training': data/frames has train, validation, test"):
        rulka.load_frames("data/frames", "training")


def test_races_recordings_and_tracks_are_tables_and_arrays() -> None:
    races = rulka.load_races()
    assert races.table.loc[0, ["race_id", "is_finished"]].tolist() == [races.races[0].race_id, True]
    (ghost,) = rulka.read_recording("mine.Replay.Gbx").ghosts
    assert ghost.inputs["value"].tolist() == [event.value for event in ghost.events]
    assert ghost.samples is not None
    assert ghost.samples.table["gas"].tolist() == [1.0] * 5
    np.testing.assert_array_equal(ghost.samples.table[["x_m", "y_m", "z_m"]], ghost.samples.position)
    track = rulka.load_track("copper-oval")
    assert track.gate_m[-1] == track.length_m
    assert len(rulka.plot_track("copper-oval").axes) == len(rulka.plot_track(track).axes) == 3
    with pytest.raises(rulka.UserError, match="there is no track 'monza'"):
        rulka.load_track("monza")


class _WithNumber:
    """Drives by a function whose `environment` is no mapping."""

    environment = 5

    def __call__(self, seen: dict[str, Any]) -> list[int]:
        return [0] * len(seen["floats"])


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: rulka.load_races("data/agent"), "data/agent holds no race dataset: meta.json is of something else"),
        (lambda: rulka.load_encoder("data/races"), "data/races holds no encoder: meta.json is of something else"),
        (lambda: rulka.load_encoder("data/none"), "data/none holds no complete encoder: the folder is missing"),
        (lambda: rulka.load_agent("data/none"), "there is no agent 'data/none', nor such a folder"),
        (lambda: rulka.load_agent(""), "an agent: expected a name or path, got ''"),
        (lambda: rulka.load_frames(None), "frames: expected a name or path, got None"),  # pyright: ignore
        (lambda: rulka.read_recording("data/races/meta.json"), "meta.json: this is not a Gbx file"),
        (lambda: rulka.load_agent().check(gymnasium.make("CartPole-v1")), "acts in rulka/Race-v0, got .*CartPole"),
        (lambda: rulka.evaluate(len, num_race=1), "argument 'num_race'; did you mean num_races?"),
        (lambda: rulka.evaluate(_WithNumber()), "environment holds keywords of its environment by name, got 5"),
        (lambda: gymnasium.make("rulka/Race-v0").reset(options=5), "reset options are a mapping, got 5"),  # pyright: ignore
        (lambda: gymnasium.make("rulka/Race-v0").reset(options={"along_m": -5.0}), "got along_m -5"),
        (lambda: gymnasium.make("rulka/Race-v0", observation=64), r"observation: must be a valid dictionary \(got 64"),
    ],
)
def test_a_wrong_use_is_one_sentence(use: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        use()
    hint = getattr(refused.value, "hint", "")
    assert getattr(refused.value, "__notes__", []) == ([hint] if hint else [])


def test_a_file_that_hides_rulkas_models_is_named(tmp_path: Path) -> None:
    (tmp_path / "models.py").touch()
    (tmp_path / "mine.py").write_text("import rulka\nrulka.load_agent()\n")
    drive = [sys.executable, "mine.py"]
    answer = subprocess.run(drive, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "models.py where Rulka's package `models` should be: rename that file" in answer.stderr
    (tmp_path / "models.py").unlink()
    (tmp_path / "models").symlink_to(Path(rulka.__file__).parents[1] / "models")  # as in a project
    answer = subprocess.run(drive, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "UnknownAgentError" in answer.stderr or "ArtifactError" in answer.stderr


@pytest.mark.parametrize("with_onnx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_block_of_the_page_runs(folder: Path, with_onnx: bool) -> None:
    (folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    if with_onnx:
        export_onnx(AGENT, Path("agent.onnx"))  # as the command does
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    code = "\n".join(block for block in blocks if with_onnx or "onnxruntime" not in block)
    names: dict[str, object] = {}
    exec(compile(code, PAGE.name, "exec"), names)
    assert (folder / "oval.png").stat().st_size > 10_000
    plt.close("all")
    assert not with_onnx or names["decision"].tolist() == [names["action"]]  # pyright: ignore
    assert names["features"].shape == (1, names["encoder"].num_features)  # pyright: ignore
