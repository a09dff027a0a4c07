"""Episodes of any Gymnasium environment as a batch of cars for the runtime; see docs/any-environment.md.

An episode stands for a race, an environment for a car. Dimensions: N parallel environments, L stacked frames, H x W
pixels, F floats. Float 0 is IQN's clock of the mini-race, which its learner writes; the environment's numeric
observations follow, part after part.
"""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from PIL import Image

from rulka.buffers.experience import ExperienceBlock, as_block
from rulka.contracts.actions import ActionSpace, Choices, Intervals
from rulka.contracts.observation import FLOATS, Normalisation, reference_normalisation
from rulka.contracts.observation_params import MIN_PIXELS, ObservationParams
from rulka.contracts.schedule import Moment
from rulka.contracts.step_results import Floats, Images, StepResult
from rulka.machine.errors import UserError
from rulka.simulator.frame_stack import FrameStack

WHOLE = ""
"""Name of the only part if an observation is a single array, not a dictionary."""
MOST_ACTIONS = 255
"""Experience blocks store action indices as bytes; the largest value marks an unwritten action."""
MOST_BOUND = 1e38
"""Largest bound of an action; networks compute in float32, whose range is little larger."""
CHANNELS = (1, 3)
RANDOM_ENVS, RANDOM_STEPS = 16, 512
"""Environments, and random steps in each, from which the normalisation is measured."""
REACH = 4.0
"""Largest assumed standard deviation of a number, in standard deviations under random actions."""
STILL = 1e-6
"""Numbers with a standard deviation below this count as constant."""

WRAPPED = "Gymnasium's wrappers make other spaces into these; register the wrapped environment under an ID of its own."


@dataclass(frozen=True)
class EnvironmentFacts:
    """Observation and action layout of an environment.

    Attributes:
        environment: its ID with version, prefixed with `module:` if a module has to be imported first.
        image: name of the image part of an observation; None if there is none.
        numbers: names of all other parts, in the order of the floats.
        num_floats: F, including the clock.
        actions: its action space; a Box is flattened.
    """

    environment: str
    image: str | None
    numbers: tuple[str, ...]
    num_floats: int
    actions: ActionSpace

    def seen(self, observation: ObservationParams) -> ObservationParams:
        """Returns the observation parameters of agents; without an image, the smallest one, withheld and not encoded.

        Raises:
            UserError: if a withheld part exists only in races, or nothing is left to observe.
        """
        others = [part for part in observation.withheld if part != "image"]
        if others:
            message = f"observation.withheld names {others[0]}, which is a part of races: {self.environment} has none"
            raise UserError(message, hint="Of other environments only the image can be withheld.")
        for name in ("waypoints", "previous_actions"):
            if getattr(observation, name) != (default := ObservationParams.model_fields[name].default):
                message = f"observation.{name} is about races, and {self.environment} has none"
                raise UserError(message, hint=f"Leave it at {default}.")
        if self.image is None:
            size = {"height": MIN_PIXELS, "width": MIN_PIXELS, "frames": 1, "withheld": ("image",)}
            return observation.model_copy(update=size)
        if not observation.shows_image and not self.numbers:
            message = f"observation.withheld leaves nothing to see of {self.environment}, which shows an image alone"
            raise UserError(message)
        return observation


def read_facts(environment: str) -> EnvironmentFacts:
    """Creates an environment and reads its spaces.

    Raises:
        UserError: if it cannot be created or a space is unsupported.
    """
    made = _make(environment, 1)
    module, colon, _ = environment.rpartition(":")
    if made.spec is not None:  # resolves an ID without version to the newest version
        environment = f"{module}{colon}{made.spec.id}"
    try:
        image, numbers, count = _read_observation(environment, made.single_observation_space)
        return EnvironmentFacts(
            environment, image, numbers, 1 + count, _read_actions(environment, made.single_action_space)
        )
    finally:
        made.close()


@contextmanager
def _blaming(environment: str, part: str) -> Iterator[None]:
    """Turns exceptions of an environment's code into UserError; passes lookup and import errors on."""
    try:
        yield
    except (UserError, gymnasium.error.Error, ImportError):
        raise
    except Exception as error:  # third-party code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{environment} fails in its {part}: {type(error).__name__}: {error}"
        raise UserError(message, hint=f"It comes from {place.filename}, line {place.lineno}.") from error


