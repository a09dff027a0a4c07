"""All sections together, and what several of them make impossible."""

from __future__ import annotations

from pydantic import Field, model_validator

from models.encoders.config import EncoderConfig
from rulka.params.base import Section, refuse_impossible
from rulka.params.evaluation import EvaluateParams
from rulka.params.iqn import IqnParams
from rulka.params.networks import NetworkParams, TransferParams
from rulka.params.observation import ActionParams, ObservationParams
from rulka.params.ppo import PpoParams
from rulka.params.races import CaptureParams, RaceEndParams, RaceParams, TrackParams
from rulka.params.simulator import SimulatorParams
from rulka.params.supervised import CloneParams, PretrainParams, SimclrParams
from rulka.params.training import RewardParams, TrainParams


class Params(Section):
    """All of `params.yaml`."""

    observation: ObservationParams = Field(description="what agents see")
    actions: ActionParams = Field(description="how long they act")
    simulator: SimulatorParams = Field(description="the embedded car and its camera")
    race_end: RaceEndParams = Field(description="when any race is over")
    track: TrackParams = Field(description="the track where there are no recordings")
    races: RaceParams = Field(description="stage races: who drove what is learned from")
    capture: CaptureParams = Field(description="stage capture: races to frames")
    encoder: EncoderConfig = Field(description="of images, the same one in every network")
    network: NetworkParams = Field(description="what lies behind the encoder")
    pretrain: PretrainParams = Field(description="stage pretrain: Level 0")
    clone: CloneParams = Field(description="stage clone: Level 1")
    transfer: TransferParams = Field(description="stage transfer: what new agents take over")
    rewards: RewardParams = Field(description="what a decision is paid")
    train: TrainParams = Field(description="stage train: the runtime of every algorithm")
    ppo: PpoParams = Field(description="proximal policy optimisation")
    iqn: IqnParams = Field(description="implicit quantile networks")
    evaluate: EvaluateParams = Field(description="stage evaluate: greedy races")

    @model_validator(mode="after")
    def _check(self) -> Params:
        refuse_impossible(self._impossible())
        return self

    def _impossible(self) -> list[tuple[bool, str]]:
        """Returns for each impossible combination of sections whether it is there, and what is wrong with it."""
        count, ticks = self.network.iqn.actions_per_decision, self.actions.ticks_per_action
        has_iqn = "iqn" in self.train.algorithms
        warmup = self.ppo.value_warmup_steps
        side, objective = min(self.observation.height, self.observation.width), self.pretrain.objective
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
            *(
                problem
                for algorithm in self.train.algorithms
                for problem in self.transfer.impossible(algorithm, self.network)
            ),
            (
                "ppo" in self.train.algorithms and self.transfer.ppo.heads == "fresh" and warmup > 0,
                f"ppo.value_warmup_steps {warmup} spares a cloned policy, and transfer.ppo.heads is fresh: "
                "set ppo.value_warmup_steps to 0",
            ),
            (
                isinstance(objective, SimclrParams) and objective.crop_pixels >= side,
                f"pretrain.objective.crop_pixels must be less than {side}, as images have so many rows or columns",
            ),
        ]
