"""Parameter sections of the algorithms, and section `transfer`: the initial weights of their networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field

from rulka.agents.shared.network_params import CloneShape, NetworkParams
from rulka.contracts.actions import Times
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
    MOST,
    TAKE_FREE,
    BatchSize,
    Count,
    GroupSize,
    LearningRateSchedule,
    NotNegative,
    NotNegativeSchedule,
    Positive,
    PositiveSchedule,
    Section,
    Seed,
    Several,
    Share,
    ShareSchedule,
    Weight,
    Whole,
    key,
    wrong_order,
)

constant, over_budget = Schedule.constant, Schedule.over_budget

Algorithm = Literal["ppo", "impala", "iqn", "grpo", "dpo", "pql"]
ALGORITHM_NAMES: tuple[Algorithm, ...] = get_args(Algorithm)
Source = Literal["fresh", "cloned", "agent"]
Trunk = Annotated[Source, Field(description="between both and the heads; IQN's embeds quantile fractions")]
PartHeads = Annotated[Source, Field(description="that end in actions: cloned where clone.shape is the algorithm's")]


class PartsParams(Section):
    """Source of the initial weights of each part of an agent; `rulka.agents.algorithms` lists the parts."""

    encoder: Literal["fresh", "pretrained", "cloned", "agent"] = key("cloned", "of images; pretrained is Level 0")
    float_head: Source = key("cloned", "of the floats, with their normalisation")
    trunk: Trunk = "cloned"
    heads: PartHeads = "cloned"

    def impossible(self, algorithm: Algorithm, network: NetworkParams, shape: CloneShape) -> Iterator[str]:
        """Yields an error message for each part that cannot be transferred.

        Args:
            algorithm: owner of the parts.
            network: network sizes.
            shape: of the cloned policy.
        """
        if shape == "policy":
            return
        for part in ("trunk", "heads"):
            if getattr(self, part) == "cloned":
                yield (
                    f"transfer.{algorithm}.{part} is cloned, but the cloned policy has that of its clone.shape "
                    f"{shape}, not that of {algorithm}: set it to fresh, or clone.shape to policy"
                )
        if network.iqn.layer_norm and self.float_head == "cloned":
            yield (
                f"transfer.{algorithm}.float_head is cloned, but that of clone.shape {shape} has "
                "network.iqn.layer_norm: set it to fresh"
            )


class IqnPartsParams(PartsParams):
    """Sources for IQN: trunk and heads start fresh by default, as a cloned policy's logits are not Q-values."""

    trunk: Trunk = "fresh"
    heads: PartHeads = "fresh"

    def impossible(self, algorithm: Algorithm, network: NetworkParams, shape: CloneShape) -> Iterator[str]:
        """Yields error messages; see `PartsParams`."""
        if shape != "policy":
            if network.iqn.guided:
                yield (
                    f"network.iqn.guided carries a cloned policy of clone.shape policy, and clone.shape is {shape}: "
                    "set it to false, with iqn.warmup_steps and iqn.guide_floor 0, or clone.shape to policy"
                )
            return
        for part in ("trunk", "heads"):
            if getattr(self, part) == "cloned":
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
    """Stage `transfer`: sources of the initial weights of each algorithm's network."""

    ppo: PartsParams = key(PartsParams(), "the actor-critic of PPO")
    impala: PartsParams = key(PartsParams(), "the actor-critic of IMPALA")
    iqn: IqnPartsParams = key(IqnPartsParams(), "the network of IQN")
    grpo: PartsParams = key(PartsParams(), "the policy of GRPO")
    dpo: PartsParams = key(PartsParams(), "the policy of DPO")
    pql: PartsParams = key(PartsParams(), "the policy of parallel Q-learning")
    from_scratch: bool = key(False, "every part of every network is fresh, whatever the sections of algorithms say")
    agent: str | None = key(None, "folder of a trained agent that parts are taken from; or null", min_length=1)
    seed: Seed = key(1, "of the weights that start fresh")

    def _check_combinations(self) -> Iterator[str]:
        wishes = {name: dict(self.of(name)) for name in ALGORITHM_NAMES}
        asking = [f"{name}.{part}" for name, parts in wishes.items() for part, wish in parts.items() if wish == "agent"]
        if asking and self.agent is None:
            yield f"{asking[0]} is agent: name the folder of one in transfer.agent"
        if self.agent is not None and not asking:
            yield f"agent names {self.agent}, and no part is taken from it: set it to null"

    def of(self, algorithm: Algorithm) -> PartsParams:
        """Returns the part sources of one algorithm, all fresh if `from_scratch`."""
        parts: PartsParams = getattr(self, algorithm)
        return parts.model_copy(update=dict.fromkeys(dict(parts), "fresh")) if self.from_scratch else parts


