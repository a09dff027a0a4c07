"""Typed `params.yaml`: one frozen class for each section, no defaults, unknown keys are errors.

A default in code would be a hyperparameter that DVC cannot see, so there is none here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from rulka.errors import UserError
from rulka.observation import MINI_RACE_ACTIONS
from rulka.schedule import Schedule

PARAMS_FILE = Path("params.yaml")

Share = Annotated[float, Field(ge=0.0, le=1.0)]
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


def _shares(schedule: Schedule) -> Schedule:
    wrong = [value for _, value in schedule.points if not 0.0 <= value <= 1.0]
    if wrong:
        message = f"values must be from 0 to 1, got {wrong}"
        raise ValueError(message)
    return schedule


def _positive(schedule: Schedule) -> Schedule:
    wrong = [value for _, value in schedule.points if not 0.0 < value < float("inf")]
    if wrong:
        message = f"values must be positive, got {wrong}"
        raise ValueError(message)
    return schedule


ShareSchedule = Annotated[Schedule, AfterValidator(_shares)]
PositiveSchedule = Annotated[Schedule, AfterValidator(_positive)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ObservationParams(Section):
    """What the agent sees. Shared by every stage that touches images."""

    height: PositiveInt = Field(description="image height, pixels")
    width: PositiveInt = Field(description="image width, pixels")


class ActionParams(Section):
    """How long one decision lasts."""

    ticks_per_action: PositiveInt = Field(description="10 ms ticks for which one action is held; 5 in the game")


Five = tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat]
Four = tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat]
Curve = Annotated[tuple[tuple[NonNegativeFloat, PositiveFloat], ...], Field(min_length=1), AfterValidator(_rising)]
"""Points [speed in m/s, value], speeds rising; straight between them, constant before the first and after the last."""


class PhysicsParams(Section):
    """The simulator's car; see `rulka.simulator.physics`."""

    gravity_mps2: PositiveFloat
    push_mps2: Curve = Field(description="push of the engine by speed, full gas")
    gear_up_mps: Four = Field(description="speeds at which gears 1 to 4 shift up")
    gear_down_mps: Four = Field(description="speeds below which gears 2 to 5 shift down")
    gear_rpm_per_mps: Five = Field(description="engine revolutions a minute for each m/s")
    shift_ms: NonNegativeFloat = Field(description="duration of a gear change, without push")
    idle_rpm: PositiveFloat
    max_rpm: PositiveFloat
    engine_brake_per_s: NonNegativeFloat = Field(description="off the gas: deceleration is this times speed")
    rolling_mps2: NonNegativeFloat = Field(description="deceleration of rolling wheels")
    drag_per_m: NonNegativeFloat = Field(description="air drag: deceleration is this times speed squared")
    brake_mps2: PositiveFloat = Field(description="deceleration of the brake")
    brake_with_gas: Share = Field(description="share of it left while the gas is pressed too")
    reverse_push_mps2: PositiveFloat = Field(description="push backwards of the brake on a car that stands")
    reverse_top_mps: PositiveFloat = Field(description="speed backwards above which it pushes no more")
    turn_radius_m: Curve = Field(description="radius driven at full lock")
    steer_per_s: PositiveFloat = Field(description="how fast the wheels follow a key, full locks a second")
    yaw_response_s: PositiveFloat = Field(description="time constant of the yaw rate")
    grip_mps2: PositiveFloat = Field(description="acceleration that the tyres bear at standstill, on the road")
    grip_per_s: NonNegativeFloat = Field(description="how much more for each m/s")
    slip_grip: NonNegativeFloat = Field(description="how much more the tyres hold for each radian of slip, as a share")
    slip_response_s: PositiveFloat = Field(description="time constant of sideways speed below the grip limit")
    overturn: PositiveFloat = Field(description="how far the front may turn the car beyond what the grip can follow")
    max_slip_rad: PositiveFloat = Field(description="angle of slip at which the front wheels turn the car no further")
    scrub: Share = Field(description="share of the tyres' sideways force that slows the car")
    dirt_grip: PositiveFloat = Field(description="grip on dirt, road 1")
    dirt_push: PositiveFloat = Field(description="push on dirt, road 1")
    grass_grip: PositiveFloat
    grass_push: PositiveFloat
    turbo_factor: PositiveFloat = Field(description="how much more the engine pushes on a turbo pad")
    turbo_s: PositiveFloat = Field(description="and for how long behind it")
    wall_bounce: Share = Field(description="share of the speed into a wall that comes back out of it")
    wall_rub: NonNegativeFloat = Field(description="speed along a wall lost for each m/s of change across it")
    reference_m: NonNegativeFloat = Field(description="height of the car's position above the ground it stands on")
    rest_m: PositiveFloat = Field(description="how far the springs give under the car's weight")
    travel_m: PositiveFloat = Field(description="how far they give at most")
    damping_ratio: NonNegativeFloat = Field(description="1 is critical")
    align_s: PositiveFloat = Field(description="time constant with which the body follows the road's slope")
    air_spin_loss_per_s: NonNegativeFloat = Field(description="how fast rotation fades in the air")
    off_road_m: NonNegativeFloat = Field(description="the track ends this far beyond the edge of the road")
    fall_m: PositiveFloat = Field(description="and this far below or above its surface")
    crash_deg: float = Field(gt=0, le=180, description="a car that touches the road tilted by more has crashed")

    @model_validator(mode="after")
    def _check(self) -> PhysicsParams:
        if any(down >= up for down, up in zip(self.gear_down_mps, self.gear_up_mps, strict=True)):
            message = f"each gear must shift down below the speed at which it is reached, got {self.gear_down_mps}"
            raise ValueError(message)
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

    seed: NonNegativeInt
    length_m: float = Field(ge=150, description="distance from start to finish")
    width_m: float = Field(ge=4, description="width of the road")
    max_slope: float = Field(ge=0, lt=0.5, description="steepest rise or fall, metres for each metre driven")
    gate_spacing_m: PositiveFloat = Field(description="about this far apart are the checkpoints")
    difficulty: Literal["easy", "medium", "hard", "expert"] = Field(description="see `rulka.tracks.difficulty`")


