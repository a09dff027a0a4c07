"""What lies behind the encoder, and what the RL networks take over: sections `network` and `transfer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from models.encoders.config import BackboneConfig, ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.fusion_config import ConcatConfig, FusionConfig, TokenSequenceConfig
from rulka.params.base import Algorithm, CloneShape, Count, Section, Seed, Size, key
from rulka.params.observation import ObservationParams


class IqnNetworkParams(Section):
    """What IQN's network has beyond that of the cloned policy and PPO; see `models.iqn.IqnSizes`."""

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
        """Yields a sentence for each reason why the fusion does not go with an encoder.

        Args:
            encoder: of the images.
            observation: how large they are.
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


Source = Literal["fresh", "cloned", "agent"]
Trunk = Annotated[Source, Field(description="between both and the heads; IQN's embeds quantile fractions")]
PartHeads = Annotated[Source, Field(description="that end in actions: cloned where clone.shape is the algorithm's")]


class PartsParams(Section):
    """Where each part of a new agent comes from; the table of parts is `rulka.agents.algorithms`."""

    encoder: Literal["fresh", "pretrained", "cloned", "agent"] = key("cloned", "of images; pretrained is Level 0")
    float_head: Source = key("cloned", "of the floats, with their normalisation")
    trunk: Trunk = "cloned"
    heads: PartHeads = "cloned"

    def impossible(self, algorithm: Algorithm, network: NetworkParams, shape: CloneShape) -> Iterator[str]:
        """Yields a sentence for each part that cannot be taken over.

        Args:
            algorithm: whose parts these are.
            network: sizes of networks.
            shape: of the cloned policy.
        """
        if shape == "policy":
            return
        for part in ("trunk", "heads"):
            if self.by_part()[part] == "cloned":
                yield (
                    f"transfer.{algorithm}.{part} is cloned, but the cloned policy has that of its clone.shape "
                    f"{shape}, not that of {algorithm}: set it to fresh, or clone.shape to policy"
                )
        if network.iqn.layer_norm and self.float_head == "cloned":
            yield (
                f"transfer.{algorithm}.float_head is cloned, but that of clone.shape {shape} has "
                "network.iqn.layer_norm: set it to fresh"
            )

    def by_part(self) -> dict[str, str]:
        """Returns the source of every part, by the name of the part."""
        return {"encoder": self.encoder, "float_head": self.float_head, "trunk": self.trunk, "heads": self.heads}


class IqnPartsParams(PartsParams):
    """The same for IQN: the logits of a cloned policy are no values of actions."""

    trunk: Trunk = "fresh"
    heads: PartHeads = "fresh"

    def impossible(self, algorithm: Algorithm, network: NetworkParams, shape: CloneShape) -> Iterator[str]:
        """Yields what cannot be taken over; see `PartsParams`."""
        if shape != "policy":
            if network.iqn.guided:
                yield (
                    f"network.iqn.guided carries a cloned policy of clone.shape policy, and clone.shape is {shape}: "
                    "set it to false, with iqn.warmup_steps and iqn.guide_floor 0, or clone.shape to policy"
                )
            return
        for part in ("trunk", "heads"):
            if self.by_part()[part] == "cloned":
                yield (
                    f"transfer.{algorithm}.{part} is cloned, but the logits of the cloned policy, whose clone.shape is "
                    f"{shape}, and what leads to them, are no values of actions: set it to fresh, or clone.shape to iqn"
                )
        if network.iqn.layer_norm and self.float_head == "cloned":
            yield (
                "network.iqn.layer_norm makes another function of the cloned float head's weights: "
                "set transfer.iqn.float_head to fresh"
            )


class TransferParams(Section):
    """Stage `transfer`: what the network of each algorithm takes over."""

    ppo: PartsParams = key(PartsParams(), "the actor-critic of PPO")
    impala: PartsParams = key(PartsParams(), "the actor-critic of IMPALA")
    iqn: IqnPartsParams = key(IqnPartsParams(), "the network of IQN")
    grpo: PartsParams = key(PartsParams(), "the policy of GRPO")
    dpo: PartsParams = key(PartsParams(), "the policy of DPO")
    pql: PartsParams = key(PartsParams(), "the policy of parallel Q-learning")
    agent: str | None = key(None, "folder of a trained agent that parts are taken from; or null", min_length=1)
    seed: Seed = key(1, "of the weights that start fresh")

    def _impossible(self) -> Iterator[str]:
        wishes = {name: parts.by_part() for name, parts in self if isinstance(parts, PartsParams)}
        asking = [f"{name}.{part}" for name, parts in wishes.items() for part, wish in parts.items() if wish == "agent"]
        if asking and self.agent is None:
            yield f"{asking[0]} is agent: name the folder of one in transfer.agent"
        if self.agent is not None and not asking:
            yield f"agent names {self.agent}, and no part is taken from it: set it to null"

    def of(self, algorithm: Algorithm) -> PartsParams:
        """Returns what one algorithm takes over."""
        return getattr(self, algorithm)
