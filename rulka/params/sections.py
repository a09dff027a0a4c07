"""All sections together, and what several of them make impossible."""

from __future__ import annotations

from pydantic import model_validator

from rulka.params.algorithm import ALGORITHM_NAMES, AlgorithmParams
from rulka.params.base import Algorithm, Section, refuse_impossible
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
        count, ticks = self.network.iqn.actions_per_decision, self.actions.ticks_per_action
        side = min(self.observation.height, self.observation.width)
        return [
            (
                ticks % count > 0,
                f"network.iqn.actions_per_decision {count} must divide actions.ticks_per_action {ticks}",
            ),
            *(
                problem
                for name, section in self.algorithms.items()
                for problem in section.impossible(
                    self.network, self.transfer.of(name), is_trained=name in self.train.algorithms
                )
            ),
            (
                self.pretrain.task == "simclr" and self.pretrain.simclr_crop_pixels >= side,
                f"pretrain.simclr_crop_pixels {self.pretrain.simclr_crop_pixels} leaves nothing of images of {side}"
                " rows or columns",
            ),
        ]


def keys_of(algorithm: Algorithm) -> tuple[str, ...]:
    """Returns how keys of `params.yaml` begin that act on one algorithm and on nothing else."""
    section = Params.model_fields[algorithm].annotation
    assert isinstance(section, type)
    assert issubclass(section, AlgorithmParams)
    return (f"{algorithm}.", f"network.{algorithm}.", f"transfer.{algorithm}.", *section.own_keys)