class DriverParams(Section):
    """The field of built-in drivers; see `rulka.simulator.driver`."""

    pace_low: PositiveFloat = Field(le=1, description="share of the possible speed that the most careful driver drives")
    pace_high: PositiveFloat = Field(le=1, description="and the boldest")
    slip_chance: Share = Field(description="chance that a decision is left as it was, at most")
    line_m: NonNegativeFloat = Field(description="drivers aim at a line at most this far beside the centre")
    max_race_s: PositiveFloat = Field(description="a demonstration is cut after this long")


class SelectParams(Section):
    """Which recordings the stage `races` uses; all others are named with the reason."""

    device: Literal["any", "keyboard", "analog"] = Field(description="what the player drove with")
    with_respawns: bool = Field(description="whether races in which the player respawned are used; their paths jump")
    min_race_s: PositiveFloat | None = Field(description="shortest race; null for any")
    max_race_s: PositiveFloat | None = Field(description="longest race; null for any")
    environment: str | None = Field(description="as recordings name it, for example Stadium; null for any")
    max_best_ratio: float | None = Field(ge=1.0, description="slowest race, in times of the map's best; null for any")

    @model_validator(mode="after")
    def _check_range(self) -> SelectParams:
        if self.min_race_s is not None and self.max_race_s is not None and self.min_race_s > self.max_race_s:
            message = f"min_race_s {self.min_race_s} is greater than max_race_s {self.max_race_s}"
            raise ValueError(message)
        return self


class RaceParams(Section):
    """Stage `races`: recordings, or demonstrations by the built-in driver."""

    map_uid: str | None = Field(description="map whose recordings are used; null takes the one with most")
    campaign: str | None = Field(description="without recordings: race on this campaign track, not on a generated one")
    select: SelectParams
    num_demonstrations: NonNegativeInt = Field(description="races driven by the built-in driver without recordings")
    driver: DriverParams
    reference_decisions: NonNegativeInt = Field(description="decisions simulated for the reference lap; 0 for none")
    seed: NonNegativeInt


class CaptureParams(Section):
    """Stage `capture`: races to frames."""

    backend: Backend = Field(description="who draws: the simulator's camera, or the game, in which races are replayed")
    label_shift_ticks: NonNegativeInt = Field(description="ticks from an input's stamp to the state that shows it")
    steer_dead_zone: Share = Field(description="analog steering of at most this size counts as none")
    shard_frames: PositiveInt = Field(description="frames in one shard")
    num_workers: PositiveInt
    validation_fraction: Share = Field(description="share of races held out, chosen by a hash of the race")