ActionRepeat = Annotated[
    Times, Field(description="times each decision is taken in a row; gamma and n_steps count it once")
]


class ByPartParams(Section):
    """One schedule for each part of a network."""

    encoder: NotNegativeSchedule = key(constant(1.0), "of images")
    float_head: NotNegativeSchedule = key(constant(1.0), "of the floats")
    trunk: NotNegativeSchedule = key(constant(1.0), "between both and the heads")
    heads: NotNegativeSchedule = key(constant(1.0), "that end in logits or values")


class StillEncoderParams(ByPartParams):
    """`ByPartParams` with an encoder frozen by default, so that replay can store features of frames."""

    encoder: NotNegativeSchedule = key(constant(0.0), "of images")


class SectionContext(NamedTuple):
    """Settings that the trained algorithm's section is checked against.

    Attributes:
        name: of the algorithm.
        network: network sizes.
        parts: sources of the network's initial weights.
        decision_ms: length of a decision, repeats included.
        num_learners: number of data-parallel learners.
        acting_precision: `train.acting_precision`.
        is_exact: True if `train.order` is exact.
    """

    name: Algorithm
    network: NetworkParams
    parts: PartsParams
    decision_ms: int
    num_learners: int
    acting_precision: str | None
    is_exact: bool = False


RacerTau = Annotated[
    float,
    Field(gt=0, le=1, description="how far raced weights follow those that learn, once an update; 1 races these"),
]


