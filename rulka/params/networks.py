"""Sizes of the networks, and what the RL networks take over: sections `network` and `transfer`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rulka.params.base import Count, Section, Seed, Size


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


class TransferParams(Section):
    """Stage `transfer`: what the RL network takes over."""

    iqn_encoder: Literal["cloned", "pretrained", "fresh"] = Field(
        description="whose encoder IQN takes: Level 1, Level 0, or none, which encoders of another kind need"
    )
    seed: Seed = Field(description="of the weights that start fresh")
