"""Parameters of IQN, and of its part of section `transfer`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rulka.agents.shared.network_params import CloneShape, NetworkParams
from rulka.agents.shared.params import (
    ActionRepeat,
    Gamma,
    MaxGradNorm,
    OffPolicyParams,
    PartHeads,
    PartsParams,
    RacerTau,
    SectionContext,
    Trunk,
)
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
    MOST,
    BatchSize,
    Count,
    LearningRateSchedule,
    NotNegative,
    Positive,
    Section,
    Several,
    Share,
    ShareSchedule,
    Whole,
    key,
    wrong_order,
)

constant, over_budget = Schedule.constant, Schedule.over_budget


class IqnPartsParams(PartsParams):
    """Sources for IQN: trunk and heads start fresh by default, as a cloned policy's logits are not Q-values."""

    trunk: Trunk = "fresh"
    heads: PartHeads = "fresh"

    CLONE = "iqn", "Q-values"

    def impossible(self, algorithm: str, network: NetworkParams, shape: CloneShape) -> Iterator[str]:
        """Yields error messages; see `PartsParams`."""
        yield from super().impossible(algorithm, network, shape)
        if network.iqn.guided and shape != "policy":
            yield (
                f"network.iqn.guided needs a cloned policy, but clone.shape is {shape}: set clone.shape to policy, "
                "or network.iqn.guided to false and iqn.warmup_steps and iqn.guide_floor to 0"
            )


class PrioritisedParams(Section):
    """Prioritised replay; see `rulka.buffers.priorities`."""

    alpha: Share = key(0.2, "Exponent of the priorities; 0 draws all transitions alike.")
    beta: ShareSchedule = key(constant(0.45), "Exponent of the importance weights; 1 removes the sampling bias wholly.")
    epsilon: Positive = key(0.002, "Small number added to every error, so that no transition is forgotten.")
    min_actions_left: Whole = key(40, "Decisions left in the mini-race up to which errors do not set priorities.")


class MunchausenParams(Section):
    """Munchausen targets; see `rulka.agents.iqn.extras`."""

    alpha: Share = key(0.9, "Weight of the log-probability in the reward.")
    temperature: Positive = key(0.03, "Temperature of the policy that the target network stands for.")
    floor: float = key(-1.0, "Lower bound of temperature times log-probability.", ge=-MOST, le=0.0)


class MarginParams(Section):
    """Large-margin loss on demonstrated actions, Hester et al. 2018 (DQfD), arXiv:1704.03732."""

    margin: Positive = key(0.1, "Margin of a demonstrated action over all others, in units of returns.")
    weight: Positive = key(1.0, "Weight of the margin loss relative to the quantile loss.")


