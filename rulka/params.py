"""Typed `params.yaml`: one frozen class for each section, no defaults, unknown keys are errors.

A default in code would be a hyperparameter that DVC cannot see, so there is none here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from rulka.campaign_slugs import CampaignSlug
from rulka.errors import UserError
from rulka.observation import MINI_RACE_ACTIONS
from rulka.schedule import Schedule

PARAMS_FILE = Path("params.yaml")

MOST = 1e9
"""Bound of numbers that have no tighter one: larger ones overflow somewhere, and are slips in every case."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=MOST)]
NotNegative = Annotated[float, Field(ge=0.0, le=MOST)]
Weight = Annotated[float, Field(ge=-MOST, le=MOST)]
"""A finite number of either sign."""
Count = Annotated[int, Field(ge=1, le=10**12)]
CountOrNone = Annotated[int, Field(ge=0, le=10**12)]
Size = Annotated[int, Field(ge=1, le=65_536)]
"""Width of a layer."""
BatchSize = Annotated[int, Field(ge=1, le=1_000_000)]
Several = Annotated[int, Field(ge=1, le=10_000)]
"""Things that exist side by side: cars, races, decisions of a block."""
Processes = Annotated[int, Field(ge=0, le=256)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
RaceSeconds = Annotated[float, Field(gt=0.0, le=3600.0)]
LateralM = Annotated[float, Field(ge=0.0, le=100.0)]
AngleDeg = Annotated[float, Field(ge=0.0, le=180.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
GreyLevels = Annotated[float, Field(ge=0.0, le=255.0)]
Algorithm = Literal["ppo", "iqn"]
Backend = Literal["simulator", "game"]


class ParamsError(UserError):
    """`params.yaml` is missing or wrong; the message names every offending key."""


def _rising(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    speeds = [speed for speed, _ in points]
    if speeds != sorted(set(speeds)):
        message = f"speeds of a curve must rise, got {speeds}"
        raise ValueError(message)
    return points


def _within(least: float, most: float) -> AfterValidator:
    """Returns the check that all values of a schedule lie in a range, ends included."""

    def check(schedule: Schedule) -> Schedule:
        wrong = [value for _, value in schedule.points if not least <= value <= most]
        if wrong:
            message = f"values must be from {least:g} to {most:g}, got {wrong}"
            raise ValueError(message)
        return schedule

    return AfterValidator(check)


def _positive(schedule: Schedule) -> Schedule:
    wrong = [value for _, value in schedule.points if value <= 0.0]
    if wrong:
        message = f"values must be positive, got {wrong}"
        raise ValueError(message)
    return schedule


ShareSchedule = Annotated[Schedule, _within(0.0, 1.0)]
LearningRateSchedule = Annotated[Schedule, _within(0.0, 1.0), AfterValidator(_positive)]
WeightSchedule = Annotated[Schedule, _within(-MOST, MOST)]
NotNegativeSchedule = Annotated[Schedule, _within(0.0, MOST)]


class Section(BaseModel):
    """Base of all sections: unknown keys, infinite numbers and values of another type are errors; nothing changes.

    Strict types mean that `true` is no number and `"5"` neither; whole numbers stand for fractional ones. Tuples are
    lists in YAML, so that fields of them say `strict=False`, which is about the tuple and not about what is in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


MIN_PIXELS, MAX_PIXELS = 34, 1024
"""Below 34 rows or columns nothing is left of an image after the four convolutions of `models.encoder`."""


def _refuse_more(section: Section, lower: str, upper: str) -> None:
    """Raises ValueError where the first of two fields is greater than the second; None counts as no bound."""
    low, high = getattr(section, lower), getattr(section, upper)
    if low is not None and high is not None and low > high:
        message = f"{lower} {low} is greater than {upper} {high}"
        raise ValueError(message)


class ObservationParams(Section):
    """What the agent sees. Shared by every stage that touches images."""

    height: int = Field(ge=MIN_PIXELS, le=MAX_PIXELS, description="image height, pixels")
    width: int = Field(ge=MIN_PIXELS, le=MAX_PIXELS, description="image width, pixels")


Ticks = Annotated[int, Field(ge=1, le=100)]
"""10 ms each: a decision lasts a second at most."""


class ActionParams(Section):
    """How long one decision lasts."""

    ticks_per_action: Ticks = Field(description="10 ms ticks for which one action is held; 5 in the game")


Four = Annotated[tuple[Positive, Positive, Positive, Positive], Field(strict=False)]
Five = Annotated[tuple[Positive, Positive, Positive, Positive, Positive], Field(strict=False)]
Point = Annotated[tuple[NotNegative, Positive], Field(strict=False)]
Curve = Annotated[tuple[Point, ...], Field(min_length=1, strict=False), AfterValidator(_rising)]
"""Points [speed in m/s, value], speeds rising; straight between them, constant before the first and after the last."""


class PhysicsParams(Section):
    """The simulator's car; see `rulka.simulator.physics`."""

    gravity_mps2: Positive
    push_mps2: Curve = Field(description="push of the engine by speed, full gas")
    gear_up_mps: Four = Field(description="speeds at which gears 1 to 4 shift up")
    gear_down_mps: Four = Field(description="speeds below which gears 2 to 5 shift down")
    gear_rpm_per_mps: Five = Field(description="engine revolutions a minute for each m/s")
    shift_ms: NotNegative = Field(description="duration of a gear change, without push")
    idle_rpm: Positive
    max_rpm: Positive
    engine_brake_per_s: NotNegative = Field(description="off the gas: deceleration is this times speed")
    rolling_mps2: NotNegative = Field(description="deceleration of rolling wheels")
    drag_per_m: NotNegative = Field(description="air drag: deceleration is this times speed squared")
    brake_mps2: Positive = Field(description="deceleration of the brake")
    brake_with_gas: Share = Field(description="share of it left while the gas is pressed too")
    reverse_push_mps2: Positive = Field(description="push backwards of the brake on a car that stands")
    reverse_top_mps: Positive = Field(description="speed backwards above which it pushes no more")
    turn_radius_m: Curve = Field(description="radius driven at full lock")
    steer_per_s: Positive = Field(description="how fast the wheels follow a key, full locks a second")
    yaw_response_s: Positive = Field(description="time constant of the yaw rate")
    grip_mps2: Positive = Field(description="acceleration that the tyres bear at standstill, on the road")
    grip_per_s: NotNegative = Field(description="how much more for each m/s")
    slip_grip: NotNegative = Field(description="how much more the tyres hold for each radian of slip, as a share")
    slip_response_s: Positive = Field(description="time constant of sideways speed below the grip limit")
    overturn: Positive = Field(description="how far the front may turn the car beyond what the grip can follow")
    max_slip_rad: Positive = Field(description="angle of slip at which the front wheels turn the car no further")
    scrub: Share = Field(description="share of the tyres' sideways force that slows the car")
    dirt_grip: Positive = Field(description="grip on dirt, road 1")
    dirt_push: Positive = Field(description="push on dirt, road 1")
    grass_grip: Positive
    grass_push: Positive
    turbo_factor: Positive = Field(description="how much more the engine pushes on a turbo pad")
    turbo_s: Positive = Field(description="and for how long behind it")
    wall_bounce: Share = Field(description="share of the speed into a wall that comes back out of it")
    wall_rub: NotNegative = Field(description="speed along a wall lost for each m/s of change across it")
    reference_m: NotNegative = Field(description="height of the car's position above the ground it stands on")
    rest_m: Positive = Field(description="how far the springs give under the car's weight")
    travel_m: Positive = Field(description="how far they give at most")
    damping_ratio: NotNegative = Field(description="1 is critical")
    align_s: Positive = Field(description="time constant with which the body follows the road's slope")
    air_spin_loss_per_s: NotNegative = Field(description="how fast rotation fades in the air")
    off_road_m: NotNegative = Field(description="the track ends this far beyond the edge of the road")
    fall_m: Positive = Field(description="and this far below or above its surface")
    crash_deg: float = Field(gt=0, le=180, description="a car that touches the road tilted by more has crashed")

    @model_validator(mode="after")
    def _check(self) -> PhysicsParams:
        if any(down >= up for down, up in zip(self.gear_down_mps, self.gear_up_mps, strict=True)):
            message = f"each gear must shift down below the speed at which it is reached, got {self.gear_down_mps}"
            raise ValueError(message)
        if list(self.gear_up_mps) != sorted(set(self.gear_up_mps)):
            message = f"gear_up_mps must rise from gear to gear, got {self.gear_up_mps}"
            raise ValueError(message)
        _refuse_more(self, "idle_rpm", "max_rpm")
        _refuse_more(self, "rest_m", "travel_m")
        return self


class CameraParams(Section):
    """Where the simulator's camera sits and what it sees."""

    back_m: float = Field(ge=-5, le=30, description="metres behind the car")
    height_m: float = Field(gt=0, le=30, description="metres above the car")
    pitch_deg: float = Field(gt=-60, lt=60, description="how far the camera looks down, in the car's frame")
    fov_deg: float = Field(gt=10, lt=150, description="horizontal field of view")


class SimulatorParams(Section):
    """The embedded simulator."""

    physics: PhysicsParams
    camera: CameraParams


class TrackParams(Section):
    """The track generated where there are no recordings."""

    seed: Seed
    length_m: float = Field(ge=150, le=10_000, description="distance from start to finish")
    width_m: float = Field(ge=4, le=100, description="width of the road")
    max_slope: float = Field(ge=0, lt=0.5, description="steepest rise or fall, metres for each metre driven")
    gate_spacing_m: float = Field(ge=5, le=10_000, description="about this far apart are the checkpoints")
    difficulty: Literal["easy", "medium", "hard", "expert"] = Field(description="see `rulka.tracks.difficulty`")


class DriverParams(Section):
    """The field of built-in drivers; see `rulka.simulator.driver`."""

    pace_low: float = Field(gt=0, le=1, description="share of the possible speed that the most careful driver drives")
    pace_high: float = Field(gt=0, le=1, description="and the boldest")
    slip_chance: Share = Field(description="chance that a decision is left as it was, at most")
    line_m: LateralM = Field(description="drivers aim at a line at most this far beside the centre")
    max_race_s: RaceSeconds = Field(description="a demonstration is cut after this long")

    @model_validator(mode="after")
    def _check(self) -> DriverParams:
        _refuse_more(self, "pace_low", "pace_high")
        return self


class SelectParams(Section):
    """Which recordings the stage `races` uses; all others are named with the reason."""

    device: Literal["any", "keyboard", "analog"] = Field(description="what the player drove with")
    with_respawns: bool = Field(description="whether races in which the player respawned are used; their paths jump")
    min_race_s: Positive | None = Field(description="shortest race; null for any")
    max_race_s: Positive | None = Field(description="longest race; null for any")
    environment: str | None = Field(description="as recordings name it, for example Stadium; null for any")
    max_best_ratio: float | None = Field(
        ge=1.0, le=MOST, description="slowest race, in times of the map's best; null for any"
    )

    @model_validator(mode="after")
    def _check_range(self) -> SelectParams:
        _refuse_more(self, "min_race_s", "max_race_s")
        return self


class RaceParams(Section):
    """Stage `races`: recordings, or demonstrations by the built-in driver."""

    map_uid: str | None = Field(description="map whose recordings are used; null takes the one with most")
    campaign: CampaignSlug | None = Field(
        description="without recordings: race on this campaign track, not on a generated one"
    )
    select: SelectParams
    num_demonstrations: int = Field(
        ge=0, le=100_000, description="races driven by the built-in driver without recordings"
    )
    driver: DriverParams
    reference_decisions: CountOrNone = Field(description="decisions simulated for the reference lap; 0 for none")
    seed: Seed


class CaptureParams(Section):
    """Stage `capture`: races to frames."""

    backend: Backend = Field(description="who draws: the simulator's camera, or the game, in which races are replayed")
    label_shift_ticks: int = Field(ge=0, le=100, description="ticks from an input's stamp to the state that shows it")
    steer_dead_zone: float = Field(ge=0, lt=1, description="analog steering of at most this size counts as none")
    shard_frames: BatchSize = Field(description="frames in one shard")
    num_workers: int = Field(ge=1, le=256)
    validation_fraction: float = Field(
        ge=0, lt=1, description="share of races held out, by a hash of each; 0 holds out none"
    )


class IqnNetworkParams(Section):
    """What IQN's network has beyond that of the cloned policy and PPO; see `models.iqn.IqnExtras`."""

    encoder: Literal["conv", "impala"] = Field(description="conv is the encoder of pretraining and cloning")
    impala_width: int = Field(ge=1, le=64, description="factor of IMPALA's channels")
    adaptive_pool: int = Field(ge=0, le=64, description="rows and columns of the encoder's last map; 0 leaves it")
    spectral_norm: bool = Field(description="of IMPALA's residual convolutions")
    layer_norm: bool = Field(description="in the float head and both heads")
    actions_per_decision: Count = Field(
        description="actions that share a decision's ticks; a later peer has 5, of 10 ms each"
    )
    noisy_sigma: float = Field(
        ge=0, le=10, description="size of the noise of noisy heads at the start; 0 for plain ones"
    )

    @model_validator(mode="after")
    def _check(self) -> IqnNetworkParams:
        if self.spectral_norm and self.encoder != "impala":
            message = "spectral_norm acts on residual convolutions: it needs encoder impala"
            raise ValueError(message)
        return self


class NetworkParams(Section):
    """Sizes of the networks; the reference has 256, 1024, 128, 8 and 32 (1,051,805 parameters)."""

    float_hidden: Size
    dense_hidden: int = Field(ge=2, le=65_536, description="twice the width of each IQN head; width of the PPO trunk")
    tau_embedding: Size = Field(description="cosines in the quantile embedding")
    iqn: IqnNetworkParams


class FitParams(Section):
    """Supervised training, shared by the stages `pretrain` and `clone`."""

    epochs: Count
    batch_size: BatchSize
    learning_rate: LearningRate = Field(description="highest; rises at once and falls along half a cosine")
    weight_decay: NotNegative
    max_grad_norm: Positive
    precision: Literal["measured", "float32", "bfloat16"] = Field(description="measured takes the faster one")
    seed: Seed


class PretrainParams(FitParams):
    """Stage `pretrain` (Level 0)."""

    task: Literal["autoencoder", "vae", "simclr"]
    vae_latent: Size = Field(description="latent numbers of the variational autoencoder")
    kl_weight: NotNegative = Field(description="weight of its divergence, summed over the latent numbers")
    simclr_projection: Size
    simclr_temperature: Positive
    simclr_crop_pixels: NotNegative = Field(description="most rows and columns that a view loses")
    simclr_brightness: float = Field(ge=0, lt=1, description="a view is lit by a factor within this of 1")

    @model_validator(mode="after")
    def _check(self) -> PretrainParams:
        if self.task == "simclr" and self.batch_size == 1:
            message = "simclr tells the images of a batch apart: batch_size must be at least 2"
            raise ValueError(message)
        return self


class CloneParams(FitParams):
    """Stage `clone` (Level 1): behaviour cloning."""

    fastest_share: float = Field(gt=0, le=1, description="share of the training races that are imitated, fastest first")
    previous_action_dropout: Share = Field(description="share of samples that do not see the previous actions")
    float_noise: NotNegative = Field(description="noise on the floats, in units of the normalisation's std")


class TransferParams(Section):
    """Stage `transfer`: what the RL network takes over."""

    iqn_encoder: Literal["cloned", "pretrained", "fresh"] = Field(
        description="whose encoder IQN takes: Level 1, Level 0, or none, which encoders of another kind need"
    )
    seed: Seed = Field(description="of the weights that start fresh")


class EngineeredRewardParams(Section):
    """Rewards for a manner of driving, over environment steps; see `rulka.envs.rewards`."""

    speed_slide: WeightSchedule = Field(description="each decision, for sliding at the angle that keeps most speed")
    neo_slide: WeightSchedule = Field(description="each decision with a sideways speed of 2 m/s or more")
    kamikaze: WeightSchedule = Field(description="each decision on full gas or with at most one wheel on the ground")
    line_distance: WeightSchedule = Field(description="each decision, for each metre from the line, between 5 and 25 m")


class RewardParams(Section):
    """Reward of one decision; see `rulka.envs.rewards`."""

    per_metre: Weight = Field(description="for each metre of progress along the centreline")
    per_second: Weight = Field(description="for each second that passes; negative")
    off_track: float = Field(ge=-MOST, le=0.0, description="once, on leaving the track")
    line_distance_potential: NotNegative = Field(
        description="shaping potential lost for each metre from the line, between 2 and 25 m; 0 is none"
    )
    direction_potential: NotNegative = Field(
        description="shaping potential lost as the car turns away from the line's direction, at most twice this"
    )
    speed_as_seconds: NotNegative = Field(
        description="a gain in speed counts like the metres it brings in this time; 0 is none, 2 in the reference"
    )
    engineered: EngineeredRewardParams


class RandomisationParams(Section):
    """How much races differ from each other, see `rulka.envs.randomising`; 0 is not at all."""

    friction: float = Field(ge=0, lt=1, description="grip differs by at most this share")
    camera_m: float = Field(ge=0, le=10, description="the camera is moved by at most this, back and up")
    camera_deg: float = Field(ge=0, le=45, description="and pitched by at most this")
    light_gain: float = Field(ge=0, lt=1, description="contrast differs by at most this share")
    light_offset: GreyLevels = Field(description="brightness differs by at most this many grey levels")
    pixel_noise: GreyLevels = Field(description="largest standard deviation of a pixel's noise, grey levels")

    @property
    def is_off(self) -> bool:
        """Whether nothing differs."""
        return not any(self.model_dump().values())


class TrainParams(Section):
    """Stage `train`: the runtime shared by every algorithm."""

    environment: Backend = Field(description="where the races are driven")
    algorithm: Algorithm = Field(description="the agent of `data/agent`")
    compared: tuple[Algorithm, ...] = Field(strict=False, description="also trained, for the report's comparison")
    seed: Seed
    max_env_steps: Count = Field(description="environment steps after which training ends")
    max_minutes: Positive = Field(description="wall minutes after which training ends, if that comes first")
    num_collectors: Processes = Field(description="collector processes; 0 runs everything in this process")
    inference: Literal["local", "central"] = Field(description="central lets one process act for all collectors")
    cars_per_collector: Several
    block_steps: Several = Field(description="decisions of every car in one block of experience")
    precision: Literal["measured", "float32", "bfloat16"] = Field(description="measured takes the faster at start")
    start_anywhere: Share = Field(description="share of training races that start anywhere on the track")
    start_lateral_m: LateralM = Field(description="a race starts at most this far beside the line")
    start_heading_deg: AngleDeg = Field(description="and turned by at most this much")
    max_race_s: RaceSeconds = Field(description="a race is cut after this long")
    no_progress_s: RaceSeconds = Field(description="a race is cut after this long without a further zone")
    randomisation: RandomisationParams
    checkpoint_s: Positive = Field(description="seconds between live checkpoints")
    experience: Literal["saved", "rebuilt"] = Field(description="of a run that goes on: with its checkpoints, or anew")
    check_env_steps: Count = Field(description="environment steps between greedy checks of the weights")
    check_races: Several = Field(description="races of one greedy check, side by side")
    check_candidates: Several = Field(description="weights that take part in the last choice")
    final_check_races: Several = Field(description="races of each candidate in the last choice")

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """All that are trained, that of `data/agent` first."""
        return (self.algorithm, *self.compared)

    @model_validator(mode="after")
    def _check(self) -> TrainParams:
        if self.algorithm in self.compared or len(set(self.compared)) != len(self.compared):
            message = f"compared must name other algorithms than {self.algorithm!r}, each once"
            raise ValueError(message)
        if self.inference == "central" and self.num_collectors == 0:
            message = "central inference acts for collector processes, and num_collectors 0 has none"
            raise ValueError(message)
        if self.environment == "game":
            self._check_game()
        return self

    def _check_game(self) -> None:
        """Refuses what one car in a real game cannot do."""
        one = {"cars_per_collector": 1, "check_races": 1}
        nought = {"start_anywhere": 0.0, "start_lateral_m": 0.0, "start_heading_deg": 0.0}
        wrong = [f"{name} must be {value}" for name, value in (one | nought).items() if getattr(self, name) != value]
        if wrong:
            message = f"a game has one car, which begins at the start line: {', '.join(wrong)}"
            raise ValueError(message)


class PpoParams(Section):
    """Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347."""

    steps_per_update: int = Field(ge=2, le=1_000_000, description="decisions of experience for one update")
    epochs: Count
    encoder_epochs: CountOrNone = Field(description="first epochs of an update that also train the encoder")
    batch_size: BatchSize
    learning_rate: LearningRateSchedule
    gamma: Share
    gae_lambda: Share
    clip: Positive
    value_clip: Positive = Field(description="in units of the root mean square return")
    value_weight: NotNegative
    entropy_weight: NotNegativeSchedule
    max_grad_norm: Positive
    max_versions_behind: CountOrNone = Field(description="how many weight versions experience may lag the learner")
    value_warmup_updates: CountOrNone = Field(description="first updates that train the value head alone")
    max_kl: Positive = Field(description="an update ends when the policy has moved this far, in nats")

    @model_validator(mode="after")
    def _check(self) -> PpoParams:
        if self.encoder_epochs > self.epochs:
            message = f"encoder_epochs {self.encoder_epochs} is larger than epochs {self.epochs}"
            raise ValueError(message)
        if self.batch_size > self.steps_per_update:
            message = f"batch_size {self.batch_size} is larger than steps_per_update {self.steps_per_update}"
            raise ValueError(message)
        return self


class PrioritisedParams(Section):
    """Prioritised replay; see `rulka.buffers.prioritised`."""

    alpha: Share = Field(description="exponent of the priorities; 0 draws all transitions alike")
    beta: ShareSchedule = Field(description="exponent of the importance weights; 1 undoes the preference wholly")
    epsilon: Positive = Field(description="added to every error, so that no transition is forgotten")
    min_actions_left: int = Field(
        ge=0,
        lt=MINI_RACE_ACTIONS,
        description="errors of transitions nearer to the end of their mini-race do not count",
    )


class MunchausenParams(Section):
    """Munchausen targets; see `rulka.losses.munchausen`."""

    alpha: Share = Field(description="weight of the log-probability in the reward")
    temperature: Positive = Field(description="of the policy that the target network stands for")
    floor: float = Field(ge=-MOST, le=0.0, description="least temperature times log-probability that counts")


class ResetParams(Section):
    """Periodic resets of the online network toward fresh weights; see `rulka.agents.iqn_reset`."""

    every_env_steps: Count
    fresh_share: Share = Field(description="share of fresh weights mixed into every layer")
    last_layer_kept: Share = Field(description="share of the last layers' weights that is left after that")
    further_samples: CountOrNone = Field(description="transitions to learn from beyond samples_per_insert")


class IqnParams(Section):
    """IQN; see `rulka.agents.iqn`."""

    explore_whole_blocks: bool = Field(description="chance is drawn for a whole block of actions, not for each")
    num_quantiles: Several = Field(description="fractions for each state while training; even")
    num_quantiles_acting: Several = Field(description="fractions for each state while acting; even")
    kappa: Positive
    n_steps: int = Field(ge=1, le=MINI_RACE_ACTIONS, description="most decisions in a transition")
    use_double_dqn: bool
    munchausen: MunchausenParams | None = Field(description="null: plain Q-learning targets")
    batch_size: BatchSize
    learning_rate: LearningRateSchedule
    gamma: ShareSchedule
    epsilon: ShareSchedule = Field(description="share of random actions")
    boltzmann_epsilon: ShareSchedule = Field(description="further share of actions, the best after adding noise")
    boltzmann_noise: Positive = Field(description="standard deviation of that noise, in units of returns")
    target_tau: float = Field(gt=0, le=1, description="step of the target network toward the online one; 1 copies it")
    target_every: Count = Field(description="gradient steps between two such steps")
    resets: ResetParams | None = Field(description="null: never")
    buffer_steps: Count = Field(description="decisions kept")
    start_steps: Count = Field(description="decisions in the buffer before the first update")
    prioritised: PrioritisedParams | None = Field(description="null: all transitions are drawn alike")
    held_out_share: float = Field(ge=0, lt=1, description="share of races never learned from, and of batches that test")
    samples_per_insert: Positive = Field(description="how often each decision is learned from on average")
    demonstration_share: Share = Field(description="share of every batch drawn from demonstrations")
    warmup_steps: CountOrNone = Field(description="first environment steps driven by the cloned policy")
    gradient_steps_per_update: Count = Field(description="gradient steps between two versions of the weights")
    oversample_long_term: CountOrNone = Field(
        description="draws of the mini-race clock, see rulka.buffers.mini_race.ClockRule"
    )
    oversample_max_term: CountOrNone = Field(description="the same; 40 and 5 in the reference")
    self_loss_clamp_ratio: Positive = Field(description="how much narrower than typical a target may count")
    weight_decay: NotNegative = Field(description="share of the learning rate by which weights shrink")
    max_grad_norm: Positive
    max_grad_value: Positive | None = Field(description="bound of each number of the gradient after that; or null")

    @model_validator(mode="after")
    def _check(self) -> IqnParams:
        message = next((text for is_wrong, text in self._impossible() if is_wrong), None)
        if message is not None:
            raise ValueError(message)
        return self

    def _impossible(self) -> list[tuple[bool, str]]:
        """Returns for each impossible combination whether it is there, and what is wrong with it."""
        num_shown = round(self.batch_size * self.demonstration_share)
        first_clock = self.oversample_max_term - self.oversample_long_term
        return [
            (
                bool(self.num_quantiles % 2 or self.num_quantiles_acting % 2),
                "num_quantiles and num_quantiles_acting must be even: the second half mirrors the first",
            ),
            (
                self.batch_size > self.start_steps,
                f"batch_size {self.batch_size} is larger than start_steps {self.start_steps}",
            ),
            (
                self.start_steps > self.buffer_steps,
                f"start_steps {self.start_steps} is larger than buffer_steps {self.buffer_steps}",
            ),
            (
                num_shown == self.batch_size,
                f"demonstration_share {self.demonstration_share} leaves no place in a batch of {self.batch_size}",
            ),
            (
                first_clock > 0 or -first_clock - self.oversample_max_term >= MINI_RACE_ACTIONS,
                f"oversample_long_term {self.oversample_long_term} must be at least oversample_max_term "
                f"{self.oversample_max_term}, and less than {MINI_RACE_ACTIONS} above twice of it",
            ),
            (
                self.munchausen is not None and self.use_double_dqn,
                "munchausen targets weigh all next actions: set use_double_dqn to false",
            ),
        ]


class EvaluateParams(Section):
    """Stage `evaluate`: greedy races from fixed seeds."""

    num_races: Several = Field(description="races of each contestant")
    seed: Seed = Field(description="start k of a race is drawn from seed + k")
    start_lateral_m: LateralM = Field(description="a race starts at most this far beside the line")
    start_heading_deg: AngleDeg = Field(description="and turned by at most this much")
    max_race_s: RaceSeconds = Field(description="a race is cut after this long")
    no_progress_s: RaceSeconds = Field(description="a race is cut after this long without getting further")
    video_width: int = Field(ge=64, le=7680, multiple_of=2, description="pixels")
    video_height: int = Field(ge=64, le=7680, multiple_of=2, description="pixels")
    video_fps: int = Field(ge=1, le=240, description="frames a second of the video, which plays in real time")


class Params(Section):
    """All of `params.yaml`."""

    observation: ObservationParams
    actions: ActionParams
    simulator: SimulatorParams
    track: TrackParams
    races: RaceParams
    capture: CaptureParams
    network: NetworkParams
    pretrain: PretrainParams
    clone: CloneParams
    transfer: TransferParams
    rewards: RewardParams
    train: TrainParams
    ppo: PpoParams
    iqn: IqnParams
    evaluate: EvaluateParams

    @model_validator(mode="after")
    def _check(self) -> Params:
        message = next((text for is_wrong, text in self._impossible() if is_wrong), None)
        if message is not None:
            raise ValueError(message)
        return self

    def _impossible(self) -> list[tuple[bool, str]]:
        """Returns for each impossible combination of sections whether it is there, and what is wrong with it."""
        count, ticks = self.network.iqn.actions_per_decision, self.actions.ticks_per_action
        has_iqn = "iqn" in self.train.algorithms
        side = min(self.observation.height, self.observation.width)
        return [
            (
                ticks % count > 0,
                f"network.iqn.actions_per_decision {count} must divide actions.ticks_per_action {ticks}",
            ),
            (
                count > 1 and not has_iqn,
                f"network.iqn.actions_per_decision {count} acts on IQN, which is not trained: "
                "set it to 1, or name iqn in train.algorithm or train.compared",
            ),
            (
                count > 1 and bool(self.iqn.warmup_steps or self.iqn.demonstration_share),
                "the cloned policy and demonstrations know decisions of one action: with a larger "
                "network.iqn.actions_per_decision, set iqn.warmup_steps and iqn.demonstration_share to 0",
            ),
            (
                count > 1 and self.train.environment == "game",
                "a decision in the game is one action: set network.iqn.actions_per_decision to 1",
            ),
            (
                has_iqn and self.network.iqn.encoder != "conv" and self.transfer.iqn_encoder != "fresh",
                f"network.iqn.encoder {self.network.iqn.encoder} is of another kind than the one that "
                f"transfer.iqn_encoder {self.transfer.iqn_encoder} names: set transfer.iqn_encoder to fresh",
            ),
            (
                self.pretrain.task == "simclr" and self.pretrain.simclr_crop_pixels >= side,
                f"pretrain.simclr_crop_pixels {self.pretrain.simclr_crop_pixels} leaves nothing of images of {side}"
                " rows or columns",
            ),
        ]


class _Loader(yaml.SafeLoader):
    """YAML as DVC reads it too: `1e-3` is a number, and a key that comes twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} comes twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_sections(path: Path, error_class: type[UserError] = ParamsError) -> dict[str, Any]:
    """Reads a YAML file of sections, without looking at what is in them.

    Args:
        path: the file.
        error_class: of what is raised.

    Raises:
        UserError: of that class, if the file cannot be read, is not UTF-8 or YAML, or holds something else.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}; run from the root of the project"
        raise error_class(message) from error
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise error_class(message, hint="Save it again as UTF-8, or take it from the repository.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = f"{path} is not valid YAML: {error}"
        raise error_class(message) from error
    if not isinstance(data, dict):
        message = f"{path} must hold sections of keys, not {'nothing' if data is None else repr(data)[:80]}"
        raise error_class(message)
    return data


def read_params(path: Path = PARAMS_FILE) -> Params:
    """Reads and checks all parameters.

    Raises:
        ParamsError: if the file is missing, is not YAML, or a key is unknown, missing or of a wrong type.
    """
    return checked_params(read_sections(path), f"{path} is wrong")


def checked_params(data: dict[str, Any], what_is_wrong: str) -> Params:
    """Returns parameters made of plain values.

    Args:
        data: as `read_sections` returns them.
        what_is_wrong: begins the message of the error.

    Raises:
        ParamsError: if a key is unknown, missing or of a wrong type; with one line for each.
    """
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        raise ParamsError(f"{what_is_wrong}:\n" + "\n".join(f"  {line}" for line in problems_of(error))) from error


def reference_params() -> Params:
    """Returns the parameters that come with the package, whatever the current directory.

    In a checkout they are the repository's own `params.yaml`; in an installed wheel, the copy of it that the wheel
    carries as `rulka/reference_params.yaml`. For environments made without a configuration; stages never use them.
    """
    repository = Path(__file__).resolve().parent.parent
    is_checkout = (repository / "pyproject.toml").is_file()
    return read_params(repository / PARAMS_FILE if is_checkout else Path(__file__).with_name("reference_params.yaml"))


_WORDS = {"missing": "is missing", "extra_forbidden": "is not a key that is known here", "too_short": "is empty"}
"""What pydantic says less plainly, by its type of error."""


def problems_of(error: ValidationError) -> list[str]:
    """Returns a line for each thing that is wrong: key, rule, and the value where it is not a whole section."""
    found = error.errors()
    # A list of which every item is wrong counts as empty besides.
    inner = {problem["loc"][:end] for problem in found for end in range(len(problem["loc"]))}
    return [_problem(problem) for problem in found if problem["type"] != "too_short" or problem["loc"] not in inner]


def _problem(problem: ErrorDetails) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    value, rule = problem["input"], problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if problem["type"] in _WORDS:
        return f"{key} {_WORDS[problem['type']]}"
    is_shown = problem["type"] != "value_error" and not isinstance(value, dict)
    text = f"{rule} (got {value!r:.80})" if is_shown else rule
    return f"{key}: {text}" if key else text
