"""Races replayed over real sockets are the races that were driven, or they are quarantined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tasks.capture as stage
from rulka.contracts.actions import Controls
from rulka.contracts.observation import FLOATS
from rulka.datasets.capture import capture_race
from rulka.datasets.formats.frames import FrameDataset
from rulka.datasets.formats.races import Race, RaceDataset, write_races
from rulka.game.link import GameLink
from rulka.game.session import Decision
from rulka.planner.demonstrations import record_demonstrations
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.scene import bake_scene
from tasks.game_capture import GameCapture, ReplayError, keys_by_tick
from tasks.races import race_of_driver
from tests.datasets.conftest import PARAMS, SETTINGS, TABLE, TRACK
from tests.game.serving import served
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def races() -> list[Race]:
    """Races of the built-in driver from the middle of the start line, where the game begins."""
    settings = RaceSettings.for_demonstrations(PARAMS.actions, PARAMS.simulator, PARAMS.race_end)
    settings = settings.model_copy(update={"start_lateral_m": 0.0})
    driven = record_demonstrations(TRACK, settings, PARAMS.races.driver, num_races=3, seed=1)
    assert all(race.is_finished for race in driven)
    return [race_of_driver(race, TRACK.uid, TABLE) for race in driven]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(TRACK, PARAMS) as server:
        yield server.port


@pytest.fixture
def game(port: int) -> Iterator[GameCapture]:
    link = GameLink(port=port, speed=100.0, timeout_s=PATIENCE_S, patience_s=PATIENCE_S)
    with closing(GameCapture(link, TRACK, SETTINGS)) as capture:
        yield capture


def test_races_of_the_driver_are_replayed_exactly(game: GameCapture, races: list[Race]) -> None:
    scene = bake_scene(TRACK)
    assert len({race.race_time_ms for race in races}) == len(races)
    for race in races:
        through, without = game.capture(race), capture_race(race, TRACK, scene, SETTINGS)
        for name in ("action", "action_share", "tick_actions", "controls", "time_ms"):
            np.testing.assert_array_equal(getattr(through, name), getattr(without, name), err_msg=name)
        np.testing.assert_array_equal(through.along_m, without.along_m)
        np.testing.assert_array_equal(through.floats, without.floats)
        # The camera of `capture_race` finds the zone from float32 positions; at an edge of two zones it may differ.
        same = (through.image == without.image).all(axis=(1, 2, 3))
        assert same.mean() > 0.98
        assert through.floats[:, FLOATS["velocity"]].any()


def tampered(race: Race, tick: int) -> Race:
    """Steers hard for 200 ms."""
    controls = race.controls.copy()
    controls[tick : tick + 20, 0] = np.where(controls[tick : tick + 20, 0] == 1.0, -1.0, 1.0)
    return replace(race, race_id="tampered", controls=controls)


def analog(race: Race) -> Race:
    controls = race.controls.copy()
    controls[7, 0] = 0.25
    return replace(race, race_id="analog", controls=controls)


def test_other_inputs_make_another_race(game: GameCapture, races: list[Race]) -> None:
    with pytest.raises(ReplayError, match=r"in the game|checkpoints at"):
        game.capture(tampered(races[0], 60))
    moved = replace(tampered(races[0], 60), state=races[0].state + np.float32(0.5))  # 0.87 m away
    with pytest.raises(ReplayError, match=r"it began 0\.87 m from where the game begins"):
        game.capture(moved)
    game.capture(races[0])  # and the next race is not touched by it


def test_times_are_compared_to_the_millisecond(game: GameCapture, races: list[Race]) -> None:
    race, time_ms = races[0], races[0].race_time_ms or 0
    late = replace(race, race_time_ms=time_ms + 1, checkpoint_times_ms=(*race.checkpoint_times_ms[:-1], time_ms + 1))
    with pytest.raises(ReplayError, match=f"finish at {time_ms} ms in the game, {time_ms + 1} ms in the race"):
        game.capture(late)
    first = (race.checkpoint_times_ms[0] + 1, *race.checkpoint_times_ms[1:])
    with pytest.raises(ReplayError, match=f"checkpoints at .*, {first[0]},"):
        game.capture(replace(race, checkpoint_times_ms=first))


def test_unfinished_races_are_held_to_their_checkpoints(game: GameCapture, races: list[Race]) -> None:
    race = races[0]
    ticks = race.checkpoint_times_ms[0] // 10 + 7
    part = replace(
        race,
        controls=race.controls[:ticks],
        race_time_ms=None,
        is_finished=False,
        checkpoint_times_ms=race.checkpoint_times_ms[:1],
    )
    assert len(game.capture(part).image) == -(-ticks // 5)
    with pytest.raises(ReplayError, match="in the game, no time in the race"):
        game.capture(replace(part, checkpoint_times_ms=()))


def test_keys_are_those_of_their_tick(races: list[Race]) -> None:
    controls = np.zeros((4, 3), np.float32)
    controls[:, 0] = (-1.0, 0.0, 1.0, 0.0)
    race = replace(races[0], controls=controls)
    assert [(keys.left, keys.right) for keys in keys_by_tick(race)] == [(1, 0), (0, 0), (0, 1), (0, 0)]
    with pytest.raises(ReplayError, match="analog inputs, first at 70 ms"):
        keys_by_tick(analog(races[0]))


def test_a_lost_connection_costs_nothing_but_time(game: GameCapture, races: list[Race]) -> None:
    """The race is begun again; its frames are there once, and they are those of an undisturbed race."""
    expected, session, num_drives = game.capture(races[0]), game._session, 0
    drive = session.drive

    def drive_until_lost(controls: Sequence[Controls]) -> Decision:
        nonlocal num_drives
        num_drives += 1
        if num_drives == 20:
            session._client.close()
        return drive(controls)

    session.drive = drive_until_lost  # pyright: ignore[reportAttributeAccessIssue]
    again = game.capture(races[0])
    assert num_drives == 20 + len(expected.image)
    np.testing.assert_array_equal(again.image, expected.image)
    np.testing.assert_array_equal(again.floats, expected.floats)


def run_stage(folder: Path, races: list[Race], port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "races" / "tracks").mkdir(parents=True)
    write_races(folder / "races", RaceDataset(tuple(races), TRACK, ()))
    monkeypatch.setenv("RULKA_GAME_PORT", str(port))
    monkeypatch.setenv("RULKA_GAME_SPEED", "100")
    changes = {"backend": "game", "maps": "main", "validation_fraction": 0.0, "test_fraction": 0.0}
    params = PARAMS.model_copy(update={"capture": PARAMS.capture.model_copy(update=changes)})
    stage.capture(params, races_dir=folder / "races", out_dir=folder / "frames", runs_dir=folder / "runs")
    return folder / "frames"


def test_the_stage_uses_what_was_verified_alone(
    races: list[Race], port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = run_stage(tmp_path, [*races, tampered(races[1], 60), analog(races[2])], port, monkeypatch)
    assert {race.race_id for race in FrameDataset(frames, "train").races} == {race.race_id for race in races}
    quarantine = {entry["race_id"]: entry["reason"] for entry in json.loads((frames / "quarantine.json").read_text())}
    assert set(quarantine) == {"tampered", "analog"}
    assert "analog inputs" in quarantine["analog"]
    with pytest.raises(ReplayError, match="no race of 1 was the same in the game; the first: analog inputs"):
        run_stage(tmp_path / "none", [analog(races[0])], port, monkeypatch)
    assert not (tmp_path / "none" / "frames").exists()
