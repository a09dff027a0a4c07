"""All sections together, and what several of them make impossible."""

from __future__ import annotations

from pydantic import model_validator

from rulka.params.base import Section, refuse_impossible
from rulka.params.evaluation import EvaluateParams
from rulka.params.iqn import IqnParams
from rulka.params.networks import NetworkParams, TransferParams
from rulka.params.observation import ActionParams, ObservationParams
from rulka.params.ppo import PpoParams
from rulka.params.races import CaptureParams, RaceEndParams, RaceParams, TrackParams
from rulka.params.simulator import SimulatorParams
from rulka.params.supervised import CloneParams, PretrainParams
from rulka.params.training import RewardParams, TrainParams


class Params(Section):
    """All of `params.yaml`."""

    observation: ObservationParams
    actions: ActionParams
    simulator: SimulatorParams
    race_end: RaceEndParams
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
        refuse_impossible(self._impossible())
        return self

    def _impossible(self) -> list[tuple[bool, str]]:
        """Returns for each impossible combination of sections whether it is there, and what is wrong with it."""
        count, ticks = self.network.iqn.actions_per_decision, self.actions.ticks_per_action
        has_iqn = "iqn" in self.train.algorithms
        warmup = self.ppo.value_warmup_steps
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
                self.pretrain.task == "simclr" and self.pretrain.simclr_crop_pixels >= side,
                f"pretrain.simclr_crop_pixels {self.pretrain.simclr_crop_pixels} leaves nothing of images of {side}"
                " rows or columns",
            ),
        ]
