"""Base sections of the algorithms, and sources of the initial weights of their networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from rulka.agents.shared.network_params import CloneShape, NetworkParams
from rulka.contracts.actions import Times
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
    BatchSize,
    Count,
    LearningRateSchedule,
    NotNegativeSchedule,
    PositiveSchedule,
    Section,
    ShareSchedule,
    Whole,
    key,
    wrong_order,
)

constant, over_budget = Schedule.constant, Schedule.over_budget
Source = Literal["fresh", "cloned", "agent"]
Trunk = Annotated[Source, Field(description="Layers before the heads; IQN's embeds quantile fractions.")]
PartHeads = Annotated[Source, Field(description="Output layers; cloned needs the algorithm's own clone.shape.")]


class PartsParams(Section):
    """Source of the initial weights of each part of an agent; actors list their tensors."""

    encoder: Literal["fresh", "pretrained", "cloned", "agent"] = key("cloned", "Encoder; pretrained is Level 0's.")
    float_head: Source = key("cloned", "Head of the floats, with their normalisation.")
    trunk: Trunk = "cloned"
    heads: PartHeads = "cloned"

    CLONE: ClassVar[tuple[CloneShape, str]] = "policy", "a cloned policy"
    """Shape of the cloned policy that trunk and heads can be cloned from, and what they need of it."""

    def impossible(self, algorithm: str, network: NetworkParams, shape: CloneShape) -> Iterator[str]:
        """Yields an error message for each part that cannot be transferred.

        Args:
            algorithm: owner of the parts.
            network: network sizes.
            shape: of the cloned policy.
        """
        own, needed = self.CLONE
        if shape == own:
            return
        for part in ("trunk", "heads"):
            if getattr(self, part) == "cloned":
                yield (
                    f"transfer.{algorithm}.{part} cloned needs {needed}, but clone.shape is {shape}: set "
                    f"transfer.{algorithm}.{part} to fresh, or clone.shape to {own}"
                )
        if network.iqn.layer_norm and self.float_head == "cloned":
            yield (
                f"transfer.{algorithm}.float_head cloned needs clone.shape {own}, but it is {shape} and "
                f"network.iqn.layer_norm true: set transfer.{algorithm}.float_head to fresh, or clone.shape to {own}"
            )


ActionRepeat = Annotated[Times, Field(description="Times each decision is taken; gamma and n_steps count it once.")]


class ByPartParams(Section):
    """One schedule for each part of a network."""

    encoder: NotNegativeSchedule = key(constant(1.0), "Factor for the image encoder.")
    float_head: NotNegativeSchedule = key(constant(1.0), "Factor for the float head.")
    trunk: NotNegativeSchedule = key(constant(1.0), "Factor for the layers before the heads.")
    heads: NotNegativeSchedule = key(constant(1.0), "Factor for the output layers, of logits or values.")
    fusion: NotNegativeSchedule | None = key(None, "Factor for the fusion; null for the float head's.")
    value: NotNegativeSchedule | None = key(None, "Factor for the state's value; null for the heads'.")


class StillEncoderParams(ByPartParams):
    """`ByPartParams` with an encoder frozen by default, so that replay can store features of frames."""

    encoder: NotNegativeSchedule = key(constant(0.0), "Factor for the image encoder.")


class SectionContext(NamedTuple):
    """Settings that the trained algorithm's section is checked against.

    Attributes:
        name: of the algorithm.
        network: network sizes.
        parts: sources of the network's initial weights.
        decision_ms: length of a decision, repeats included.
        num_learners: number of data-parallel learners.
        is_exact: True if `train.order` is exact.
    """

    name: str
    network: NetworkParams
    parts: PartsParams
    decision_ms: int
    num_learners: int
    is_exact: bool = False


RacerTau = Annotated[
    float,
    Field(gt=0, le=1, description="Step of the raced weights toward the learned ones per update; 1 races those."),
]
MaxGradNorm = Annotated[PositiveSchedule, Field(description="Gradient norm that larger gradients are scaled down to.")]


class AlgorithmParams(Section):
    """Base of the algorithm sections, each named after its algorithm.

    A section also names its algorithm's code, as "module:Class". This is imported only when it is used: settings import
    no torch, and torchrl (3 s, 95 MB) is for off-policy learners alone.
    """

    LABEL: ClassVar[str]
    """Display name."""
    LEARNER: ClassVar[str]
    """Name of the learner, a `rulka.agents.shared.learner.Learner`."""
    ACTOR: ClassVar[str]
    """Name of the actor, a `rulka.agents.shared.acting.NetworkActor`. Its module imports no torchrl."""
    PARTS: ClassVar[type[PartsParams]] = PartsParams
    """Its section of `transfer`."""

    action_repeat: ActionRepeat = 1
    batch_size: BatchSize = key(512, "Decisions per gradient step.")
    max_grad_norm: MaxGradNorm = constant(0.5)
    rate_of: ByPartParams = key(ByPartParams(), "Factors on the learning rate, by part of the network; 0 freezes.")
    racer_tau: RacerTau = 1.0

    SPLIT: ClassVar[tuple[str, ...]] = ()
    """Counts that several learners divide among them; empty if the algorithm supports only one learner."""
    LEARNS_AFTER: ClassVar[tuple[str, ...]] = ()
    """Counts of decisions before which racing weights cannot change."""
    INT8_NEEDS: ClassVar[dict[str, object]] = {}
    """Values, by dotted name, that acting in int8 needs beyond those of every network."""

    def share_of_learner(self, num_learners: int) -> Self:
        """Returns the parameters of each of `num_learners` learners: every `SPLIT` count divided by their number."""
        return self.model_copy(update={name: getattr(self, name) // num_learners for name in self.SPLIT})

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields an error message for each conflict with other sections, if this algorithm is trained."""
        if context.num_learners > 1 and not self.SPLIT:
            yield f"{context.name} needs a single learner, but train.learners is {context.num_learners}: set it to 1"
        for count in self.SPLIT:
            if getattr(self, count) % context.num_learners:
                value = f"{context.name}.{count} {getattr(self, count)}"
                yield f"train.learners {context.num_learners} needs equal shares of {value}: make it a multiple"

    @property
    def races_per_start(self) -> int:
        """Size of the groups of cars whose races have the same start; 1 gives every race its own start."""
        return 1

    @property
    def has_demonstrations(self) -> bool:
        """Whether it learns from captured races."""
        return False

    @property
    def given_pairs(self) -> Any:
        """Source of given preference pairs, a section; None if there is none."""
        return None

    @staticmethod
    def describe_help(section: Mapping[str, Any]) -> str:
        """Describes to users, from its section in an artifact, what an agent was given besides initial weights."""
        del section
        return ""


