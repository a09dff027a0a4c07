"""The API of `import rulka`: agents, encoders, data, and evaluation in races.

Environments come from Gymnasium: `gymnasium.make("rulka/Race-v0")` and `make_vec`. Pages and examples: docs/library.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from rulka.agents.load import DRIVING_KINDS, driver_of
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import load_artifact
from rulka.contracts.problems import did_you_mean
from rulka.datasets.formats.frames import FrameDataset
from rulka.datasets.formats.races import RaceDataset
from rulka.datasets.formats.races import load_races as read_races
from rulka.datasets.formats.split import Split
from rulka.envs.race import RaceEnv
from rulka.envs.settings import action_space, observation_space, read_track
from rulka.envs.vector import RaceVectorEnv
from rulka.evaluation.contest import Driver, race_all
from rulka.evaluation.external_policy import Act, ExternalPolicy, find_guest, is_guest
from rulka.evaluation.metrics import metrics_of
from rulka.evaluation.race import EvaluationRaces, find_reference_race
from rulka.evaluation.results import RaceResult
from rulka.machine.errors import UserError
from rulka.operations.kept import find_agent, name_of
from rulka.params import reference_params, with_given
from rulka.recordings.errors import RecordingError
from rulka.recordings.model import Recording
from rulka.recordings.reader import read_recording as recording_in
from rulka.simulator.race_settings import KEYWORDS, RaceSettings, UnknownKeywordError, read_settings
from rulka.stages.folders import ENCODER, FRAMES, RACES
from rulka.tracks.track import Track

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ObservationError(UserError, ValueError):
    """An observation does not fit an agent or encoder; the message names the part."""


class ContractError(UserError):
    """An environment differs from the one that an agent was trained for; the message names the keyword."""


# Agents ---------------------------------------------------------------------------------------------------------------


class Agent:
    """A trained agent or a cloned policy, for inference.

    Attributes:
        name: as `rulka agents list` has it.
        algorithm: that trained it, or "cloning".
        settings: the races that it was trained for: its observations, the effect and the length of its decisions.
        observation_space: of one car.
        action_space: of one car.
        policy: decides for arrays of N cars, greedily by default.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        """Reads an agent; see `load_agent`."""
        artifact = load_artifact(folder, DRIVING_KINDS)
        self.policy = driver_of(artifact, folder)
        self._draw = self.policy.make_draw and self.policy.make_draw(torch.Generator().manual_seed(seed))
        self.name, self.algorithm = name_of(folder), self.policy.algorithm
        table = artifact.table
        sight = {"observation": artifact.observation.params()}
        self.settings = read_settings(None, sight | {"ticks_per_action": table.decision_ticks}).decided_by(table)
        self.observation_space = observation_space(self.settings)
        self.action_space = action_space(self.settings)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def act(self, observation: Mapping[str, Any], *, sample: bool = False) -> NDArray:
        """Chooses an action for one car, or for each of N.

        Args:
            observation: `image` uint8 [L, H, W] and `floats` float32 [F]; both have a leading axis for N cars.
            sample: draw from the policy's distribution, with the seed that the agent was loaded with, instead of taking
                the action it prefers.

        Returns:
            An action of the action space; for N cars, an array with a row for each.

        Raises:
            ObservationError: if a part is missing, holds NaN, or has another dtype or shape.
            UserError: if `sample` is set and the network has no probabilities, as IQN's has none.
        """
        if sample and self._draw is None:
            message = f"{self.name} decides by values, and has no probabilities to draw from"
            raise UserError(message, hint="Leave out sample.")
        parts = {name: _checked(observation, name, space) for name, space in self.observation_space.items()}
        is_one = parts["floats"].ndim == 1
        image, floats = (part[None] if is_one else part for part in (parts["image"], parts["floats"]))
        if len(image) != len(floats) or image.ndim != 4:
            message = f"image is {parts['image'].shape} and floats {parts['floats'].shape}: not of as many cars"
            raise ObservationError(message)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # for a few cars, torch's threads wait for each other longer than they compute
        try:
            decided = self.policy(image, floats, self._draw if sample else None)
        finally:
            torch.set_num_threads(threads)
        return decided[0] if is_one else decided

    def make_env(self, track: Track | Path | str | None = None, **keywords: Any) -> RaceEnv:
        """Returns an environment that fits the agent; see `RaceEnv` for the arguments.

        Raises:
            ContractError: if a keyword contradicts what the agent was trained for.
        """
        return self.check(RaceEnv(track, settings=self.settings, **keywords))

    def make_vec(self, num_envs: int, track: Track | Path | str | None = None, **keywords: Any) -> RaceVectorEnv:
        """Returns a vector environment that fits the agent; see `RaceVectorEnv` for the arguments.

        Raises:
            ContractError: if a keyword contradicts what the agent was trained for.
        """
        return self.check(RaceVectorEnv(num_envs, track, settings=self.settings, **keywords))

    def check(self, env: Any) -> Any:
        """Returns an environment if the agent can act in it as in its own.

        Raises:
            ContractError: if observations or actions differ; the message names the keyword.
        """
        settings = getattr(getattr(env, "unwrapped", None), "settings", None)
        if not isinstance(settings, RaceSettings):
            raise ContractError(f"{self.name} acts in rulka/Race-v0, got {env!r:.80}")
        self.check_settings(settings)
        return env

    def check_settings(self, settings: RaceSettings) -> None:
        """Raises ContractError if race settings differ from the agent's, see `check`."""
        theirs = _contract_of(settings)
        for name, own in _contract_of(self.settings).items():
            if theirs[name] != own:
                message = f"{self.name} was trained with {name} {own!r}, and this environment has {theirs[name]!r}"
                raise ContractError(message, hint="`make_env` and `make_vec` of the agent give its own.")


