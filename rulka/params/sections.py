"""All sections together, and the checks across sections."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from models.encoders.config import BackboneConfig, ConvConfig, EncoderConfig, PatchConfig
from rulka.agents.params import ALGORITHMS, Algorithm, TransferParams, with_section_of_each
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.params import AlgorithmParams, SectionContext
from rulka.contracts.actions import TICK_MS, ActionParams, divided
from rulka.contracts.observation_params import ObservationParams
from rulka.contracts.section import Section, key
from rulka.datasets.params import CaptureParams, RaceParams
from rulka.evaluation.params import EvaluateParams
from rulka.pretraining.params import CloneParams, PretrainParams, ViewsParams
from rulka.simulator.params import SimulatorParams
from rulka.simulator.race_params import RaceEndParams, RewardParams
from rulka.tracks.params import TrackParams
from rulka.training.params import TrainParams


class _StageSections(Section):
    """Sections up to the stage `train`, in their order in lists."""

    observation: ObservationParams = key(ObservationParams(), "Observations of agents.")
    actions: ActionParams = key(ActionParams(), "Duration of agents' decisions.")
    simulator: SimulatorParams = key(SimulatorParams(), "Embedded simulator: the car's physics and the camera.")
    race_end: RaceEndParams = key(RaceEndParams(), "Limits that end a race, for every driver and purpose.")
    track: TrackParams = key(TrackParams(), "Track that is generated if there are no recordings.")
    races: RaceParams = key(RaceParams(), "Stage races: recordings or built-in drivers as the source of races.")
    capture: CaptureParams = key(CaptureParams(), "Stage capture: renders races to frames.")
    encoder: EncoderConfig = key(ConvConfig(), "Image encoder, the same in every network.")
    network: NetworkParams = key(NetworkParams(), "Layers after the encoder.")
    pretrain: PretrainParams = key(PretrainParams(), "Stage pretrain, Level 0: trains the encoder on frames.")
    clone: CloneParams = key(CloneParams(), "Stage clone, Level 1: behaviour cloning.")
    transfer: TransferParams = key(TransferParams(), "Stage transfer: initial weights of new agents.")
    rewards: RewardParams = key(RewardParams(), "Reward of a decision.")
    train: TrainParams = key(TrainParams(), "Stage train: algorithms, races, budget and runtime.")


_StagesAndAlgorithms = with_section_of_each(
    _StageSections, {name: (section, f"{section.LABEL}: {section.__doc__}") for name, section in ALGORITHMS.items()}
)


class Params(_StagesAndAlgorithms):
    """All of `params.yaml`."""

    evaluate: EvaluateParams = key(EvaluateParams(), "Stage evaluate: greedy races from fixed seeds.")

    @property
    def algorithms(self) -> dict[Algorithm, AlgorithmParams]:
        """The sections of all algorithms, by name."""
        return {name: getattr(self, name) for name in ALGORITHMS}

    def _check_combinations(self) -> Iterator[str]:
        yield from self._impossible_actions()
        yield from self._impossible_pictures()
        yield from self._impossible_int8()
        for name in self.train.algorithms:
            yield from self._impossible_training(name, self.algorithms[name])

    def _impossible_actions(self) -> Iterator[str]:
        count = self.network.num_parts
        try:
            divided(self.actions.ticks_per_action, self.network.actions_per_decision)
        except ValueError as error:
            yield f"{error}: change network.actions_per_decision or actions.ticks_per_action"
        if not self.network.analog:
            return
        needs, remedy = "network.analog needs", "or network.analog to false"
        if count > 1:
            yield f"{needs} single actions, but network.actions_per_decision is {count}: set it to 1, {remedy}"
        if self.train.environment == "game":
            yield f"{needs} analog controls, but train.environment is game: set it to simulator, {remedy}"
        if self.clone.shape != "policy":
            yield f"{needs} a cloned policy, but clone.shape is {self.clone.shape}: set it to policy, {remedy}"
        if self.clone.labels == "hard":
            yield f"{needs} labels that can be averaged, but clone.labels is hard: set it to soft, {remedy}"

    def _impossible_pictures(self) -> Iterator[str]:
        seen, encoder, objective = self.observation, self.encoder, self.pretrain.objective
        side = min(seen.height, seen.width)
        yield from self.network.impossible(encoder, seen)
        if isinstance(encoder, PatchConfig) and (seen.height % encoder.patch or seen.width % encoder.patch):
            yield f"encoder.patch needs to divide observation.height {seen.height} and width {seen.width}: change it"
        if isinstance(encoder, BackboneConfig) and seen.channels > 1:
            yield "encoder.kind backbone needs single frames: set observation.frames_as to features"
        if isinstance(objective, ViewsParams) and objective.crop_pixels >= side:
            yield f"pretrain.objective.crop_pixels needs to be less than {side}, the image's shorter side: lower it"

    def _impossible_int8(self) -> Iterator[str]:
        """Yields the reasons that rule out int8 for actors; only one kind of network supports it."""
        if self.train.acting_precision != "int8":
            return
        needs, remedy = "train.acting_precision int8 needs", "or train.acting_precision to bfloat16, float16 or float32"
        values = {"encoder.kind": "conv", "encoder.adaptive_pool": 0, "network.fusion.kind": "concat"}
        values |= {"encoder.spectral_norm": False, "observation.frames": 1}
        for name in self.train.algorithms:
            values |= self.algorithms[name].INT8_NEEDS
        for name, value in values.items():
            found = reduce(getattr, name.split("."), self)
            if found != value:
                yield f"{needs} {name} {value}, but it is {found}: set it to {value}, {remedy}"
        if not self.observation.shows_image:
            yield f"{needs} images, but observation.withheld has image: remove it, {remedy}"

    def _impossible_training(self, name: Algorithm, section: AlgorithmParams) -> Iterator[str]:
        """Yields impossible combinations for a trained algorithm."""
        train, network, parts = self.train, self.network, self.transfer.of(name)
        repeats, group_size = section.action_repeat, section.races_per_start
        decision_ms = self.actions.ticks_per_action * repeats * TICK_MS
        is_exact = train.order == "exact"
        context = SectionContext(name, network, parts, decision_ms, train.learners, is_exact)
        yield from section.impossible(context)
        budget = train.max_env_steps
        for count in section.LEARNS_AFTER:
            if (value := getattr(section, count)) > budget:
                needs = f"{name}.{count} {value} needs a longer run than train.max_env_steps {budget}"
                yield f"{needs}: raise that, or lower it"
        yield from parts.impossible(name, network, self.clone.shape)
        if repeats > 1 and network.num_parts > 1:
            yield (
                f"{name}.action_repeat {repeats} needs single actions, but network.actions_per_decision is "
                f"{network.num_parts}: set one of them to 1"
            )
        if repeats > 1 and self.observation.frames > 1:
            yield (
                f"{name}.action_repeat {repeats} needs frames as far apart as in captured races, but "
                f"observation.frames is {self.observation.frames}: set one of them to 1, as `rulka preset frames` does"
            )
        needs, num_groups = f"{name} needs groups of {group_size} cars with equal starts", train.num_cars // group_size
        if train.cars_per_collector % group_size:
            yield f"{needs}, but train.cars_per_collector is {train.cars_per_collector}: make it a multiple"
        if group_size > 1 and train.start_from_earlier > 0.0:
            yield f"{needs}, but train.start_from_earlier is {train.start_from_earlier}: set it to 0"
        if group_size > 1 and train.num_tracks > num_groups:
            yield (
                f"{needs} on each track, but {train.num_tracks} tracks have {num_groups} groups: name fewer in "
                "train.tracks, or raise train.cars_per_collector"
            )


def keys_of(algorithm: Algorithm) -> tuple[str, ...]:
    """Returns the prefixes of keys of `params.yaml` that affect only one algorithm."""
    return f"{algorithm}.", f"network.{algorithm}.", f"transfer.{algorithm}."
