"""Section `ppo`."""

from __future__ import annotations

from pydantic import Field

from rulka.params.base import PositiveSchedule, ShareSchedule
from rulka.params.networks import NetworkParams, PartsParams
from rulka.params.policy_gradient import CriticParams, EpochsParams


class PpoParams(CriticParams, EpochsParams):
    """Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347."""

    gae_lambda: ShareSchedule = Field(
        description="weight of longer returns in advantages: 0 is one step, 1 the whole race"
    )
    clip: PositiveSchedule = Field(description="how far the probability ratio of an action may leave 1 and still gain")
    value_clip: PositiveSchedule | None = Field(
        description="how far a value may move and still gain, in units of the root mean square return; null: any way"
    )
    max_kl: PositiveSchedule = Field(description="an update ends when it has moved the policy this far, in nats")

    def impossible(
        self, network: NetworkParams, parts: PartsParams, decision_ms: int, *, is_trained: bool
    ) -> list[tuple[bool, str]]:
        """Returns what cannot be together; see `AlgorithmParams`."""
        del network, decision_ms
        return [self.warmup_without_clone("ppo", parts, is_trained=is_trained)]
