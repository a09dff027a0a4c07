"""Converts a race to observations and action labels, rendered by the simulator's camera.

The floats come from the same `build_floats` that simulator and game use; previous actions are one decision apart, as
when an agent drives. Frames run from the start to the last decision before the finish.
Dimensions: N decisions, T ticks, A actions, H x W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import FORWARD, TICK_MS, ActionTable
from rulka.contracts.observation import CAR, NUM_FLOATS, NUM_PREVIOUS_ACTIONS, build_floats, centres_of_mass
from rulka.datasets.formats.frames import CapturedRace
from rulka.datasets.formats.races import Race
from rulka.recordings.car_rows import MAX_EXTRAPOLATION_MS, gearbox_counter, interpolate_rows
from rulka.recordings.controls import label_decisions
from rulka.simulator.render import FrameRenderer
from rulka.simulator.scene import Scene
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track


@dataclass(frozen=True)
class CaptureSettings:
    """Settings for converting races to frames.

    Attributes:
        height: image height in pixels.
        width: image width in pixels.
        table: action table; a frame is captured at every decision.
        steer_dead_zone: analog steering up to this magnitude counts as zero.
        camera: from `rulka.simulator.render.camera_array`.
    """

    height: int
    width: int
    table: ActionTable
    steer_dead_zone: float
    camera: NDArray[np.float32]


def capture_race(race: Race, track: Track, scene: Scene, settings: CaptureSettings) -> CapturedRace:
    """Renders one race and pairs every frame with its floats, its action and its time."""
    decision_ms = decision_times(race, settings.table.duration_ms)
    cars = cars_at(race, decision_ms)
    zone_index, _, _ = progress_along(track, centres_of_mass(cars))
    image = np.empty((len(cars), settings.height, settings.width), np.uint8)
    FrameRenderer(cars, zone_index, scene, settings.camera).render(image)
    return captured_race(race, track, decision_ms, cars, image, settings)


def captured_race(
    race: Race,
    track: Track,
    decision_ms: NDArray[np.int64],
    cars: NDArray[np.float32],
    image: NDArray[np.uint8],
    settings: CaptureSettings,
) -> CapturedRace:
    """Adds floats and labels to the images of a race.

    Args:
        race: the race.
        track: its track.
        decision_ms: [N] time of every decision.
        cars: [N, 39] `CAR` rows.
        image: [N, H, W].
        settings: capture settings.
    """
    table, last = settings.table, race.num_ticks - 1
    # A decision affects only later states: its label is the controls of the ticks from then on.
    first = np.minimum(decision_ms // TICK_MS, last)
    done = label_decisions(race.controls, table, first, settings.steer_dead_zone)
    held = race.controls[np.minimum(first[:, None] + np.arange(table.decision_ticks), last)]
    zone_index, along_m, _ = progress_along(track, centres_of_mass(cars))
    floats = np.empty((len(cars), NUM_FLOATS), np.float32)
    margin_m = (track.length_m - along_m).astype(np.float32)
    build_floats(cars, previous_keys(done.action, table), track.zones, zone_index, margin_m, floats)
    return CapturedRace(
        race_id=race.race_id,
        source=race.source,
        map_uid=race.map_uid,
        image=image[:, None],
        floats=floats,
        action=done.action.astype(np.uint8),
        action_share=done.share,
        tick_actions=done.by_tick.astype(np.uint8),
        controls=held.mean(axis=1, dtype=np.float64).astype(np.float32),
        time_ms=decision_ms.astype(np.int32),
        along_m=along_m.astype(np.float32),
    )


def decision_times(race: Race, decision_ms: int) -> NDArray[np.int64]:
    """Returns [N] the time of every decision before the finish for which the car's state is known."""
    end_ms = min(race.duration_ms, int(race.state_time_ms[-1]) + MAX_EXTRAPOLATION_MS)
    return np.arange(0, end_ms, decision_ms, dtype=np.int64)


def cars_at(race: Race, time_ms: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns [N, 39] `CAR` rows at the given times: stored ones as they are, others interpolated.

    The gearbox counter is recomputed, in decisions.
    """
    cars = interpolate_rows(race.state_time_ms, race.state, time_ms)
    stored = np.searchsorted(race.state_time_ms, time_ms)
    is_stored = race.state_time_ms[np.minimum(stored, len(race.state) - 1)] == time_ms
    cars[is_stored] = race.state[stored[is_stored]]
    cars[:, CAR["gearbox_counter"]] = gearbox_counter(cars[:, CAR["gearbox_state"]][:, 0])[:, None]
    return cars


def previous_keys(actions: NDArray[np.int64], table: ActionTable) -> NDArray[np.float32]:
    """Returns [N, 5, 4] the keys of the 5 previous decisions, oldest first; "forward" before the start.

    Args:
        actions: [N] action of every decision.
        table: action table.
    """
    padded = np.concatenate([np.full(NUM_PREVIOUS_ACTIONS, FORWARD), actions])
    windows = np.lib.stride_tricks.sliding_window_view(padded, NUM_PREVIOUS_ACTIONS)[: len(actions)]
    return table.keys()[windows]
