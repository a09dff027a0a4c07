"""All sections together, and what several of them make impossible."""

from __future__ import annotations

from pydantic import model_validator

from models.encoders.config import BackboneConfig, ConvConfig, EncoderConfig, PatchConfig
from models.fusion_config import ConcatConfig
from rulka.actions import TICK_MS
from rulka.params.algorithm import ALGORITHM_NAMES, AlgorithmParams
from rulka.params.base import Algorithm, Section, key, refuse_impossible
from rulka.params.clone import CloneParams
from rulka.params.dpo import DpoParams
from rulka.params.evaluate import EvaluateParams
from rulka.params.grpo import GrpoParams
from rulka.params.impala import ImpalaParams
from rulka.params.iqn import IqnParams
from rulka.params.networks import NetworkParams, TransferParams
from rulka.params.observation import ActionParams, ObservationParams
from rulka.params.ppo import PpoParams
from rulka.params.pql import PqlParams
from rulka.params.pretrain import PretrainParams, ViewsParams
from rulka.params.races import CaptureParams, RaceEndParams, RaceParams, TrackParams
from rulka.params.simulator import SimulatorParams
from rulka.params.training import RewardParams, TrainParams


class Params(Section):
    """All of `params.yaml`."""

    observation: ObservationParams = key(ObservationParams(), "what agents see")
    actions: ActionParams = key(ActionParams(), "how long they act")
    simulator: SimulatorParams = key(SimulatorParams(), "the embedded car and its camera")
    race_end: RaceEndParams = key(RaceEndParams(), "when any race is over")
    track: TrackParams = key(TrackParams(), "the track where there are no recordings")
    races: RaceParams = key(RaceParams(), "stage races: who drove what is learned from")
    capture: CaptureParams = key(CaptureParams(), "stage capture: races to frames")
    encoder: EncoderConfig = key(ConvConfig(), "of images, the same one in every network")
    network: NetworkParams = key(NetworkParams(), "what lies behind the encoder")
    pretrain: PretrainParams = key(PretrainParams(), "stage pretrain: Level 0")
    clone: CloneParams = key(CloneParams(), "stage clone: Level 1")
    transfer: TransferParams = key(TransferParams(), "stage transfer: what new agents take over")
    rewards: RewardParams = key(RewardParams(), "what a decision is paid")
    train: TrainParams = key(TrainParams(), "stage train: the runtime of every algorithm")
    ppo: PpoParams = key(PpoParams(), "proximal policy optimisation")
    iqn: IqnParams = key(IqnParams(), "implicit quantile networks")
    impala: ImpalaParams = key(ImpalaParams(), "actors that run ahead, and V-trace")
    grpo: GrpoParams = key(GrpoParams(), "group relative policy optimisation")
    dpo: DpoParams = key(DpoParams(), "direct preference optimisation")
    pql: PqlParams = key(PqlParams(), "parallel Q-learning")
    evaluate: EvaluateParams = key(EvaluateParams(), "stage evaluate: greedy races")

    @property
    def algorithms(self) -> dict[Algorithm, AlgorithmParams]:
        """The sections of all algorithms, by name."""
        return {name: getattr(self, name) for name in ALGORITHM_NAMES}

    @model_validator(mode="after")
    def _check(self) -> Params:
        refuse_impossible(self._impossible())
        return self

    def _impossible(self) -> list[tuple[bool, str]]:
        """Returns for each impossible combination of sections whether it is there, and what is wrong with it."""
        count, ticks = self.network.actions_per_decision, self.actions.ticks_per_action
        is_analog, clone = self.network.analog, self.clone
        side, objective = min(self.observation.height, self.observation.width), self.pretrain.objective
        return [
            (
                ticks % count > 0,
                f"network.actions_per_decision {count} must divide actions.ticks_per_action {ticks}",
            ),
            (
                is_analog and count > 1,
                f"network.analog holds numbers for a whole decision: set network.actions_per_decision {count} to 1",
            ),
            (
                is_analog and self.train.environment == "game",
                "network.analog steers by numbers, and a game's keys are pressed or not: set train.environment to "
                "simulator, or network.analog to false",
            ),
            (
                is_analog and clone.shape != "policy",
                f"network.analog clones a policy of numbers, and clone.shape {clone.shape} values of actions: set it "
                "to policy",
            ),
            (
                is_analog and clone.labels == "hard",
                "network.analog imitates steering, gas and brake as they were, and clone.labels hard the longest "
                "action: set it to soft",
            ),
            *(
                problem
                for name, section in self.algorithms.items()
                for problem in section.impossible(
                    self.network,
                    self.transfer.of(name),
                    ticks * section.action_repeat * TICK_MS,
                    is_trained=name in self.train.algorithms,
                )
            ),
            *(problem for name in self.train.algorithms for problem in self._impossible_repeats(name)),
            *(
                problem
                for name in self.train.algorithms
                for problem in self._impossible_groups(name, self.algorithms[name].races_per_start)
            ),
            *(
                problem
                for name in self.train.algorithms
                for problem in self.algorithms[name].indivisible(name, self.train.learners)
            ),
            *(
                problem
                for name in self.train.algorithms
                for problem in self.transfer.of(name).impossible(name, self.network, self.clone.shape)
            ),
            *self.network.impossible(self.encoder, self.observation),
            *(
                (
                    self.train.acting_precision is not None and not self.algorithms[name].acts_quantised,
                    f"train.acting_precision is {self.train.acting_precision}, and {name} acts in train.precision: set "
                    "it to null",
                )
                for name in self.train.algorithms
            ),
            *self._impossible_int8(),
            (
                isinstance(self.encoder, PatchConfig)
                and bool(self.observation.height % self.encoder.patch or self.observation.width % self.encoder.patch),
                f"encoder.patch must divide observation.height {self.observation.height} and observation.width "
                f"{self.observation.width}",
            ),
            (
                isinstance(self.encoder, BackboneConfig) and self.observation.channels > 1,
                "a backbone takes one frame at a time: set observation.frames_as to features",
            ),
            (
                isinstance(objective, ViewsParams) and objective.crop_pixels >= side,
                f"pretrain.objective.crop_pixels must be less than {side}, as images have so many rows or columns",
            ),
        ]

    def _impossible_repeats(self, name: Algorithm) -> list[tuple[bool, str]]:
        """Returns the same for an algorithm that repeats its actions."""
        repeats, count, frames = (
            self.algorithms[name].action_repeat,
            self.network.actions_per_decision,
            self.observation.frames,
        )
        return [
            (
                repeats > 1 and count > 1,
                f"{name}.action_repeat {repeats} repeats single actions, and network.actions_per_decision is {count}: "
                "set one of them to 1",
            ),
            (
                repeats > 1 and frames > 1,
                f"{name}.action_repeat {repeats} would put observation.frames {frames} further apart than captured "
                "races have them: set one of them to 1, as `rulka preset frames` does",
            ),
        ]

    def _impossible_int8(self) -> list[tuple[bool, str]]:
        """Returns the same for actors in int8, which is known of one kind of network."""
        seen, encoder = self.observation, self.encoder
        reasons = [
            "" if isinstance(encoder, ConvConfig) else f"encoder.kind is {encoder.kind}, not conv",
            "encoder.adaptive_pool is not 0" if getattr(encoder, "adaptive_pool", 0) else "",
            "" if isinstance(self.network.fusion, ConcatConfig) else "network.fusion.kind is not concat",
            "observation.frames is not 1" if seen.frames > 1 else "",
            "" if seen.shows_image else "observation.withheld has image",
            *(self.algorithms[name].no_int8(self.network) for name in self.train.algorithms),
        ]
        is_wanted = self.train.acting_precision == "int8"
        remedy = "set train.acting_precision to bfloat16, float16 or float32, or that"
        return [(is_wanted and bool(why), f"train.acting_precision is int8, but {why}: {remedy}") for why in reasons]

    def _impossible_groups(self, algorithm: Algorithm, group_size: int) -> list[tuple[bool, str]]:
        """Returns the same for an algorithm that compares so many races, which begin alike."""
        train, compares = self.train, f"{algorithm} compares {group_size} races from equal starts"
        num_groups = train.num_cars // group_size
        return [
            (
                train.cars_per_collector % (group_size * train.car_groups) > 0,
                f"{compares}: train.cars_per_collector {train.cars_per_collector} must be a multiple of that"
                + (f" in each of its {train.car_groups} car_groups" if train.car_groups > 1 else ""),
            ),
            (
                group_size > 1 and train.start_from_earlier > 0.0,
                f"{compares}, and races that begin where their own car was do not begin alike: set "
                "train.start_from_earlier to 0",
            ),
            (
                group_size > 1 and train.num_tracks > num_groups,
                f"{compares}, all on one track: {train.num_tracks} tracks need as many groups of cars, and there are "
                f"{num_groups}",
            ),
        ]


def keys_of(algorithm: Algorithm) -> tuple[str, ...]:
    """Returns how keys of `params.yaml` begin that act on one algorithm and on nothing else."""
    return f"{algorithm}.", f"network.{algorithm}.", f"transfer.{algorithm}."
