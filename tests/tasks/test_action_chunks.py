"""Decisions that are chunks of five actions: their inputs, and demonstrations of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rulka.actions import action_table
from rulka.datasets.frames import FrameDataset
from rulka.datasets.races import load_races
from rulka.evaluation.dataset import race_of_result
from rulka.evaluation.race import EvaluationRaces, race
from rulka.params import Params
from rulka.simulator.simulator import Simulator
from rulka.training.demonstrations import demonstration_blocks


def test_inputs_of_every_tick_lead_where_the_race_led(small_params: Params, driven: tuple[Path, Path]) -> None:
    """A random driver of chunks: its exported inputs, given tick by tick, make the same path."""

    class Drunk:
        actions = action_table(5, 5)

        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __call__(self, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
            return self.rng.choice([0, 1, 2], p=[0.6, 0.2, 0.2], size=(len(floats), 5))

    params, track = small_params, load_races(driven[0]).main_track
    evaluate = params.evaluate.model_copy(update={"num_races": 1, "start_lateral_m": 0.0, "start_heading_deg": 0.0})
    races = EvaluationRaces.of(track, params.observation, params.actions, params.simulator, evaluate, params.race_end)
    (result,) = race(Drunk(), races)
    inputs = race_of_result(result, races.settings.table, "").controls
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
