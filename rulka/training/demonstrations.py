"""Captured races as experience, with the reward formulas of training, on the same track.

Only races of the built-in driver are replayed. The transitions of a person's race are not those of the environment: a
player changes keys within a decision and steers partially, so the label is only the nearest action, and in a recording
the next state comes from the real game. These are for cloning, whose loss needs only labels.

Dimensions: T decisions, H x W pixels.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rulka.buffers.experience import ExperienceBlock, as_block
from rulka.contracts.actions import CONTROLS, ActionTable, shares_of_ticks
from rulka.contracts.observation import FROM_END
from rulka.datasets.formats.frames import CapturedRace, FrameDataset
from rulka.datasets.formats.races import RaceDataset
from rulka.envs.rewards import NUM_RULES, set_rewards
from rulka.envs.scoring import score_captured
from rulka.machine.errors import UserError, counted
from rulka.simulator.race_params import RewardParams

SHORTEST_DECISIONS = 2
REPLAYED_SOURCE = "driver"
_ROAD_M = slice(FROM_END["waypoints"].start, FROM_END["waypoints"].start + 6)
_SEEN = (FROM_END["velocity"], FROM_END["has_contact"], _ROAD_M)
_FULL_GAS = np.array([keys.accelerate and not keys.brake for keys in CONTROLS])

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackEnd:
    """Finish of a race.

    Attributes:
        length_m: length of the track.
        time_ms: race time.
    """

    length_m: float
    time_ms: int


def demonstration_blocks(
    frames_dir: Path, races: RaceDataset, rewards: RewardParams, frames_seen: int, table: ActionTable
) -> list[ExperienceBlock]:
    """Turns every captured training race of the built-in driver on the main track into blocks of one car.

    Returns:
        One block per race and repeat of a decision; none, with a warning, if people drove all races.

    Args:
        frames_dir: the frame dataset.
        races: the races from which the frames were captured.
        rewards: weights of the reward.
        frames_seen: frames per observation.
        table: action table of the learning agent.

    Raises:
        UserError: if the frames show another track, or a race that is not in the dataset.
    """
    frames = FrameDataset(frames_dir, "train", frames_seen, table.parts)
    if frames.index.main_track != races.main_track.uid:
        message = f"the frames show track {frames.index.main_track!r}, training is on {races.main_track.uid!r}"
        raise UserError(message, hint="Run `dvc repro capture` again.")
    times_ms = {race.race_id: race.race_time_ms for race in races.races}
    blocks = []
    shown_races = [race for race in frames.on_main_track() if not race.is_recovery]
    for entry in shown_races:
        if entry.race_id not in times_ms:
            message = f"race {entry.race_id} was captured but is not among the races any more"
            raise UserError(message, hint="Run `dvc repro capture` again.")
        if entry.source != REPLAYED_SOURCE or entry.num_frames < SHORTEST_DECISIONS * table.repeats:
            continue
        shown = slice(entry.start, entry.start + entry.num_frames)
        race = CapturedRace(
            race_id=entry.race_id,
            source=entry.source,
            map_uid=entry.map_uid,
            image=frames.frame_stacks(shown),
            floats=frames.floats_seen(shown),
            action=frames.decided(shown).action.astype(np.uint8),
            action_share=frames.action_share[shown],
            tick_actions=frames.tick_actions[shown],
            controls=frames.controls[shown],
            time_ms=frames.time_ms[shown],
            along_m=frames.along_m[shown],
        )
        time_ms = times_ms[entry.race_id]
        end = TrackEnd(races.main_track.length_m, time_ms) if time_ms else None
        blocks += [race_block(each, end, rewards) for each in longer_decisions(race, table)]
    if not blocks:
        _LOGGER.warning(
            "no demonstrations are replayed: of %s none is of the built-in driver", counted(len(shown_races), "race")
        )
    return blocks


def longer_decisions(race: CapturedRace, table: ActionTable) -> list[CapturedRace]:
    """Resamples a race for an agent with action repeat: one race for each possible offset of the first decision.

    The action of a longer decision is the one held longest in it. Without action repeat, the race is returned as it is.
    """
    if table.repeats == 1:
        return [race]
    num_frames = len(race.time_ms)
    seen = []
    for first in range(table.repeats):
        kept = np.arange(first, num_frames, table.repeats)
        joined = np.minimum(kept[:, None] + np.arange(table.repeats), num_frames - 1)
        held = race.tick_actions[joined].reshape(len(kept), -1)
        share, longest = shares_of_ticks(held.astype(np.int64), table.num_actions)
        seen.append(
            replace(
                race,
                image=race.image[kept],
                floats=race.floats[kept],
                action=longest.astype(np.uint8),
                action_share=share,
                tick_actions=held.astype(np.uint8),
                controls=race.controls[joined].mean(axis=1),
                time_ms=race.time_ms[kept],
                along_m=race.along_m[kept],
            )
        )
    return seen


def race_block(race: CapturedRace, end: TrackEnd | None, rewards: RewardParams) -> ExperienceBlock:
    """Turns one captured race into a block of one car.

    Each frame precedes a decision. The last decision of a finished race crosses the line: it has no next observation,
    and needs none because no value follows. In an unfinished race, the last frame is only the next observation of the
    decision before it; the race is truncated there. Engineered rewards have their weights at step 0 of the run, because
    demonstrations were driven before it. For the decision that crosses the line, they and the finish reward use the
    state before it.

    Args:
        race: at least two frames; actions [N, K] if decisions are chunks of K.
        end: its finish, or None if it did not finish.
        rewards: weights of the reward.
    """
    after = slice(None) if end else slice(None, -1)
    along_m, time_ms = race.along_m.astype(np.float64), race.time_ms.astype(np.float64)
    if end:
        along_m, time_ms = np.append(along_m, end.length_m), np.append(time_ms, float(end.time_ms))
    num_steps = len(along_m) - 1
    is_last = np.arange(num_steps) == num_steps - 1
    observations = {"image": race.image, "floats": race.floats}
    if end:
        observations = {name: np.concatenate([values, values[-1:]]) for name, values in observations.items()}
    observations["potential"] = np.empty(num_steps + 1, np.float32)
    decisions = {
        "action": race.action[after].reshape(num_steps, -1),
        "reward": np.empty(num_steps, np.float32),
        "terminated": is_last & (end is not None),
        "truncated": is_last & (end is None),
    }
    rules = np.zeros(NUM_RULES)
    set_rewards(rules, rewards)
    velocity_mps, has_contact, waypoints_m = (np.ascontiguousarray(observations["floats"][:, part]) for part in _SEEN)
    gained_m, duration_s = np.diff(along_m), np.diff(time_ms) / 1000.0
    is_full_gas = _FULL_GAS[race.action[after].reshape(num_steps, -1)[:, -1]]
    score_captured(
        gained_m,
        duration_s,
        is_full_gas,
        velocity_mps,
        has_contact,
        waypoints_m,
        end is not None,
        rules,
        decisions["reward"],
        observations["potential"],
    )
    return as_block(observations, decisions)