def load_agent(name: str | Path = "latest", *, seed: int = 0) -> Agent:
    """Reads an agent.

    Args:
        name: "latest", "promoted", a name (`rulka agents list`), or the folder of an agent or a cloned policy.
        seed: for `Agent.act` with `sample`.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    return Agent(find_agent(_place("an agent", name).as_posix()), seed)


def _contract_of(settings: RaceSettings) -> dict[str, Any]:
    """Returns the settings that an agent depends on, by keyword."""
    names = ("ticks_per_action", "actions_per_decision", "continuous", "action_repeat")
    seen = {f"observation.{name}": value for name, value in settings.image}
    return seen | {name: getattr(settings, name) for name in names}


def _checked(observation: Mapping[str, Any], name: str, space: Any) -> NDArray:
    """Returns a part of an observation, for one car or for many, after checking it."""
    if not isinstance(observation, Mapping) or name not in observation:
        given = f"keys {list(observation)}" if isinstance(observation, Mapping) else f"a {type(observation).__name__}"
        message = f"the observation has no {name!r}: expected a mapping with image and floats, got {given}"
        raise ObservationError(message)
    part = np.asarray(observation[name])
    if part.dtype != space.dtype or part.shape[-len(space.shape) :] != space.shape or part.ndim > 1 + len(space.shape):
        message = f"{name} is {part.dtype} {part.shape}, expected {space.dtype} {space.shape}, or N of these"
        raise ObservationError(message)
    if np.isnan(part).any():
        raise ObservationError(f"{name} holds NaN")
    return part


# Encoders -------------------------------------------------------------------------------------------------------------


class ImageEncoder(nn.Module):
    """A pretrained encoder with its normalisation: maps raw images to features; can be part of another network.

    Attributes:
        image_shape: [L, H, W] of one image.
        num_features: E.
    """

    def __init__(self, folder: Path) -> None:
        """Reads an encoder; see `load_encoder`."""
        super().__init__()
        artifact = load_artifact(folder, "encoder")
        observation = artifact.observation.params()
        self.image_shape = observation.image_shape
        self._channels = observation.channels
        self.encoder = build_encoder(artifact.encoder, observation.height, observation.width, self._channels)
        weights = {name.removeprefix("encoder."): tensor for name, tensor in artifact.tensors.items()}
        self.encoder.load_state_dict(weights)
        self.num_features = self.encoder.num_features * (observation.frames // self._channels)

    def forward(self, image: Tensor) -> Tensor:
        """Maps images [B, L, H, W] of pixels 0 to 255, uint8 or float, to features [B, E] float32.

        Raises:
            ObservationError: if the shape differs, or the pixels are already normalised.
        """
        if not isinstance(image, Tensor):
            raise ObservationError(f"image is a {type(image).__name__}, expected a torch tensor")
        if image.shape[1:] != self.image_shape:
            message = f"image has the shape {tuple(image.shape)}, expected [B, {', '.join(map(str, self.image_shape))}]"
            raise ObservationError(message)
        if image.dtype != torch.uint8 and (image != image.round()).any():
            message = f"image holds fractions of pixels ({image.dtype}), expected whole numbers from 0 to 255"
            hint = "stable-baselines3 divides images unless it gets normalize_images=False in policy_kwargs."
            raise ObservationError(message, hint=hint)
        pixels = image.to(torch.uint8).reshape(-1, self._channels, *self.image_shape[1:])
        return self.encoder(normalise_image(pixels, torch.float32)).reshape(len(image), self.num_features)


def load_encoder(folder: str | Path = ENCODER) -> ImageEncoder:
    """Reads a pretrained encoder, such as `data/encoder`.

    Raises:
        ArtifactError: if it is missing, damaged or not an encoder.
    """
    return ImageEncoder(_place("an encoder", folder))


# Data -----------------------------------------------------------------------------------------------------------------


def load_frames(folder: str | Path = FRAMES, split: Split = "train", *, frames: int = 1) -> FrameDataset:
    """Opens frames as a map-style dataset: item k is a dictionary of `image`, `floats` and `action`.

    Args:
        folder: a frame dataset.
        split: "train", "validation" or "test".
        frames: number of stacked frames, L.

    Raises:
        UserError: if the dataset is missing or damaged, or the split is unknown.
    """
    return FrameDataset(_place("frames", folder), split, frames)


def load_races(folder: str | Path = RACES) -> RaceDataset:
    """Reads a race dataset: `races`, their `table` as a data frame, and the tracks.

    Raises:
        UserError: if it is missing or damaged.
    """
    return read_races(_place("races", folder))


def read_recording(path: str | Path) -> Recording:
    """Reads a recording (`.Replay.Gbx`) or a ghost file (`.Ghost.Gbx`) of the games from 2004 to 2020.

    Raises:
        RecordingError: a subclass of it, which says what is wrong with the file.
    """
    try:
        return recording_in(_place("a recording", path))
    except RecordingError as error:
        raise type(error)(f"{Path(path).name}: {error}", hint=error.hint) from error


def _place(what: str, given: str | Path) -> Path:
    """Returns a name or path as a `Path`; `what` is for the message."""
    if not isinstance(given, str | Path) or not str(given):
        raise UserError(f"{what}: expected a name or path, got {given!r:.80}")
    return Path(given)


def load_track(name: str | Path | None = None) -> Track:
    """Returns a track, from a campaign slug or a file; by default the reference track.

    Raises:
        UserError: if there is no such track.
    """
    return read_track(name)


def plot_track(track: Track | Path | str | None) -> Figure:
    """Draws a track, or the one with a name: a plan with surfaces and edges, and height and bank along the way."""
    from rulka.report.track_plot import track_plot

    return track_plot(read_track(track))


# Evaluation -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Statistics of races, as the report has them. Times cover finished races; intervals are of 95 %.

    Attributes:
        track: of the races.
        races: all of them, with their paths.
        finish_rate: share that finished.
        finish_rate_interval: Wilson interval of the finish rate.
        best_time_s: None if none finished, like all other times.
        median_time_s: median.
        median_time_interval_s: of order statistics; None with fewer than six finished races.
        mean_progress_m: furthest point along the track, mean over all races.
        times_reference: the median as a multiple of the reference lap's time; None if the track has no such lap.
        lap_share: mean over races of the lap's time over theirs, 0 for a race that did not finish; likewise.
    """

    track: Track
    races: tuple[RaceResult, ...] = field(repr=False)
    finish_rate: float
    finish_rate_interval: tuple[float, float]
    best_time_s: float | None
    median_time_s: float | None
    median_time_interval_s: tuple[float, float] | None
    mean_progress_m: float
    times_reference: float | None = None
    lap_share: float | None = None