class IqnNetworkParams(Section):
    """What IQN's network has beyond that of the cloned policy and PPO; see `models.iqn.IqnExtras`."""

    encoder: Literal["conv", "impala"] = Field(description="conv is the encoder of pretraining and cloning")
    impala_width: PositiveInt = Field(description="factor of IMPALA's channels")
    adaptive_pool: NonNegativeInt = Field(description="rows and columns of the encoder's last map; 0 leaves it")
    spectral_norm: bool = Field(description="of IMPALA's residual convolutions")
    layer_norm: bool = Field(description="in the float head and both heads")
    actions_per_decision: PositiveInt = Field(
        description="actions that share a decision's ticks; a later peer has 5, of 10 ms each"
    )
    noisy_sigma: NonNegativeFloat = Field(description="size of the noise of noisy heads at the start; 0 for plain ones")

    @model_validator(mode="after")
    def _check(self) -> IqnNetworkParams:
        if self.spectral_norm and self.encoder != "impala":
            message = "spectral_norm acts on residual convolutions: it needs encoder impala"
            raise ValueError(message)
        return self


class NetworkParams(Section):
    """Sizes of the networks; the reference has 256, 1024, 128, 8 and 32 (1,051,805 parameters)."""

    float_hidden: PositiveInt
    dense_hidden: int = Field(ge=2, description="twice the width of each IQN head; width of the PPO trunk")
    tau_embedding: PositiveInt = Field(description="cosines in the quantile embedding")
    iqn: IqnNetworkParams


class FitParams(Section):
    """Supervised training, shared by the stages `pretrain` and `clone`."""

    epochs: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat = Field(description="highest; rises at once and falls along half a cosine")
    weight_decay: NonNegativeFloat
    max_grad_norm: PositiveFloat
    precision: Literal["measured", "float32", "bfloat16"] = Field(description="measured takes the faster one")
    seed: NonNegativeInt


class PretrainParams(FitParams):
    """Stage `pretrain` (Level 0)."""

    task: Literal["autoencoder", "vae", "simclr"]
    vae_latent: PositiveInt = Field(description="latent numbers of the variational autoencoder")
    kl_weight: NonNegativeFloat = Field(description="weight of its divergence, summed over the latent numbers")
    simclr_projection: PositiveInt
    simclr_temperature: PositiveFloat
    simclr_crop_pixels: NonNegativeFloat = Field(description="most rows and columns that a view loses")
    simclr_brightness: Share = Field(lt=1, description="a view is lit by a factor within this of 1")


class CloneParams(FitParams):
    """Stage `clone` (Level 1): behaviour cloning."""

    fastest_share: Share = Field(description="share of the training races that are imitated, fastest first")
    previous_action_dropout: Share = Field(description="share of samples that do not see the previous actions")
    float_noise: NonNegativeFloat = Field(description="noise on the floats, in units of the normalisation's std")


class TransferParams(Section):
    """Stage `transfer`: what the RL network takes over."""

    iqn_encoder: Literal["cloned", "pretrained", "fresh"] = Field(
        description="whose encoder IQN takes: Level 1, Level 0, or none, which encoders of another kind need"
    )
    seed: NonNegativeInt = Field(description="of the weights that start fresh")


class EngineeredRewardParams(Section):
    """Rewards for a manner of driving, over environment steps; see `rulka.envs.rewards`."""

    speed_slide: Schedule = Field(description="each decision, for sliding at the angle that keeps most speed")
    neo_slide: Schedule = Field(description="each decision with a sideways speed of 2 m/s or more")
    kamikaze: Schedule = Field(description="each decision on full gas or with at most one wheel on the ground")
    line_distance: Schedule = Field(description="each decision, for each metre from the line, between 5 and 25 m")


class RewardParams(Section):
    """Reward of one decision; see `rulka.envs.rewards`."""

    per_metre: float = Field(description="for each metre of progress along the centreline")
    per_second: float = Field(description="for each second that passes; negative")
    off_track: float = Field(le=0.0, description="once, on leaving the track")
    line_distance_potential: NonNegativeFloat = Field(
        description="shaping potential lost for each metre from the line, between 2 and 25 m; 0 is none"
    )
    direction_potential: NonNegativeFloat = Field(
        description="shaping potential lost as the car turns away from the line's direction, at most twice this"
    )
    speed_as_seconds: NonNegativeFloat = Field(
        description="a gain in speed counts like the metres it brings in this time; 0 is none, 2 in the reference"
    )
    engineered: EngineeredRewardParams


class RandomisationParams(Section):
    """How much races differ from each other, see `rulka.envs.randomising`; 0 is not at all."""

    friction: float = Field(ge=0, lt=1, description="grip differs by at most this share")
    camera_m: NonNegativeFloat = Field(description="the camera is moved by at most this, back and up")
    camera_deg: NonNegativeFloat = Field(description="and pitched by at most this")
    light_gain: float = Field(ge=0, lt=1, description="contrast differs by at most this share")
    light_offset: NonNegativeFloat = Field(description="brightness differs by at most this many grey levels")
    pixel_noise: NonNegativeFloat = Field(description="largest standard deviation of a pixel's noise, grey levels")

    @property
    def is_off(self) -> bool:
        """Whether nothing differs."""
        return not any(self.model_dump().values())


