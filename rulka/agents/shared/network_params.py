"""Network sizes behind the encoder: section `network`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from models.encoders.config import BackboneConfig, ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.fusion_config import ConcatConfig, FusionConfig, TokenSequenceConfig
from rulka.contracts.actions import Parts, num_parts
from rulka.contracts.observation_params import ObservationParams
from rulka.contracts.section import Section, Size, key

CloneShape = Literal["policy", "iqn"]
"""Network of the cloned policy: PPO's policy, or IQN's."""


class IqnNetworkParams(Section):
    """Options of IQN's network beyond those of the cloned policy and PPO; see `models.iqn.IqnSizes`."""

    tau_embedding: Size = key(128, "Number of cosines in the quantile embedding.")
    embedding_at: Literal["state", "hidden"] = key(
        "hidden",
        "Layer that embedded fractions are multiplied into: state as in the paper, or hidden, which is cheaper.",
    )
    layer_norm: bool = key(False, "Layer normalisation in the float head and both output heads.")
    guided: bool = key(True, "Inclusion of the cloned policy, which may drive first and limit actions.")
    noisy_sigma: float = key(0.0, "Initial noise of noisy heads; 0 makes plain heads.", ge=0, le=10)


class NetworkParams(Section):
    """Sizes behind the encoder; the reference has 256, 1024 and 128 (1,051,805 parameters with its encoder)."""

    float_hidden: Size = key(256, "Width of both layers of the float head, if the fusion uses one.")
    dense_hidden: int = key(512, "Width of the PPO trunk, and twice the width of each IQN head.", ge=2, le=65_536)
    actions_per_decision: Parts = key(
        1, "Actions of clone and agents that share a decision's ticks evenly, or a list of their offsets in ms."
    )
    analog: bool = key(False, "Decisions as numbers for steer, gas and brake instead of keys.")
    fusion: FusionConfig = key(ConcatConfig(), "Fusion of image features and floats into one state.")
    iqn: IqnNetworkParams = key(IqnNetworkParams(), "Options of IQN's network alone.")

    @property
    def num_parts(self) -> int:
        """K, the number of actions in a decision."""
        return num_parts(self.actions_per_decision)

    def impossible(self, encoder: EncoderConfig, observation: ObservationParams) -> Iterator[str]:
        """Yields an error message for each conflict between the fusion and an encoder.

        Args:
            encoder: of the images.
            observation: their size.
        """
        takes_all = isinstance(self.fusion, TokenSequenceConfig) and self.fusion.takes_all
        needs, remedy = "network.fusion.image all needs", "or network.fusion.image to one"
        if takes_all and isinstance(encoder, ConvConfig | ImpalaConfig) and encoder.adaptive_pool == 1:
            yield f"{needs} several places of the encoder's map, but encoder.adaptive_pool is 1: set it to 2, {remedy}"
        if takes_all and isinstance(encoder, PatchConfig) and encoder.patch == observation.height == observation.width:
            yield f"{needs} several patches, but encoder.patch {encoder.patch} is the whole image: lower it, {remedy}"
        if takes_all and isinstance(encoder, BackboneConfig) and encoder.token == "cls":
            yield f"{needs} tokens of patches, but encoder.token is cls: set encoder.token to mean, {remedy}"
        if not takes_all and isinstance(encoder, PatchConfig) and encoder.depth == 0:
            yield (
                "encoder.depth 0 needs a fusion that takes all tokens, but network.fusion.kind "
                f"{self.fusion.kind} takes only their mean: set encoder.depth to 1 or more, or network.fusion to "
                "{kind: token_sequence, image: all}"
            )