class AlgorithmParams(Section):
    """Base of the algorithm sections, each named after its algorithm."""

    action_repeat: ActionRepeat = 1
    rate_of: ByPartParams = key(ByPartParams(), "factors of the learning rate, by part of the network; 0 freezes one")
    racer_tau: RacerTau = 1.0

    SPLIT: ClassVar[tuple[str, ...]] = ()
    """Counts that several learners divide among them; empty if the algorithm supports only one learner."""

    def share_of_learner(self, num_learners: int) -> Self:
        """Returns the parameters of each of `num_learners` learners: every `SPLIT` count divided by their number."""
        return self.model_copy(update={name: getattr(self, name) // num_learners for name in self.SPLIT})

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields an error message for each conflict with other sections, if this algorithm is trained."""
        if context.num_learners > 1 and not self.SPLIT:
            yield f"train.learners is {context.num_learners}, and {context.name} learns with one: set it to 1"
        for count in self.SPLIT:
            if getattr(self, count) % context.num_learners:
                value = f"{context.name}.{count} {getattr(self, count)}"
                yield f"{value} cannot be split over {context.num_learners} train.learners"

    @property
    def races_per_start(self) -> int:
        """Size of the groups of cars whose races have the same start; 1 gives every race its own start."""
        return 1

    def no_int8(self, network: NetworkParams) -> str:
        """Returns why the network cannot act in int8, naming the parameter; empty if it can."""
        del network
        return ""


# Fields whose defaults differ between algorithms.
StepsPerUpdate = Annotated[int, Field(ge=2, le=1_000_000, description="decisions of experience for one update")]
PolicyLearningRate = Annotated[LearningRateSchedule, Field(description="of Adam, over environment steps")]
VersionsBehind = Annotated[Whole, Field(description="how many weight versions experience may lag the learner")]
Gamma = Annotated[ShareSchedule, Field(description="discount of one decision")]
CloneWeight = Annotated[
    NotNegativeSchedule,
    Field(description="of the divergence from the policy that it began as, which holds on to it; 0 lets go"),
]
Epochs = Annotated[Count, Field(description="passes over the experience of one update")]


class PolicyParams(AlgorithmParams):
    """Base section of algorithms that learn a policy."""

    steps_per_update: StepsPerUpdate = 8192
    batch_size: BatchSize = key(512, "decisions of one gradient step")
    learning_rate: PolicyLearningRate = over_budget("linear", (0.0, 0.0001), (1.0, 0.00001))
    max_grad_norm: PositiveSchedule = key(constant(0.5), "gradients are scaled down to this norm")
    # Greedy races and the final agent use a running average over about ten updates.
    racer_tau: RacerTau = 0.1
    max_versions_behind: VersionsBehind = 1

    @property
    def has_kl_penalty(self) -> bool:
        """Whether a KL penalty to the initial policy is ever active."""
        raise NotImplementedError

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        if self.batch_size > self.steps_per_update:
            yield f"batch_size {self.batch_size} is larger than steps_per_update {self.steps_per_update}"


class PolicyGradientParams(PolicyParams):
    """Base section of policy-gradient algorithms: the policy learns from the advantages of its own actions."""

    gamma: Gamma = constant(0.985)  # 3.3 s
    entropy_weight: NotNegativeSchedule = key(
        over_budget("linear", (0.0, 0.003), (1.0, 0.0)), "of the policy's entropy, over environment steps"
    )
    clone_weight: CloneWeight = constant(0.0)

    @property
    def has_kl_penalty(self) -> bool:
        """Whether a KL penalty to the initial policy is ever active."""
        return any(value > 0.0 for value in self.clone_weight.values)


class CriticParams(PolicyGradientParams):
    """Base section of policy-gradient algorithms with a value function."""

    SPLIT: ClassVar[tuple[str, ...]] = ("steps_per_update", "batch_size", "value_warmup_steps")

    value_weight: NotNegativeSchedule = key(constant(0.5), "of the value loss, beside the policy loss")
    value_warmup_steps: Whole = key(16_384, "first decisions, from which the value head alone is solved for")

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        name, steps = context.name, self.value_warmup_steps
        if context.parts.heads == "fresh" and steps > 0:
            yield (
                f"{name}.value_warmup_steps {steps} spares a cloned policy, and transfer.{name}.heads is fresh: "
                f"set {name}.value_warmup_steps to 0"
            )


class EpochsParams(Section):
    """Keys of algorithms that run several epochs over the experience of an update."""

    epochs: Epochs = 4
    # The encoder takes most of the time; in the epochs before, its features are computed once and reused.
    encoder_epochs: Whole = key(1, "last epochs of an update, which also train the encoder")

    def _check_combinations(self) -> Iterator[str]:
        if self.encoder_epochs > self.epochs:
            yield f"encoder_epochs {self.encoder_epochs} is larger than epochs {self.epochs}"


class ClippedParams(EpochsParams):
    """Keys of algorithms that clip the probability ratio."""

    clip: PositiveSchedule = key(constant(0.2), "how far the probability ratio of an action may leave 1 and still gain")
    max_kl: PositiveSchedule = key(constant(0.05), "an update ends when it has moved the policy this far, in nats")


class PpoParams(CriticParams, ClippedParams):
    """Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347."""

    action_repeat: ActionRepeat = 2
    steps_per_update: StepsPerUpdate = 2048  # a block of one collector
    learning_rate: PolicyLearningRate = over_budget("linear", (0.0, 0.0003), (1.0, 0.00002))
    gamma: Gamma = constant(0.970225)  # 3.3 s
    gae_lambda: ShareSchedule = key(
        constant(0.96), "weight of longer returns in advantages: 0 is one step, 1 the whole race"
    )
    value_clip: PositiveSchedule | None = key(
        constant(0.2),
        "how far a value may move and still gain, in units of the root mean square return; null: any way",
    )


class NoCorrectionParams(Section):
    """No correction: experience is treated as on-policy."""

    kind: Literal["none"] = key("none", "no correction")


class EpsilonParams(Section):
    """No correction, but epsilon bounds log-probabilities from below, Babaeizadeh et al. 2017, arXiv:1611.06256."""

    kind: Literal["epsilon"] = key("epsilon", "no correction but a floor of probabilities")
    epsilon: float = key(1e-06, "added to a probability inside its logarithm", gt=0, le=1)


class OneStepParams(Section):
    """One-step importance sampling: advantages are weighted by the truncated ratio, values are not corrected."""

    kind: Literal["one_step"] = key("one_step", "importance sampling of one step")
    rho_bar: Positive = key(1.0, "bound of the weight")


class VtraceParams(Section):
    """V-trace: advantages and values are importance-weighted, Espeholt et al. 2018, arXiv:1802.01561."""

    kind: Literal["vtrace"] = key("vtrace", "the paper's correction")
    rho_bar: Positive = key(1.0, "bound of a decision's own weight: whose values are learned")
    c_bar: NotNegative = key(1.0, "bound of its weight for those before it: how far surprises travel back")

    def _check_combinations(self) -> Iterator[str]:
        yield from wrong_order(self, "c_bar", "rho_bar")


CorrectionParams = Annotated[
    NoCorrectionParams | EpsilonParams | OneStepParams | VtraceParams, Field(discriminator="kind")
]
"""Off-policy corrections, discriminated by `kind`: the specification's ablation."""


class ImpalaParams(CriticParams):
    """Actors that run ahead of the learner, and V-trace, Espeholt et al. 2018, arXiv:1802.01561."""

    steps_per_update: StepsPerUpdate = 2048  # a block of one collector
    learning_rate: PolicyLearningRate = over_budget("linear", (0.0, 0.0002), (1.0, 0.00002))
    racer_tau: RacerTau = 0.05  # an average of about twenty updates
    max_versions_behind: VersionsBehind = 4
    correction: CorrectionParams = key(VtraceParams(), "of experience that an older policy made")
    forced_lag: int = key(
        0, "updates that experience waits before it is learned from, to try corrections out", ge=0, le=10_000
    )


class PrioritisedParams(Section):
    """Prioritised replay; see `rulka.buffers.priorities`."""

    alpha: Share = key(0.2, "exponent of the priorities; 0 draws all transitions alike")
    beta: ShareSchedule = key(constant(0.45), "exponent of the importance weights; 1 undoes the preference wholly")
    epsilon: Positive = key(0.002, "added to every error, so that no transition is forgotten")
    min_actions_left: Whole = key(40, "errors of transitions nearer to the end of their mini-race do not count")


class MunchausenParams(Section):
    """Munchausen targets; see `rulka.agents.iqn.learner`."""

    alpha: Share = key(0.9, "weight of the log-probability in the reward")
    temperature: Positive = key(0.03, "of the policy that the target network stands for")
    floor: float = key(-1.0, "least temperature times log-probability that counts", ge=-MOST, le=0.0)


class MarginParams(Section):
    """Large-margin loss on demonstrated actions, Hester et al. 2018 (DQfD), arXiv:1704.03732."""

    margin: Positive = key(0.1, "by how much, in units of returns")
    weight: Positive = key(1.0, "of that loss, beside the one of quantiles")


class OffPolicyParams(AlgorithmParams):
    """Base section of off-policy algorithms, which learn from replay."""

    # Sections are frozen, so a narrower type is safe.
    rate_of: StillEncoderParams = key(  # pyright: ignore[reportIncompatibleVariableOverride]
        StillEncoderParams(), "factors of the learning rate, by part of the network; 0 freezes one"
    )
    buffer_steps: Count = key(100_000, "decisions kept")
    start_steps: Count = key(8192, "decisions in the buffer before the first update")

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        if self.start_steps > self.buffer_steps:
            yield f"start_steps {self.start_steps} is larger than buffer_steps {self.buffer_steps}"


class IqnParams(OffPolicyParams):
    """IQN; see `rulka.agents.iqn.learner`."""

    SPLIT: ClassVar[tuple[str, ...]] = ("batch_size", "buffer_steps", "start_steps")

    # Over 50 ms the Q-values of actions are too close to tell apart.
    action_repeat: ActionRepeat = 2
    num_quantiles: Several = key(8, "fractions for each state while training; even")
    num_quantiles_acting: Several = key(32, "fractions for each state while acting; even")
    kappa: Positive = key(0.005, "errors beyond this count linearly, smaller ones squared; in units of returns")
    n_steps: Count = key(2, "most decisions in a transition")
    mini_race_ms: Positive = key(7000.0, "of driving that a value looks ahead; 7000 in the reference")
    use_double_dqn: bool = key(True, "the online network chooses the next action, the target network rates it")
    munchausen: MunchausenParams | None = key(None, "null: plain Q-learning targets")
    batch_size: BatchSize = key(256, "transitions of one gradient step")
    learning_rate: LearningRateSchedule = key(
        over_budget("exponential", (0.0, 0.001), (1.0, 5e-05)), "of RAdam, over environment steps"
    )
    # 3.3 s: over 7 s the Q-values of actions are too close.
    gamma: ShareSchedule = key(constant(0.970225), "discount of one decision, over environment steps")
    epsilon: ShareSchedule = key(over_budget("exponential", (0.0, 0.1), (1.0, 0.03)), "share of random actions")
    epsilon_spread: NotNegative = key(
        0.0, "a car explores with epsilon to the power of 1, the next ones up to 1 + this; 0: all cars alike"
    )
    boltzmann_epsilon: ShareSchedule = key(constant(0.0), "further share of actions, the best after adding noise")
    boltzmann_noise: Positive = key(0.01, "standard deviation of that noise, in units of returns")
    target_tau: float = key(0.02, "step of the target network toward the online one; 1 copies it", gt=0, le=1)
    racer_tau: RacerTau = 0.01  # an average of about 100 updates, a sixteenth of the run
    target_every: Count = key(1, "gradient steps between two such steps")
    prioritised: PrioritisedParams | None = key(None, "null: all transitions are drawn alike")
    held_out_share: float = key(0.0, "share of races never learned from, and of batches that test", ge=0, lt=1)
    samples_per_insert: Positive = key(8.0, "how often each decision is learned from on average")
    demonstration_share: ShareSchedule = key(constant(0.25), "share of every batch drawn from demonstrations")
    demonstration_margin: MarginParams | None = key(None, "null: demonstrations teach by their returns alone")
    warmup_steps: Whole = key(16_384, "first environment steps driven by the cloned policy")
    guide_floor: ShareSchedule = key(
        over_budget("staircase", (0.0, 1.0), (0.1, 0.0)),
        "least probability of an action to the cloned policy, as a share of its likeliest one's; 0: any",
    )
    gradient_steps_per_update: Count = key(4, "gradient steps between two versions of the weights")
    self_loss_clamp_ratio: Positive = key(4.0, "how much narrower than typical a target may count")
    weight_decay: NotNegative = key(0.1, "share of the learning rate by which weights shrink")
    max_grad_norm: Positive = key(30.0, "gradients are scaled down to this norm")
    max_grad_value: Positive | None = key(None, "bound of each number of the gradient after that; or null")

    def no_int8(self, network: NetworkParams) -> str:
        """Returns why the network cannot act in int8; see `AlgorithmParams`."""
        iqn = network.iqn
        if iqn.embedding_at != "hidden":
            return f"network.iqn.embedding_at is {iqn.embedding_at}, not hidden"
        if iqn.layer_norm or iqn.noisy_sigma:
            return "network.iqn has layer_norm or noisy_sigma"
        return ""

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        horizon = self.mini_race_decisions(context.decision_ms)
        race = f"iqn.mini_race_ms {self.mini_race_ms:g} has {horizon} decisions of {context.decision_ms} ms"
        if context.network.analog:
            yield (
                "iqn compares all actions, and network.analog has no end of them: set network.analog to false, or "
                "train.algorithm and train.compared to what learns a policy"
            )
        if horizon < 1:
            yield f"{race}: set at least {context.decision_ms}"
        if self.n_steps > horizon:
            yield f"{race}, fewer than iqn.n_steps {self.n_steps}"
        if self.prioritised is not None and self.prioritised.min_actions_left >= horizon:
            yield f"{race}, of which iqn.prioritised.min_actions_left leaves none"
        if (self.warmup_steps > 0 or self.has_limits) and not context.network.iqn.guided:
            yield (
                "iqn.warmup_steps and iqn.guide_floor ask the cloned policy: set network.iqn.guided to true, "
                "or both to 0"
            )

    def mini_race_decisions(self, decision_ms: int) -> int:
        """Returns the number of decisions of `decision_ms` in a mini-race."""
        return int(self.mini_race_ms // decision_ms)

    @property
    def has_demonstrations(self) -> bool:
        """Whether any batch holds demonstrations."""
        return any(value > 0.0 for value in self.demonstration_share.values)

    @property
    def has_limits(self) -> bool:
        """Whether the guide (the cloned policy) ever limits actions."""
        return any(value > 0.0 for value in self.guide_floor.values)

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        most_shown = max(self.demonstration_share.values)
        if self.num_quantiles % 2 or self.num_quantiles_acting % 2:
            yield "num_quantiles and num_quantiles_acting must be even: the second half mirrors the first"
        if self.batch_size > self.start_steps:
            yield f"batch_size {self.batch_size} is larger than start_steps {self.start_steps}"
        if round(self.batch_size * most_shown) == self.batch_size:
            yield f"demonstration_share {most_shown} leaves no place in a batch of {self.batch_size}"
        if self.demonstration_margin is not None and not self.has_demonstrations:
            yield "demonstration_margin is about demonstrations, and demonstration_share is 0: set it to null"
        if self.munchausen is not None and self.use_double_dqn:
            yield "munchausen targets weigh all next actions: set use_double_dqn to false"
        if self.has_limits and not self.use_double_dqn:
            yield "guide_floor limits which next action is chosen: set use_double_dqn to true"


class GrpoParams(PolicyGradientParams, ClippedParams):
    """Group relative policy optimisation, Shao et al. 2024, arXiv:2402.03300."""

    # Discounting favours the start of a race; gamma 1 is for agents that finish.
    clone_weight: CloneWeight = constant(0.01)
    group_size: GroupSize = key(8, "races that begin alike and are compared with each other")
    # As rewards.off_track: standing still must not be better than trying.
    cut_worth: Weight = key(-4.0, "counts as paid after a race that a limit has cut; there is no value to ask")

    @property
    def races_per_start(self) -> int:
        """The group size."""
        return self.group_size


class OnlinePairsParams(Section):
    """The races with the best and the worst return of a group with the same start."""

    kind: Literal["online"] = key("online", "races of the agent itself")
    group_size: GroupSize = key(8, "races that begin alike, of which the best and the worst are a pair")
    gamma: Share = key(0.985, "discount of one decision, in what a race was paid")
    cut_worth: Weight = key(-4.0, "counts as paid after a race that a limit has cut")
    min_gap: NotNegative = key(0.5, "how much more the best has to be paid than the worst")


class FilePairsParams(Section):
    """Pairs listed in a file; see `rulka.training.preference_pairs`."""

    kind: Literal["file"] = key("file", "a file of pairs, JSON lines")
    path: str = Field(min_length=1, description="where it is")
    pairs_per_update: Count = key(16, "drawn for one update")


class DemonstrationPairsParams(Section):
    """Pairs of captured races over the same stretch of the main track; the faster one is preferred."""

    kind: Literal["demonstrations"] = key(
        "demonstrations", "races that were recorded, or driven by the built-in driver"
    )
    stretch_m: Positive = key(100.0, "about so long is a stretch of the track")
    min_gain_s: NotNegative = key(0.1, "how much faster the preferred race has to be over the stretch")
    max_pairs: Count = key(1000, "so many are taken of all that there are")
    pairs_per_update: Count = key(16, "drawn for one update")


GivenPairsParams = FilePairsParams | DemonstrationPairsParams
"""Pairs that are fixed before training starts."""
PairsParams = Annotated[OnlinePairsParams | FilePairsParams | DemonstrationPairsParams, Field(discriminator="kind")]
"""Sources of preference pairs, discriminated by `kind`."""


class DpoParams(PolicyParams, EpochsParams):
    """Direct preference optimisation, Rafailov et al. 2023, arXiv:2305.18290."""

    pairs: PairsParams = key(OnlinePairsParams(), "what is preferred to what")
    epochs: Epochs = 2
    # Log-ratios are sums over whole races: a difference of 100 nats is a margin of 1.
    beta: PositiveSchedule = key(constant(0.01), "how dear it is to leave the policy that it began as")
    pairs_per_step: Count = key(2, "pairs of one gradient step")

    @property
    def races_per_start(self) -> int:
        """The group size of online pairs; 1 for given pairs, as DPO then learns nothing from the agent's races."""
        return self.pairs.group_size if isinstance(self.pairs, OnlinePairsParams) else 1

    @property
    def given_pairs(self) -> GivenPairsParams | None:
        """Source of the given pairs; None if pairs are online."""
        return None if isinstance(self.pairs, OnlinePairsParams) else self.pairs

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        if self.given_pairs is not None and self.action_repeat > 1:
            yield f"dpo.pairs of kind {self.pairs.kind} hold decisions that were taken once: set dpo.action_repeat to 1"

    @property
    def has_kl_penalty(self) -> bool:
        """Always True: the initial policy is the reference."""
        return True


class PqlParams(OffPolicyParams):
    """Parallel Q-learning, Li et al. 2023, arXiv:2307.12983."""

    steps_per_critic_update: Count = key(32, "decisions for one update of the critics: beta_a:v, exactly")
    critic_updates_per_policy_update: Count = key(2, "of these for one of the policy: beta_p:v, exactly")
    policy_process: bool = key(False, "the policy learns in a process of its own, where collectors have theirs")
    critic_updates_per_version: Count = key(8, "of these between two versions of the weights")
    critic_warmup_updates: Whole = key(
        1000, "first updates of the critics, in which all else stays as it is: a cloned policy waits for them"
    )
    max_steps_ahead: Whole = key(4096, "decisions that collectors may be ahead of those that are due")
    batch_size: BatchSize = key(512, "transitions of an update of the critics, and states of one of the policy")
    n_steps: Count = key(3, "most decisions in a transition")
    gamma: ShareSchedule = key(constant(0.985), "discount of one decision")
    learning_rate: LearningRateSchedule = key(constant(0.0005), "of Adam, for critics and what they see by")
    policy_learning_rate: LearningRateSchedule = key(constant(0.0001), "of Adam, for trunk and heads of the policy")
    max_grad_norm: PositiveSchedule = key(constant(1.0), "gradients are scaled down to this norm")
    target_tau: float = key(0.05, "step of the slow critics toward those that learn, an update", gt=0, le=1)
    noise_least: ShareSchedule = key(constant(0.02), "noise of a first car: half intervals, or share of random actions")
    noise_most: ShareSchedule = key(constant(0.3), "the same of the last car of a collector; others lie between")
    entropy_weight: NotNegativeSchedule = key(
        over_budget("linear", (0.0, 0.01), (1.0, 0.001)),
        "of the policy's entropy, where decisions are choices",
    )
    racer_tau: RacerTau = 0.02

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        if context.acting_precision is not None:
            acting = f"train.acting_precision is {context.acting_precision}"
            yield f"{acting}, and pql acts in train.precision: set it to null"
        if self.policy_process and context.is_exact:
            yield f"pql.policy_process has two processes learn, each as fast as it is: {TAKE_FREE}"
        if context.network.actions_per_decision > 1:
            yield (
                "pql rates single actions: set network.actions_per_decision to 1, or train.algorithm and "
                "train.compared to what decides for chunks"
            )
        if context.parts.heads == "fresh" and self.critic_warmup_updates > 0:
            yield (
                f"pql.critic_warmup_updates {self.critic_warmup_updates} spares a cloned policy, and "
                "transfer.pql.heads is fresh: set pql.critic_warmup_updates to 0"
            )

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        least, most = max(self.noise_least.values), max(self.noise_most.values)
        if least > most:
            yield f"noise_least {least} is larger than noise_most {most}"


class AlgorithmSections(Section):
    """The section of every algorithm, by its name in `Algorithm`; part of `rulka.params.Params`."""

    ppo: PpoParams = key(PpoParams(), "proximal policy optimisation")
    iqn: IqnParams = key(IqnParams(), "implicit quantile networks")
    impala: ImpalaParams = key(ImpalaParams(), "actors that run ahead, and V-trace")
    grpo: GrpoParams = key(GrpoParams(), "group relative policy optimisation")
    dpo: DpoParams = key(DpoParams(), "direct preference optimisation")
    pql: PqlParams = key(PqlParams(), "parallel Q-learning")

    @property
    def algorithms(self) -> dict[Algorithm, AlgorithmParams]:
        """The sections of all algorithms, by name."""
        return {name: getattr(self, name) for name in ALGORITHM_NAMES}