class TrainParams(Section):
    """Stage `train`: the runtime shared by every algorithm."""

    environment: Backend = Field(description="where the races are driven")
    algorithm: Algorithm = Field(description="the agent of `data/agent`")
    compared: tuple[Algorithm, ...] = Field(description="also trained, for the report's comparison")
    seed: NonNegativeInt
    max_env_steps: PositiveInt = Field(description="environment steps after which training ends")
    max_minutes: PositiveFloat = Field(description="wall minutes after which training ends, if that comes first")
    num_collectors: NonNegativeInt = Field(description="collector processes; 0 runs everything in this process")
    inference: Literal["local", "central"] = Field(description="central lets one process act for all collectors")
    cars_per_collector: PositiveInt
    block_steps: PositiveInt = Field(description="decisions of every car in one block of experience")
    precision: Literal["measured", "float32", "bfloat16"] = Field(description="measured takes the faster at start")
    start_anywhere: Share = Field(description="share of training races that start anywhere on the track")
    start_lateral_m: NonNegativeFloat = Field(description="a race starts at most this far beside the line")
    start_heading_deg: NonNegativeFloat = Field(description="and turned by at most this much")
    max_race_s: PositiveFloat = Field(description="a race is cut after this long")
    no_progress_s: PositiveFloat = Field(description="a race is cut after this long without a further zone")
    randomisation: RandomisationParams
    checkpoint_s: PositiveFloat = Field(description="seconds between live checkpoints")
    experience: Literal["saved", "rebuilt"] = Field(description="of a run that goes on: with its checkpoints, or anew")
    check_env_steps: PositiveInt = Field(description="environment steps between greedy checks of the weights")
    check_races: PositiveInt = Field(description="races of one greedy check, side by side")
    check_candidates: PositiveInt = Field(description="weights that take part in the last choice")
    final_check_races: PositiveInt = Field(description="races of each candidate in the last choice")

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

    steps_per_update: PositiveInt = Field(description="decisions of experience for one update")
    epochs: PositiveInt
    encoder_epochs: NonNegativeInt = Field(description="first epochs of an update that also train the encoder")
    batch_size: PositiveInt
    learning_rate: Schedule
    gamma: Share
    gae_lambda: Share
    clip: PositiveFloat
    value_clip: PositiveFloat = Field(description="in units of the root mean square return")
    value_weight: NonNegativeFloat
    entropy_weight: Schedule
    max_grad_norm: PositiveFloat
    max_versions_behind: NonNegativeInt = Field(description="how many weight versions experience may lag the learner")
    value_warmup_updates: NonNegativeInt = Field(description="first updates that train the value head alone")
    max_kl: PositiveFloat = Field(description="an update ends when the policy has moved this far, in nats")

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
    epsilon: PositiveFloat = Field(description="added to every error, so that no transition is forgotten")
    min_actions_left: NonNegativeInt = Field(
        lt=MINI_RACE_ACTIONS, description="errors of transitions nearer to the end of their mini-race do not count"
    )


class MunchausenParams(Section):
    """Munchausen targets; see `rulka.losses.munchausen`."""

    alpha: Share = Field(description="weight of the log-probability in the reward")
    temperature: PositiveFloat = Field(description="of the policy that the target network stands for")
    floor: float = Field(le=0.0, description="least temperature times log-probability that counts")


class ResetParams(Section):
    """Periodic resets of the online network toward fresh weights; see `rulka.agents.iqn_reset`."""

    every_env_steps: PositiveInt
    fresh_share: Share = Field(description="share of fresh weights mixed into every layer")
    last_layer_kept: Share = Field(description="share of the last layers' weights that is left after that")
    further_samples: NonNegativeInt = Field(description="transitions to learn from beyond samples_per_insert")