def evaluate(
    driver: Agent | Act | Path | str,
    track: Track | Path | str | None = None,
    *,
    num_races: int | None = None,
    seed: int | None = None,
    **keywords: Any,
) -> Score:
    """Evaluates an agent or a function in races from the start line.

    Args:
        driver: an agent, or its name or folder; or a function that maps the observation of N cars to their N actions,
            or its name, MODULE:FUNCTION.
        track: a track, a campaign slug or a track file; by default the reference track.
        num_races: by default 20.
        seed: of the first start, rising by one per race; by default 100.
        **keywords: of `rulka/Race-v0`: observations and actions of a function.

    Raises:
        UserError: if there is no such track, the function fails or returns no valid action, or a keyword is
            unknown or out of range.
    """
    params, where = reference_params(), read_track(track)
    for name in keywords:
        if name not in KEYWORDS:
            near = did_you_mean(name, [*KEYWORDS, "num_races", "seed", "track"])
            raise UnknownKeywordError(f"unexpected keyword argument {name!r}{near}")
    if isinstance(driver, str | Path) and not is_guest(driver):
        driver = load_agent(driver)
    if isinstance(driver, Agent):
        policy, name, settings = driver.policy, driver.name, read_settings(driver.settings, keywords)
        driver.check_settings(settings)
    else:
        policy = (
            find_guest(str(driver), keywords) if isinstance(driver, str | Path) else ExternalPolicy(driver, keywords)
        )
        name, settings = policy.label, policy.settings
    of_races = with_given(params.evaluate, num_races=num_races, seed=seed)
    seeds = range(of_races.seed, of_races.seed + of_races.num_races)
    races = EvaluationRaces(where, settings.decided_by(action_table(settings.ticks_per_action)), seeds)
    lap = find_reference_race(RACES, races)
    found = race_all([Driver("agent", name, policy)], races, [], lap, sys.stderr)
    numbers: dict[str, Any] = metrics_of(found, name)["agent"]
    own: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in numbers.items()
        if key in Score.__dataclass_fields__ and key != "races"
    }
    return Score(track=where, races=tuple(found.contestants[0].races), **own)