class IqnParams(OffPolicyParams):
    """Implicit quantile networks, Dabney et al. 2018, arXiv:1806.06923."""

    LABEL = "IQN"
    LEARNER = "rulka.agents.iqn.learner:IqnLearner"
    ACTOR = "rulka.agents.iqn.actor:IqnActor"
    PARTS = IqnPartsParams

    SPLIT = ("batch_size", "buffer_steps", "start_steps")
    LEARNS_AFTER = ("start_steps", "warmup_steps")
    INT8_NEEDS: ClassVar[dict[str, object]] = {
        "network.iqn.embedding_at": "hidden",
        "network.iqn.layer_norm": False,
        "network.iqn.noisy_sigma": 0.0,
    }

    # Over 50 ms the Q-values of actions are too close to tell apart.
    action_repeat: ActionRepeat = 2
    num_quantiles: Several = key(8, "Quantile fractions per state in training; even.")
    num_quantiles_acting: Several = key(32, "Quantile fractions per state in acting; even.")
    kappa: Positive = key(0.005, "Huber threshold in units of returns: larger errors count linearly, smaller squared.")
    n_steps: Count = key(2, "Largest number of decisions in a transition.")
    mini_race_ms: Positive = key(7000.0, "Driving that a value looks ahead, in ms; 7000 in the reference.")
    use_double_dqn: bool = key(True, "Double DQN: the online network chooses the next action, the target one rates it.")
    munchausen: MunchausenParams | None = key(None, "Munchausen targets; null for plain Q-learning targets.")
    batch_size: BatchSize = key(256, "Transitions per gradient step.")
    learning_rate: LearningRateSchedule = key(
        over_budget("exponential", (0.0, 0.001), (1.0, 5e-05)), "Learning rate of RAdam."
    )
    # 3.3 s: over 7 s the Q-values of actions are too close.
    gamma: Gamma = constant(0.970225)
    epsilon: ShareSchedule = key(over_budget("exponential", (0.0, 0.1), (1.0, 0.03)), "Share of random actions.")
    epsilon_spread: NotNegative = key(0.0, "Growth of epsilon's exponent from 1 over a collector's cars; 0 for none.")
    boltzmann_epsilon: ShareSchedule = key(constant(0.0), "Further share of actions, the best by noisy Q-values.")
    boltzmann_noise: Positive = key(0.01, "Scale of the noise of boltzmann_epsilon, in units of returns.")
    boltzmann_softmax: bool = key(False, "Noise that samples the softmax of Q-values over its scale; else Gaussian.")
    target_tau: float = key(0.02, "Step of the target network toward the online one; 1 copies it.", gt=0, le=1)
    racer_tau: RacerTau = 0.01  # an average of about 100 updates, a sixteenth of the run
    target_every: Count = key(1, "Gradient steps between two steps of the target network.")
    prioritised: PrioritisedParams | None = key(None, "Prioritised replay; null draws all transitions alike.")
    held_out_share: float = key(0.0, "Share of races never learned from, and of batches that test.", ge=0, lt=1)
    samples_per_insert: Positive = key(8.0, "Number of times that each decision is learned from, on average.")
    demonstration_share: ShareSchedule = key(constant(0.25), "Share of every batch drawn from demonstrations.")
    demonstration_margin: MarginParams | None = key(None, "Large-margin loss on demonstrations; null for none.")
    warmup_steps: Whole = key(16_384, "First environment steps, driven by the cloned policy.")
    guide_floor: ShareSchedule = key(
        over_budget("staircase", (0.0, 1.0), (0.1, 0.3)),
        "Minimum probability of an allowed action under the clone, relative to its likeliest action; 0 allows all.",
    )
    gradient_steps_per_update: Count = key(4, "Gradient steps per version of the weights.")
    self_loss_clamp_ratio: Positive = key(4.0, "Ratio of a target's typical width to the least that weights use.")
    weight_decay: NotNegative = key(0.1, "Decoupled weight decay, as a share of the learning rate.")
    max_grad_norm: MaxGradNorm = constant(30.0)
    max_grad_value: Positive | None = key(None, "Bound of each gradient element, after max_grad_norm; null for none.")

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        horizon = self.mini_race_decisions(context.decision_ms)
        race = f"but iqn.mini_race_ms {self.mini_race_ms:g} has {horizon} of {context.decision_ms} ms"
        if context.network.analog:
            yield (
                "iqn needs discrete actions, but network.analog is true: set it to false, or train.algorithm and "
                "train.compared to algorithms with a policy"
            )
        if horizon < 1:
            yield f"iqn needs decisions in a mini-race, {race}: set it to at least {context.decision_ms}"
        if self.n_steps > horizon:
            yield f"iqn.n_steps {self.n_steps} needs as many decisions, {race}: raise it, or lower iqn.n_steps"
        if self.prioritised is not None and self.prioritised.min_actions_left >= horizon:
            yield f"iqn.prioritised.min_actions_left needs to leave a decision, {race}: lower it"
        if (self.warmup_steps > 0 or self.has_limits) and not context.network.iqn.guided:
            yield (
                "iqn.warmup_steps and iqn.guide_floor need the cloned policy, but network.iqn.guided is false: set it "
                "to true, or both of them to 0"
            )

    def mini_race_decisions(self, decision_ms: int) -> int:
        """Returns the number of decisions of `decision_ms` in a mini-race."""
        return int(self.mini_race_ms // decision_ms)

    @property
    def has_demonstrations(self) -> bool:
        """Whether any batch holds demonstrations."""
        return any(value > 0.0 for value in self.demonstration_share.values)

    @staticmethod
    def describe_help(section: Mapping[str, Any]) -> str:
        """Describes the clone's and the demonstrations' help; see `AlgorithmParams`."""
        parts = []
        if section.get("warmup_steps"):
            parts.append(
                f"The first {section['warmup_steps']:,} decisions of IQN are those of the frozen cloned policy."
            )
        if any(_values_of(section.get("guide_floor"))):
            parts.append("The cloned policy limits which actions IQN may take while `iqn.guide_floor` is above 0.")
        shown = _values_of(section.get("demonstration_share"))
        if any(shown):
            most = "Up to " if len(set(shown)) > 1 else ""
            parts.append(f"{most}{max(shown):.0%} of every batch of IQN comes from demonstrations.")
        return " ".join(parts)

    @property
    def has_limits(self) -> bool:
        """Whether the guide (the cloned policy) ever limits actions."""
        return any(value > 0.0 for value in self.guide_floor.values)

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        most_shown = max(self.demonstration_share.values)
        if self.num_quantiles % 2 or self.num_quantiles_acting % 2:
            yield "num_quantiles and num_quantiles_acting must be even: the second half mirrors the first"
        yield from wrong_order(self, "batch_size", "start_steps")
        if round(self.batch_size * most_shown) == self.batch_size:
            yield f"batch_size {self.batch_size} needs room, but demonstration_share {most_shown} fills it: lower that"
        if self.demonstration_margin is not None and not self.has_demonstrations:
            yield "demonstration_margin needs a demonstration_share above 0: raise that, or set the margin to null"
        if self.munchausen is not None and (self.use_double_dqn or self.has_limits):
            yield "munchausen needs use_double_dqn false and guide_floor 0.0: set both, or munchausen to null"


def _values_of(schedule: Any) -> list[float]:
    """Returns the values of a parameter in an artifact's metadata: a schedule, a number, or None."""
    return [] if schedule is None else list(Schedule.model_validate(schedule).values)