def _make(environment: str, num_envs: int) -> VectorEnv[Any, Any, Any]:
    try:
        with _blaming(environment, "constructor"):
            made = gymnasium.make_vec(environment, num_envs)
    except (gymnasium.error.Error, ImportError) as error:
        message = f"{environment} cannot be made: {error}"
        hint = (
            "`python -c 'import gymnasium; gymnasium.pprint_registry()'` lists what is there; MODULE:ID imports first."
        )
        raise UserError(message, hint=hint) from error
    mode = made.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.NEXT_STEP:
        made.close()
        message = f"{environment} resets its episodes in the mode {mode}, and not with the next step"
        hint = "Where it makes its vector environment, pass autoreset_mode=AutoresetMode.NEXT_STEP (gymnasium.vector)."
        raise UserError(message, hint=hint)
    return made


def _parts_of(space: spaces.Space[Any]) -> dict[str, spaces.Space[Any]]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {WHOLE: space}


def _read_observation(environment: str, space: spaces.Space[Any]) -> tuple[str | None, tuple[str, ...], int]:
    """Returns the names of the image and of the numeric parts, and the total count of numbers."""
    images, numbers, count = [], [], 0
    for name, part in _parts_of(space).items():
        if isinstance(part, spaces.Box) and _is_image(part):
            images.append(name)
        elif isinstance(part, spaces.Box) and len(part.shape) <= 1:
            numbers.append(name)
            count += int(np.prod(part.shape))
        else:
            what = f"the part {name!r} of what" if name != WHOLE else "what"
            message = f"{what} {environment} shows is {part}, which is no image and no vector"
            hint = (
                "An image is a Box of uint8 with one or three channels, [H, W], [H, W, C] or [C, H, W]; a vector a Box"
                " of one dimension; a Dict has one image and vectors. " + WRAPPED
            )
            raise UserError(message, hint=hint)
    if not images and not count:
        message = f"{environment} shows nothing: {space}"
        raise UserError(message, hint="Agents decide by what they see: let it show a number at least.")
    if len(images) > 1:
        message = f"{environment} shows {len(images)} images, {', '.join(images)}, and agents see one"
        raise UserError(message, hint=WRAPPED)
    return next(iter(images), None), tuple(numbers), count


def _is_image(space: spaces.Box) -> bool:
    shape = space.shape
    has_channels = len(shape) == 3 and (shape[-1] in CHANNELS or shape[0] in CHANNELS)
    return space.dtype == np.uint8 and (len(shape) == 2 or has_channels)


def _read_actions(environment: str, space: spaces.Space[Any]) -> ActionSpace:
    if isinstance(space, spaces.Discrete):
        if space.n > MOST_ACTIONS:
            raise UserError(f"{environment} has {space.n} actions, and there may be at most {MOST_ACTIONS}")
        return Choices(int(space.n))
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        message = f"{environment} takes actions of {space}, and agents choose from Discrete or from a Box of floats"
        raise UserError(message, hint=WRAPPED)
    low, high = (np.ravel(end).astype(float) for end in (space.low, space.high))
    if not low.size or not ((low > -MOST_BOUND) & (low < high) & (high < MOST_BOUND)).all():
        message = f"{environment} takes actions of {space}, and agents choose within finite bounds, the lower one first"
        raise UserError(message, hint=WRAPPED)
    return Intervals(tuple(low.tolist()), tuple(high.tolist()))


