"""Settings of a race as one value: for training, greedy checks, evaluation, demonstrations and the game."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from rulka.contracts.actions import ActionParams, ActionTable, Parts, Ticks, Times, action_table
from rulka.contracts.observation_params import ObservationParams
from rulka.contracts.problems import did_you_mean, problems_of
from rulka.contracts.section import Several
from rulka.machine.errors import UserError
from rulka.params import reference_params
from rulka.simulator.params import SimulatorParams
from rulka.simulator.race_params import (
    LineStartParams,
    RaceEndParams,
    RaceStartParams,
    RandomisationParams,
    RewardParams,
    TrainingRaceParams,
)

ALIKE = RandomisationParams()
"""No domain randomisation."""


class RaceSettings(RaceEndParams, RaceStartParams):
    """All settings of a race except track and driver: start, end, rewards, physics, actions and observations.

    Built once, from the sections that a stage reads or from an environment's keywords, whose names and types are those
    of the fields. It is then passed on unchanged, also to other processes.
    """

    simulator: SimulatorParams = Field(description="Physics and camera.")
    observation: ObservationParams | None = Field(None, description="Observations of the agent; null for none.")
    rewards: RewardParams | None = Field(None, description="Weights of the reward; null for none.")
    ticks_per_action: Ticks = Field(description="Duration of a decision before action_repeat, in ticks of 10 ms.")
    actions_per_decision: Parts = Field(
        1,
        description="Actions that share a decision's ticks evenly, or a list of their offsets in ms.",
    )
    continuous: bool = Field(False, description="Actions as steer, gas and brake instead of an index.")
    action_repeat: Times = Field(1, description="Number of times that each decision is taken in a row.")
    randomisation: RandomisationParams = Field(ALIKE, description="Randomised physics.")
    races_per_start: Several = Field(1, description="Number of cars side by side that share a start; 1 for none.")

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        if self.continuous and self.actions_per_decision != 1:
            yield "continuous needs one action per decision: set actions_per_decision to 1, or continuous to false"
        if self.races_per_start > 1 and self.start_from_earlier > 0.0:
            yield f"races_per_start {self.races_per_start} needs equal starts: set start_from_earlier to 0"
        _ = self.table  # raises if the actions cannot divide the ticks

    @classmethod
    def for_training(
        cls,
        observation: ObservationParams,
        actions: ActionParams,
        simulator: SimulatorParams,
        race_end: RaceEndParams,
        rewards: RewardParams,
        train: TrainingRaceParams,
        actions_per_decision: Parts,
    ) -> RaceSettings:
        """Returns the settings of training races. Greedy checks use the same, but start at the line (`at_line`)."""
        return cls(
            **dict(race_end),
            simulator=simulator,
            observation=observation,
            rewards=rewards,
            ticks_per_action=actions.ticks_per_action,
            actions_per_decision=actions_per_decision,
            randomisation=train.randomisation,
            **{name: getattr(train, name) for name in RaceStartParams.model_fields},
        )

    @classmethod
    def for_demonstrations(
        cls, actions: ActionParams, simulator: SimulatorParams, race_end: RaceEndParams
    ) -> RaceSettings:
        """Returns the settings of the built-in driver's races: from the start line, up to 1 m beside its middle."""
        return cls(
            **dict(race_end),
            simulator=simulator,
            ticks_per_action=actions.ticks_per_action,
            start_anywhere=0.0,
            start_lateral_m=1.0,
            start_heading_deg=0.0,
            start_speed_mps=0.0,
        )

    @classmethod
    def for_evaluation(
        cls,
        observation: ObservationParams,
        actions: ActionParams,
        simulator: SimulatorParams,
        starts: LineStartParams,
        race_end: RaceEndParams,
    ) -> RaceSettings:
        """Returns the settings of evaluation races: as for demonstrations, with their own starts."""
        own = {name: getattr(starts, name) for name in LineStartParams.model_fields} | {"observation": observation}
        return cls.for_demonstrations(actions, simulator, race_end).model_copy(update=own)

    def with_equal_starts(self, races_per_start: int) -> RaceSettings:
        """Returns a copy in which `races_per_start` races share each start; raises ValueError if that is impossible."""
        return RaceSettings.model_validate(dict(self) | {"races_per_start": races_per_start})

    def at_line(self) -> RaceSettings:
        """Returns a copy in which all races begin at the start line, each with its own random start."""
        return self.model_copy(update={"start_anywhere": 0.0, "start_from_earlier": 0.0, "races_per_start": 1})

    def decided_by(self, table: ActionTable) -> RaceSettings:
        """Returns a copy with the decisions of an action table."""
        return self.model_copy(
            update={
                "actions_per_decision": table.parts,
                "continuous": table.is_analog,
                "action_repeat": table.repeats,
            }
        )

    @property
    def table(self) -> ActionTable:
        """The action table."""
        return action_table(
            self.ticks_per_action,
            self.actions_per_decision,
            is_analog=self.continuous,
            repeats=self.action_repeat,
        )

    @property
    def image(self) -> ObservationParams:
        """Image observations; raises ValueError if the races have none."""
        if self.observation is None:
            raise ValueError("nobody looks in these races: they have no image")
        return self.observation

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[L, H, W] of a car's image: L frames, oldest first."""
        return self.image.image_shape


KEYWORDS = frozenset(RaceSettings.model_fields)


class UnknownKeywordError(UserError, TypeError):
    """An unknown keyword of an environment; also a `TypeError`, which torchrl relies on."""


def read_settings(
    settings: RaceSettings | None, keywords: Mapping[str, Any], known: Collection[str] = KEYWORDS
) -> RaceSettings:
    """Builds the settings of an environment and checks its keywords.

    Args:
        settings: base settings; None takes the reference parameters.
        keywords: fields of `RaceSettings` that override them; None counts as missing.
        known: fields that the environment accepts as keywords.

    Raises:
        UnknownKeywordError: if a keyword is unknown.
        UserError: if a value has a wrong type or is out of range.
    """
    unknown = sorted(set(keywords) - set(known), key=str)
    if unknown:
        # Python's own wording: torchrl's `GymEnv` searches for it and retries without that keyword.
        near = did_you_mean(str(unknown[0]), known) or f"; known are {', '.join(sorted(known))}"
        raise UnknownKeywordError(f"unexpected keyword argument {', '.join(map(repr, unknown))}{near}")
    if settings is not None and not isinstance(settings, RaceSettings):
        raise UserError(f"settings is a RaceSettings, got {settings!r:.80}")
    given = {name: value for name, value in keywords.items() if value is not None}
    if settings is not None and not given:
        return settings
    try:
        return RaceSettings.model_validate(_changed(settings or _reference_settings(), given))
    except ValidationError as error:
        raise UserError("; ".join(problems_of(error, RaceSettings))) from error


def _changed(section: BaseModel, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a section with changes merged in; changes of nested sections may be partial."""
    fields = dict(section)
    for name, value in changes.items():
        inner = fields.get(name)
        if isinstance(inner, BaseModel) and isinstance(value, Mapping):
            fields[name] = _changed(inner, value)
        else:
            fields[name] = value.item() if isinstance(value, np.generic) else value
    return fields


def _reference_settings() -> RaceSettings:
    """Returns the reference training settings, without randomisation and with the starts of evaluation."""
    params = reference_params()
    settings = RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, params.rewards, params.train, 1
    )
    start = {name: getattr(params.evaluate, name) for name in LineStartParams.model_fields}
    return settings.at_line().model_copy(update=start | {"randomisation": ALIKE})