# Fields whose defaults differ between algorithms.
StepsPerUpdate = Annotated[int, Field(ge=2, le=1_000_000, description="Decisions of experience for one update.")]
PolicyLearningRate = Annotated[LearningRateSchedule, Field(description="Learning rate of Adam.")]
VersionsBehind = Annotated[Whole, Field(description="Weight versions that experience may be behind the learner.")]
Gamma = Annotated[ShareSchedule, Field(description="Discount of one decision.")]
InitialKlWeight = Annotated[
    NotNegativeSchedule, Field(description="Weight of the KL divergence from the initial policy; 0 for none.")
]
Epochs = Annotated[Count, Field(description="Passes over the experience of one update.")]


class PolicyParams(AlgorithmParams):
    """Base section of algorithms that learn a policy."""

    ACTOR: ClassVar[str] = "rulka.agents.shared.acting:PolicyActor"

    steps_per_update: StepsPerUpdate = 8192
    learning_rate: PolicyLearningRate = over_budget("linear", (0.0, 0.0001), (1.0, 0.00001))
    # Greedy races and the final agent use a running average over about ten updates.
    racer_tau: RacerTau = 0.1
    max_versions_behind: VersionsBehind = 1

    @property
    def needs_initial_policy(self) -> bool:
        """Whether the loss ever refers to the initial policy."""
        return True

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        yield from wrong_order(self, "batch_size", "steps_per_update")


class PolicyGradientParams(PolicyParams):
    """Base section of policy-gradient algorithms: the policy learns from the advantages of its own actions."""

    gamma: Gamma = constant(0.985)  # 3.3 s
    entropy_weight: NotNegativeSchedule = key(
        over_budget("linear", (0.0, 0.003), (1.0, 0.0)), "Weight of the policy's entropy bonus."
    )
    initial_kl_weight: InitialKlWeight = constant(0.0)

    RENAMED: ClassVar[Mapping[str, str]] = {"clone_weight": "initial_kl_weight"}

    @property
    def needs_initial_policy(self) -> bool:
        """Whether the loss ever refers to the initial policy."""
        return any(value > 0.0 for value in self.initial_kl_weight.values)


class CriticParams(PolicyGradientParams):
    """Base section of policy-gradient algorithms with a value function."""

    SPLIT: ClassVar[tuple[str, ...]] = ("steps_per_update", "batch_size", "value_warmup_steps")
    LEARNS_AFTER: ClassVar[tuple[str, ...]] = ("value_warmup_steps",)

    value_weight: NotNegativeSchedule = key(constant(0.5), "Weight of the value loss relative to the policy loss.")
    value_warmup_steps: Whole = key(16_384, "First decisions, which fit the value head alone; the policy stays.")

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        name, steps = context.name, self.value_warmup_steps
        if context.parts.heads == "fresh" and steps > 0:
            yield (
                f"{name}.value_warmup_steps {steps} needs a trained policy, but transfer.{name}.heads is fresh: "
                f"set {name}.value_warmup_steps to 0, or transfer.{name}.heads to cloned"
            )


class EpochsParams(Section):
    """Keys of algorithms that run several epochs over the experience of an update."""

    epochs: Epochs = 4
    # The encoder takes most of the time; in the epochs before, its features are computed once and reused.
    encoder_epochs: Whole = key(1, "Last epochs of an update, which also train the encoder.")

    def _check_combinations(self) -> Iterator[str]:
        yield from wrong_order(self, "encoder_epochs", "epochs")


class ClippedParams(EpochsParams):
    """Keys of algorithms that clip the probability ratio."""

    clip: PositiveSchedule = key(constant(0.2), "Distance from 1 within which a probability ratio still gains.")
    max_kl: PositiveSchedule = key(constant(0.05), "KL divergence that ends an update, in nats.")


class OffPolicyParams(AlgorithmParams):
    """Base section of off-policy algorithms, which learn from replay."""

    LEARNS_AFTER: ClassVar[tuple[str, ...]] = ("start_steps",)

    gamma: Gamma
    # Sections are frozen, so a narrower type is safe.
    rate_of: StillEncoderParams = key(  # pyright: ignore[reportIncompatibleVariableOverride]
        StillEncoderParams(), "Factors on the learning rate, by part of the network; 0 freezes."
    )
    buffer_steps: Count = key(100_000, "Decisions in the replay buffer.")
    start_steps: Count = key(8192, "Decisions in the buffer before the first update.")

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        yield from wrong_order(self, "start_steps", "buffer_steps")
