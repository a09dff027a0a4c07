"""Network sizes behind the encoder: section `network`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from models.encoders.config import BackboneConfig, ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.fusion_config import ConcatConfig, FusionConfig, TokenSequenceConfig
from rulka.contracts.observation_params import ObservationParams
from rulka.contracts.section import Count, Section, Size, key

CloneShape = Literal["policy", "iqn"]
"""Network of the cloned policy: PPO's policy, or IQN's."""


class IqnNetworkParams(Section):
    """Options of IQN's network beyond those of the cloned policy and PPO; see `models.iqn.IqnSizes`."""

    tau_embedding: Size = key(128, "cosines in the quantile embedding")
    embedding_at: Literal["state", "hidden"] = key(
        "hidden", "what embedded fractions are multiplied into; state is the paper's, hidden is cheaper"
    )
    layer_norm: bool = key(False, "in the float head and both heads")
    guided: bool = key(True, "carries the cloned policy, which may drive first and limit actions")
    noisy_sigma: float = key(0.0, "size of the noise of noisy heads at the start; 0 for plain ones", ge=0, le=10)


class NetworkParams(Section):
    """Sizes behind the encoder; the reference has 256, 1024 and 128 (1,051,805 parameters with its encoder)."""

    float_hidden: Size = key(256, "width of both layers of the float head, where the fusion has it have two")
    dense_hidden: int = key(512, "twice the width of each IQN head; width of the PPO trunk", ge=2, le=65_536)
    actions_per_decision: Count = key(
        1, "of the cloned policy and all agents: actions that share a decision's ticks; a later peer has 5"
    )
    analog: bool = key(False, "decisions are steer, gas and brake as numbers in place of keys")
    fusion: FusionConfig = key(ConcatConfig(), "what makes one state of image features and floats")
    iqn: IqnNetworkParams = key(IqnNetworkParams(), "of IQN alone")

    def impossible(self, encoder: EncoderConfig, observation: ObservationParams) -> Iterator[str]:
        """Yields an error message for each conflict between the fusion and an encoder.

        Args:
            encoder: of the images.
            observation: their size.
        """
        takes_all = isinstance(self.fusion, TokenSequenceConfig) and self.fusion.takes_all
        all_takes, remedy = "network.fusion.image all takes", "set network.fusion.image to one"
        if takes_all and isinstance(encoder, ConvConfig | ImpalaConfig) and encoder.adaptive_pool == 1:
            yield (
                f"{all_takes} a token for each place of the encoder's map, and encoder.adaptive_pool 1 leaves one "
                f"place: {remedy}"
            )
        if takes_all and isinstance(encoder, PatchConfig) and encoder.patch == observation.height == observation.width:
            yield f"{all_takes} a token for each patch, and encoder.patch {encoder.patch} is the whole image: {remedy}"
        if takes_all and isinstance(encoder, BackboneConfig) and encoder.token == "cls":
            yield (
                f"{all_takes} the tokens of patches, and encoder.token cls the class token alone: "
                f"set encoder.token to mean, or {remedy.removeprefix('set ')}"
            )
        if not takes_all and isinstance(encoder, PatchConfig) and encoder.depth == 0:
            yield (
                f"encoder.depth 0 leaves patches to a fusion, and network.fusion.kind {self.fusion.kind} takes only "
                "their mean: set encoder.depth to 1 or more, or take image all of network.fusion.kind token_sequence"
            )