class IqnParams(Section):
    """IQN; see `rulka.agents.iqn`."""

    explore_whole_blocks: bool = Field(description="chance is drawn for a whole block of actions, not for each")
    num_quantiles: PositiveInt = Field(description="fractions for each state while training; even")
    num_quantiles_acting: PositiveInt = Field(description="fractions for each state while acting; even")
    kappa: PositiveFloat
    n_steps: int = Field(ge=1, le=MINI_RACE_ACTIONS, description="most decisions in a transition")
    use_double_dqn: bool
    munchausen: MunchausenParams | None = Field(description="null: plain Q-learning targets")
    batch_size: PositiveInt
    learning_rate: PositiveSchedule
    gamma: ShareSchedule
    epsilon: ShareSchedule = Field(description="share of random actions")
    boltzmann_epsilon: ShareSchedule = Field(description="further share of actions, the best after adding noise")
    boltzmann_noise: PositiveFloat = Field(description="standard deviation of that noise, in units of returns")
    target_tau: float = Field(gt=0, le=1, description="step of the target network toward the online one; 1 copies it")
    target_every: PositiveInt = Field(description="gradient steps between two such steps")
    resets: ResetParams | None = Field(description="null: never")
    buffer_steps: PositiveInt = Field(description="decisions kept")
    start_steps: PositiveInt = Field(description="decisions in the buffer before the first update")
    prioritised: PrioritisedParams | None = Field(description="null: all transitions are drawn alike")
    held_out_share: Share = Field(lt=1, description="share of races never learned from, and of batches that test")
    samples_per_insert: PositiveFloat = Field(description="how often each decision is learned from on average")
    demonstration_share: Share = Field(description="share of every batch drawn from demonstrations")
    warmup_steps: NonNegativeInt = Field(description="first environment steps driven by the cloned policy")
    gradient_steps_per_update: PositiveInt = Field(description="gradient steps between two versions of the weights")
    oversample_long_term: NonNegativeInt = Field(
        description="draws of the mini-race clock, see rulka.buffers.mini_race.ClockRule"
    )
    oversample_max_term: NonNegativeInt = Field(description="the same; 40 and 5 in the reference")
    self_loss_clamp_ratio: PositiveFloat = Field(description="how much narrower than typical a target may count")
    weight_decay: NonNegativeFloat = Field(description="share of the learning rate by which weights shrink")
    max_grad_norm: PositiveFloat
    max_grad_value: PositiveFloat | None = Field(description="bound of each number of the gradient after that; or null")

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

    num_races: PositiveInt = Field(description="races of each contestant")
    seed: NonNegativeInt = Field(description="start k of a race is drawn from seed + k")
    start_lateral_m: NonNegativeFloat = Field(description="a race starts at most this far beside the line")
    start_heading_deg: NonNegativeFloat = Field(description="and turned by at most this much")
    max_race_s: PositiveFloat = Field(description="a race is cut after this long")
    no_progress_s: PositiveFloat = Field(description="a race is cut after this long without getting further")
    video_width: PositiveInt = Field(multiple_of=2, description="pixels")
    video_height: PositiveInt = Field(multiple_of=2, description="pixels")
    video_fps: PositiveInt = Field(description="frames a second of the video, which plays in real time")


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
        count, ticks = self.network.iqn.actions_per_decision, self.actions.ticks_per_action
        if ticks % count:
            message = f"network.iqn.actions_per_decision {count} must divide actions.ticks_per_action {ticks}"
            raise ValueError(message)
        if count > 1 and (self.iqn.warmup_steps or self.iqn.demonstration_share):
            message = (
                "the cloned policy and demonstrations know decisions of one action: with a larger "
                "network.iqn.actions_per_decision, set iqn.warmup_steps and iqn.demonstration_share to 0"
            )
            raise ValueError(message)
        if count > 1 and self.train.environment == "game":
            message = "a decision in the game is one action: set network.iqn.actions_per_decision to 1"
            raise ValueError(message)
        return self


def read_params(path: Path = PARAMS_FILE) -> Params:
    """Reads and checks all parameters.

    Raises:
        ParamsError: if the file is missing, is not YAML, or a key is unknown, missing or of a wrong type.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}; run from the root of the project"
        raise ParamsError(message) from error
    except yaml.YAMLError as error:
        message = f"{path} is not valid YAML: {error}"
        raise ParamsError(message) from error
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        message = f"{path} is wrong:\n" + "\n".join(_problems(error))
        raise ParamsError(message) from error


def reference_params() -> Params:
    """Returns the parameters that come with the package, whatever the current directory.

    In a checkout they are the repository's own `params.yaml`; in an installed wheel, the copy of it that the wheel
    carries as `rulka/reference_params.yaml`. For environments made without a configuration; stages never use them.
    """
    repository = Path(__file__).resolve().parent.parent
    is_checkout = (repository / "pyproject.toml").is_file()
    return read_params(repository / PARAMS_FILE if is_checkout else Path(__file__).with_name("reference_params.yaml"))


def _problems(error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        lines.append(f"  {key or '(top level)'}: {problem['msg']} (got {problem['input']!r:.80})")
    return lines