class Episodes:
    """N parallel environments; see `rulka.runtime.collector.CarBatch`.

    Environment k is seeded with `seed + k`, unless the environment has its own vector form that seeds differently.
    Images are converted to grey and resized to `observation`; a withheld image is black.
    """

    def __init__(self, environment: str, num_envs: int, observation: ObservationParams) -> None:
        """Creates the environments.

        Args:
            environment: ID, see `EnvironmentFacts`.
            num_envs: N.
            observation: from `EnvironmentFacts.seen`.

        Raises:
            UserError: see `read_facts`.
        """
        self._environment, self._envs = environment, _make(environment, num_envs)
        space, actions = self._envs.single_observation_space, self._envs.single_action_space
        self._image, self._numbers, _ = _read_observation(environment, space)
        _read_actions(environment, actions)
        self._actions = actions
        self._is_over = np.zeros(num_envs, np.bool_)
        self._size = (observation.width, observation.height)
        self._frame_stack: FrameStack | None = None
        if self._image is not None and observation.shows_image:
            self._frame_stack = FrameStack(num_envs, observation.image_shape)

    def reset_into(self, image_out: Images, floats_out: Floats, potential_out: Floats, seed: int) -> None:
        """Resets all episodes and writes images [N, L, H, W], floats [N, F] and potentials [N], which are 0."""
        with _blaming(self._environment, "reset"):
            observed, _ = self._envs.reset(seed=seed)
            self._is_over[:] = False
            self._write(observed, np.ones_like(self._is_over), image_out, floats_out, potential_out)

    def step_into(self, actions: NDArray, image_out: Images, floats_out: Floats, potential_out: Floats) -> StepResult:
        """Takes one decision per environment, [N] indices or [N, D] numbers; ended episodes are reset instead."""
        is_reset = self._is_over.copy()
        with _blaming(self._environment, "step"):
            observed, *told, _ = self._envs.step(self._meant(actions))
            if any(np.shape(each) != is_reset.shape for each in told):
                raise ValueError(f"reward, terminated, truncated have shapes {[np.shape(each) for each in told]}")
            with np.errstate(over="ignore"):
                reward = np.array(told[0], np.float32)
            _check_finite("the reward", reward)
            terminated, truncated = (np.array(each, np.bool_) for each in told[1:])
            truncated &= ~terminated
            self._is_over = terminated | truncated
            self._write(observed, is_reset, image_out, floats_out, potential_out)
        count = len(reward)
        nothing, no_time, never = np.zeros(count, np.float32), np.zeros(count, np.int64), np.zeros(count, np.bool_)
        return StepResult(reward, terminated, truncated, is_reset, nothing, nothing, no_time, never, never, never)

    def set_moment(self, moment: Moment) -> None:
        """Does nothing: the rewards have no schedule."""

    def cars(self) -> None:
        """Returns None: an episode has no position."""

    def state_dict(self) -> None:
        """Returns None: Gymnasium cannot save an environment, so a run cannot resume in mid-episode."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Is never called, because there is no state."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def _meant(self, actions: NDArray) -> NDArray:
        """Maps actions into the environments' action space."""
        space = self._actions
        if isinstance(space, spaces.Discrete):
            return actions + space.start
        assert isinstance(space, spaces.Box)
        return actions.reshape(-1, *space.shape).astype(space.dtype).clip(space.low, space.high)

    def _write(
        self, observed: Any, is_first: NDArray[np.bool_], image_out: Images, floats_out: Floats, potential_out: Floats
    ) -> None:
        parts = observed if isinstance(observed, Mapping) else {WHOLE: observed}
        potential_out[:], floats_out[:, 0] = 0.0, 0.0
        _write_numbers(parts, self._numbers, floats_out[:, 1:])
        if self._frame_stack is None:
            image_out[:] = 0
            return
        assert self._image is not None
        for image, grey in zip(parts[self._image], self._frame_stack.newest, strict=True):
            grey[:] = _grey(image, self._size)
        self._frame_stack.push(has_moved=True, is_first=is_first)
        image_out[:] = self._frame_stack.stack


def _write_numbers(parts: Mapping[str, NDArray], names: tuple[str, ...], out: NDArray[np.float32]) -> None:
    """Flattens and concatenates parts [N, ...] into `out` [N, F - 1]."""
    columns = [parts[name].reshape(len(out), math.prod(parts[name].shape[1:])) for name in names]
    with np.errstate(over="ignore"):
        np.concatenate([np.empty((len(out), 0)), *columns], axis=1, out=out, casting="unsafe")
    _check_finite("what it shows", out)


def _check_finite(what: str, values: NDArray[np.float32]) -> None:
    if num_wrong := np.count_nonzero(~np.isfinite(values)):
        raise ValueError(f"{num_wrong} of the {values.size} numbers of {what} are not finite in float32")


