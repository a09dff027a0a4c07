"""Stage `train` with tiny networks on a short track, everything in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rulka.agents.load import load_policy
from rulka.contracts.actions import Parts, action_table
from rulka.contracts.artifacts import load_artifact
from rulka.contracts.observation import FLOATS
from rulka.datasets.formats.frames import CapturedRace, FrameDataset
from rulka.datasets.formats.races import load_races
from rulka.evaluation.dataset import race_of_result
from rulka.evaluation.race import EvaluationRaces, race
from rulka.machine.errors import UserError
from rulka.params import Params
from rulka.runtime.metrics import MEASURED
from rulka.simulator.race_params import RewardParams
from rulka.simulator.simulator import Simulator
from rulka.training.agent_run import Folders
from rulka.training.demonstrations import TrackEnd, demonstration_blocks, longer_decisions, race_block
from rulka.training.preference_pairs import CapturedRaces
from tasks.capture import capture
from tasks.train import main, train
from tests.conftest import synthetic_race

TABLE = action_table(5)


def test_both_agents_are_trained_and_documented(small_params: Params, folders: Folders) -> None:
    train(small_params, folders=folders)
    for algorithm, folder, repeats in (("ppo", folders.out, 1), ("iqn", folders.out / "compared" / "iqn", 2)):
        agent = load_artifact(folder, "agent", observation=small_params.observation)
        assert agent.config["algorithm"] == algorithm
        assert agent.actions == action_table(5, repeats=repeats)
        training = agent.provenance["training"]
        assert training["env_steps"] == 512
        assert training["ended_by"] == "max_env_steps"
        assert training["gradient_steps"] > 0
        assert training["precision"] == "float32"
        assert training["weights_of_env_steps"] in (0, 256, 512)
        other = {"ppo": "iqn", "iqn": "ppo"}[algorithm]
        assert algorithm in agent.provenance["parameters"]
        assert other not in agent.provenance["parameters"]
        lines = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
        # A line holds a loss only if there was an update since the one before it.
        assert {"env_steps", "finish_rate", "mean_return", "record_s", "loss", "versions_behind"} <= set().union(*lines)
        assert not MEASURED & set().union(*lines), "an output holds no times"
        policy = load_policy(folder, actions=action_table(5))
        assert policy.actions.repeats == repeats
        assert policy(np.zeros((2, 1, 64, 64), np.uint8), np.zeros((2, 184), np.float32)).shape == (2,)
    assert not list(folders.runs.rglob("experience")), "the most of it is not kept until DVC has recorded the output"


def test_an_agent_is_trained_on_several_tracks(small_params: Params, folders: Folders) -> None:
    """One batch of cars on three tracks; the fastest of them makes no record, and no car is drawn on a track."""
    shape = small_params.track.model_dump() | {"seed": 90}
    sets = ({"kind": "main"}, {"kind": "generated", "count": 2, **shape})
    values = small_params.model_dump()
    values["train"] |= {"tracks": sets, "compared": [], "max_env_steps": 256}
    params = Params.model_validate(values)
    train(params, folders=folders)
    uids = load_artifact(folders.out, "agent").provenance["training"]["tracks"]
    assert len(uids) == len(set(uids)) == 3
    assert uids[1:] == ["generated-90-150", "generated-91-150"]
    run_folder = next(folders.runs.glob("ppo-*"))
    assert not (run_folder / "track.npz").exists()
    assert not list(folders.runs.rglob("record.npz"))


def test_a_compared_algorithm_that_dvc_does_not_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main one's is found by its name, so that a further algorithm needs no line in `dvc.yaml`."""
    graph = Path("dvc.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text(graph.replace("      - ppo\n", ""))
    (tmp_path / "params.yaml").write_text("train: {algorithm: iqn, compared: [ppo]}")
    with pytest.raises(UserError, match=r"the stage train reads ppo, which dvc\.yaml does not list") as caught:
        main()
    assert caught.value.hint.startswith("Add `- ppo` to its `params`")
    (tmp_path / "params.yaml").write_text("train: {algorithm: ppo, compared: []}")
    with pytest.raises(UserError, match="data/agent_init is missing or incomplete"):
        main()


def test_demonstrations_pay_what_training_pays(small_params: Params, driven: tuple[Path, Path]) -> None:
    """The rewards of a finished race telescope: per_metre times its way, per_second times its time, and the finish."""
    races, rewards = load_races(driven[0]), small_params.rewards
    blocks = demonstration_blocks(driven[1], races, rewards, 1, TABLE)
    frames = FrameDataset(driven[1], "train")
    assert len(blocks) == len(frames.races) > 0
    times_s = {race.race_id: race.race_time_ms / 1000.0 for race in races.races if race.race_time_ms}
    for block, entry in zip(blocks, frames.races, strict=True):
        way_m = races.main_track.length_m - float(frames.along_m[entry.start : entry.start + 1][0])
        speed_mps = np.linalg.norm(block.floats[-2, 0, FLOATS["velocity"]])
        finish = rewards.finish_as_seconds * (rewards.per_metre * speed_mps + rewards.per_second)
        expected = rewards.per_metre * way_m + rewards.per_second * times_s[entry.race_id] + finish
        assert block.reward.sum() == pytest.approx(expected, abs=1e-3)
        assert block.terminated[:, 0].tolist() == [False] * (entry.num_frames - 1) + [True]
        assert not block.truncated.any()
        np.testing.assert_array_equal(block.image[:-1, 0], frames.images[entry.start : entry.start + entry.num_frames])


@pytest.mark.parametrize("num_recorded", [1, 1000])
def test_recordings_are_not_replayed(
    small_params: Params,
    driven: tuple[Path, Path],
    num_recorded: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their next states are the real game's, and their labels the nearest actions to what was held."""

    class PartlyRecorded(FrameDataset):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            recorded = [replace(entry, source="recording") for entry in self.races[:num_recorded]]
            self.races = [*recorded, *self.races[num_recorded:]]

    num_races = len(FrameDataset(driven[1], "train").races)
    monkeypatch.setattr("rulka.training.demonstrations.FrameDataset", PartlyRecorded)
    blocks = demonstration_blocks(driven[1], load_races(driven[0]), small_params.rewards, 1, TABLE)
    assert len(blocks) == max(0, num_races - num_recorded)
    assert ("no demonstrations are replayed" in caplog.text) == (not blocks)


def test_recovery_drives_are_neither_replayed_nor_compared(
    small_params: Params, driven: tuple[Path, Path], tmp_path: Path
) -> None:
    """Their actions are labels, which did not lead to the next frames."""
    races, rewards = load_races(driven[0]), small_params.rewards
    again = small_params.capture.model_copy(update={"recoveries": 1})
    capture(
        small_params.model_copy(update={"capture": again}),
        races_dir=driven[0],
        out_dir=tmp_path / "frames",
        runs_dir=tmp_path / "runs",
    )
    kinds = {race.source for race in FrameDataset(tmp_path / "frames", "train").races}
    assert kinds == {"driver", "recovery"}
    ours, theirs = (
        demonstration_blocks(frames, races, rewards, 1, TABLE) for frames in (tmp_path / "frames", driven[1])
    )
    assert [block.reward.tolist() for block in ours] == [block.reward.tolist() for block in theirs]
    ids = [
        [one.entry.race_id for one in CapturedRaces(frames, races, 1, 1).on_main_track()]
        for frames in (tmp_path / "frames", driven[1])
    ]
    assert ids[0] == ids[1]


def test_frames_of_another_main_track_are_refused(small_params: Params, driven: tuple[Path, Path]) -> None:
    races = load_races(driven[0])
    moved = replace(races, main_track=replace(races.main_track, uid="elsewhere"))
    with pytest.raises(UserError, match=r"the frames show track '.*', training is on 'elsewhere'") as caught:
        demonstration_blocks(driven[1], moved, small_params.rewards, 1, TABLE)
    assert "dvc repro capture" in caught.value.hint


def straight_race() -> CapturedRace:
    """Five frames, 2 m and 50 ms apart, at 30 m/s."""
    number, floats = np.arange(5), np.zeros((5, 184), np.float32)
    floats[:, FLOATS["velocity"]] = [0.0, 0.0, 30.0]
    own = {"action": number.astype(np.uint8), "action_share": np.eye(12, dtype=np.float32)[number]}
    return replace(synthetic_race("x", 5, 0), floats=floats, along_m=2.0 * number.astype(np.float32), **own)


def test_a_demonstration_is_paid_for_its_finish_or_cut(small_params: Params) -> None:
    """The line is 1 m and 20 ms behind the last frame; the finish counts like 3 s more at 30 m/s."""
    rewards = small_params.rewards.model_copy(update={"finish_as_seconds": 3.0})
    block = race_block(straight_race(), TrackEnd(9.0, 220), rewards)
    way = [2 * rewards.per_metre + 0.05 * rewards.per_second] * 4 + [rewards.per_metre + 0.02 * rewards.per_second]
    finish = 3.0 * (30.0 * rewards.per_metre + rewards.per_second)
    np.testing.assert_allclose(block.reward[:, 0], way + np.array([0.0, 0.0, 0.0, 0.0, finish]), rtol=1e-5)
    assert block.terminated[:, 0].tolist() == [False, False, False, False, True]
    # Each decision pays 2 per_metre and 0.05 per_second, and a value follows the last.
    rewards = small_params.rewards
    block = race_block(straight_race(), None, rewards)
    assert block.action[:, 0, 0].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(block.reward, 2 * rewards.per_metre + 0.05 * rewards.per_second, rtol=1e-5)
    assert block.truncated[:, 0].tolist() == [False, False, False, True]
    assert not block.terminated.any()


def test_a_demonstration_for_longer_decisions_is_one_from_each_of_its_first_two(small_params: Params) -> None:
    """Of five frames those at 0, 100 and 200 ms, then those at 50 and 150; what is held longer is what was done."""
    held = np.array([[3, 3, 3, 3, 3], [3, 3, 3, 7, 7], [7, 7, 7, 7, 2], [2, 2, 2, 2, 2], [1, 1, 1, 1, 1]], np.uint8)
    race = replace(straight_race(), tick_actions=held, controls=np.arange(15, dtype=np.float32).reshape(5, 3))
    table = action_table(5, repeats=2)
    first, second = longer_decisions(race, table)
    assert (first.time_ms.tolist(), second.time_ms.tolist()) == ([0, 100, 200], [50, 150])
    assert (first.action.tolist(), second.action.tolist()) == ([3, 2, 1], [7, 2])
    np.testing.assert_allclose(first.action_share[0, [3, 7]], [0.8, 0.2])
    # The mean of both halves; the last frame has no other one behind it.
    np.testing.assert_allclose(first.controls[:, 0], [1.5, 7.5, 12.0])
    np.testing.assert_allclose(second.action_share[0, [3, 7, 2]], [0.3, 0.6, 0.1])
    assert longer_decisions(race, table.taken_once) == [race]
    rewards = small_params.rewards.model_copy(update={"finish_as_seconds": 0.0})
    end = TrackEnd(9.0, 220)
    paid = [race_block(each, end, rewards).reward[:, 0] for each in (first, second)]
    way = 4 * rewards.per_metre + 0.1 * rewards.per_second
    np.testing.assert_allclose(paid[0], [way, way, rewards.per_metre + 0.02 * rewards.per_second], rtol=1e-5)
    np.testing.assert_allclose(paid[1], [way, 3 * rewards.per_metre + 0.07 * rewards.per_second], rtol=1e-5)


def test_demonstrations_pay_for_manner_and_direction_too(small_params: Params) -> None:
    """Frames 1 m/s apart, sliding at 3 m/s on four wheels, pointing 60 degrees off the line, full gas at first.

    Gained speed: 2 s at 0.5 a metre, but not with the last decision. Neo slide 0.1, kamikaze 1 for actions 0 to 2,
    5 m (clamped) at -0.01 each. Potential: 0.4 (cos 60 - 1).
    """
    floats = np.zeros((5, 184), np.float32)
    floats[:, FLOATS["velocity"]] = [[3.0, 0.0, 4.0 + k] for k in range(5)]
    floats[:, FLOATS["has_contact"]] = 1.0
    floats[:, FLOATS["waypoints"]][:, :6] = [0.0, 0.0, 1.0, 10.0 * np.sqrt(0.75), 0.0, 6.0]
    number = np.arange(5)
    standing = {"along_m": np.zeros(5, np.float32), "action": (number + 1).astype(np.uint8)}
    race = replace(straight_race(), floats=floats, **standing)
    constant = {"neo_slide": 0.1, "kamikaze": 1.0, "line_distance": -0.01, "speed_slide": 0.0}
    engineered = {name: {"interpolation": "linear", "points": [[0, value]]} for name, value in constant.items()}
    changes = {"per_metre": 0.5, "per_second": 0.0, "speed_as_seconds": 2.0, "direction_potential": 0.4}
    rewards = RewardParams.model_validate(
        small_params.rewards.model_dump() | changes | {"line_distance_potential": 0.0, "engineered": engineered}
    )
    block = race_block(race, None, rewards)
    speed = np.sqrt(9.0 + (4.0 + number) ** 2)
    expected = np.diff(speed) * [1, 1, 1, 0] + 0.1 + np.array([1.0, 1.0, 0.0, 0.0]) - 0.05
    np.testing.assert_allclose(block.reward[:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(block.potential[:, 0], 0.4 * (0.5 - 1.0), rtol=1e-5)


@pytest.mark.parametrize("parts", [5, (0, 10, 30)])
def test_inputs_of_every_tick_lead_where_the_race_led(
    small_params: Params, driven: tuple[Path, Path], parts: Parts
) -> None:
    """A random driver of chunks: its exported inputs, given tick by tick, make the same path."""

    class Drunk:
        actions = action_table(5, parts)

        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __call__(self, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
            return self.rng.choice([0, 1, 2], p=[0.6, 0.2, 0.2], size=(len(floats), self.actions.actions_per_decision))

    params, track = small_params, load_races(driven[0]).main_track
    evaluate = params.evaluate.model_copy(update={"num_races": 1, "start_lateral_m": 0.0, "start_heading_deg": 0.0})
    races = EvaluationRaces.of(track, params, evaluate)
    (result,) = race(Drunk(), races)
    inputs = race_of_result(result, "").controls
    again = Simulator(track, 1, params.simulator, action_table(1))
    assert len(np.unique(inputs, axis=0)) == 3
    for tick in range(min(len(inputs), 100)):
        again.step_controls(inputs[None, tick])
        if tick % 5 == 4:
            np.testing.assert_allclose(again.cars[0, :3], result.cars[tick // 5 + 1, :3], atol=1e-4)


def test_demonstrations_are_of_five_actions_too(small_params: Params, driven: tuple[Path, Path]) -> None:
    """Every tick's action, those of the decisions before it among the floats, and the same pay."""
    races, rewards = load_races(driven[0]), small_params.rewards
    tables = action_table(5), action_table(5, 5)
    single, chunks = (demonstration_blocks(driven[1], races, rewards, 1, table)[0] for table in tables)
    ticks, keys = FrameDataset(driven[1], "train").tick_actions[:], action_table(1).keys()
    length = chunks.spec.num_steps
    assert chunks.action.shape == (length, 1, 5)
    np.testing.assert_array_equal(chunks.action[:, 0], ticks[:length])
    assert chunks.floats.shape[-1] == 264
    previous = chunks.floats[7, 0, 1:101].reshape(5, 5, 4)
    np.testing.assert_array_equal(previous, keys[ticks[2:7]])
    np.testing.assert_array_equal(chunks.floats[0, 0, 1:101].reshape(25, 4), np.tile(keys[0], (25, 1)))
    np.testing.assert_array_equal(chunks.floats[..., 101:], single.floats[..., 21:])
    np.testing.assert_array_equal(chunks.reward, single.reward)