def _grey(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns an image as [H, W] grey pixels; `size` is width and height."""
    if image.ndim == 3:
        image = image if image.shape[-1] in CHANNELS else image.transpose(1, 2, 0)
        image = image[..., 0] if image.shape[-1] == 1 else image
    if image.shape == size[::-1]:
        return image
    # Not with gymnasium's wrappers: they need OpenCV, which nothing else here needs.
    return np.asarray(Image.fromarray(image).convert("L").resize(size, Image.Resampling.BOX))


class Recording(NamedTuple):
    """A recorded episode. The same seed and actions reproduce it.

    Attributes:
        seed: of the reset.
        actions: the actions taken, counted from 0.
    """

    seed: int
    actions: Sequence[int]


def recordings_of(environment: str) -> list[Recording]:
    """Returns the optional `recordings` attribute of an environment's class: pairs of seed and actions."""
    module, _, name = environment.rpartition(":")
    if module:
        importlib.import_module(module)
    creator = gymnasium.spec(name).entry_point
    creator = load_env_creator(creator) if isinstance(creator, str) else creator
    return [Recording(seed, actions) for seed, actions in getattr(creator, "recordings", ())]


def replay(facts: EnvironmentFacts, observation: ObservationParams, recording: Recording) -> ExperienceBlock:
    """Replays a recording and returns it as a block of one car; an episode that does not terminate is truncated.

    Raises:
        UserError: if the episode ends before the recording.
    """
    num_steps = len(recording.actions)
    image = np.empty((num_steps + 1, 1, *observation.image_shape), np.uint8)
    floats, potential = (np.empty((num_steps + 1, 1, *shape), np.float32) for shape in ((facts.num_floats,), ()))
    episodes = Episodes(facts.environment, 1, observation)
    episodes.reset_into(image[0], floats[0], potential[0], recording.seed)
    rows = zip(recording.actions, image[1:], floats[1:], potential[1:], strict=True)
    results = [episodes.step_into(np.array([action]), *seen) for action, *seen in rows]
    episodes.close()
    if any(result.is_reset[0] for result in results):
        message = f"a recording of {facts.environment} goes on behind the end of its episode, seed {recording.seed}"
        raise UserError(message, hint="It was made in another version of the environment.")
    terminated = np.array([result.terminated[0] for result in results])
    decisions = {
        "action": np.array(recording.actions, np.uint8),
        "reward": np.array([result.reward[0] for result in results], np.float32),
        "terminated": terminated,
        "truncated": (np.arange(num_steps) == num_steps - 1) & ~terminated,
    }
    return as_block({"image": image, "floats": floats, "potential": potential}, decisions)


def measure_normalisation(facts: EnvironmentFacts, seed: int) -> Normalisation:
    """Measures mean and standard deviation of an environment's numbers under random actions.

    Bounds of a space say little: many are infinite or far too wide. A trained agent reaches further than random
    actions, however. A number with finite bounds therefore gets a quarter of its range as standard deviation, at least
    the measured value and at most `REACH` times that. A constant number gets half the range of its bounds if these are
    finite, else 1.
    """
    mean, std = np.zeros(facts.num_floats, np.float32), np.ones(facts.num_floats, np.float32)
    clock, reference = FLOATS["clock"], reference_normalisation()
    mean[0], std[0] = reference.mean[clock][0], reference.std[clock][0]
    if facts.numbers:
        envs = _make(facts.environment, RANDOM_ENVS)
        with _blaming(facts.environment, "first random steps"):
            mean[1:], std[1:] = _moments(envs, facts, seed)
        envs.close()
    return Normalisation(mean, std)


def _moments(envs: VectorEnv[Any, Any, Any], facts: EnvironmentFacts, seed: int) -> tuple[NDArray, NDArray]:
    shown = np.empty((RANDOM_STEPS, RANDOM_ENVS, facts.num_floats - 1), np.float32)
    envs.action_space.seed(seed)
    observed, _ = envs.reset(seed=seed)
    for row in shown:
        _write_numbers(observed if isinstance(observed, Mapping) else {WHOLE: observed}, facts.numbers, row)
        observed, *_ = envs.step(envs.action_space.sample())
    values = shown.reshape(-1, shown.shape[-1]).astype(np.float64)
    parts = _parts_of(envs.single_observation_space)
    low, high = (
        np.concatenate([np.ravel(getattr(parts[name], end)) for name in facts.numbers]).astype(np.float64)
        for end in ("low", "high")
    )
    with np.errstate(invalid="ignore", over="ignore"):
        half = (high - low) / 2
    is_bounded, std = np.isfinite(half) & (half > 0.0), values.std(axis=0)
    expected = np.where(is_bounded, np.clip(half / 2, std, REACH * std), std)
    return values.mean(axis=0), np.where(std > STILL, expected, np.where(is_bounded, half, 1.0))
