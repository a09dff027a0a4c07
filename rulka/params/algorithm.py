"""What the sections of algorithms have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, NamedTuple, Self, get_args

from pydantic import Field

from rulka.params.base import Algorithm, Count, NotNegativeSchedule, Section, key
from rulka.params.networks import NetworkParams, PartsParams
from rulka.schedule import Schedule

ALGORITHM_NAMES: tuple[Algorithm, ...] = get_args(Algorithm)

ActionRepeat = Annotated[
    Count, Field(description="times each decision is taken in a row; gamma and n_steps count it once")
]


class ByPartParams(Section):
    """A number for each part of a network, by schedule."""

    encoder: NotNegativeSchedule = key(Schedule.constant(1.0), "of images")
    float_head: NotNegativeSchedule = key(Schedule.constant(1.0), "of the floats")
    trunk: NotNegativeSchedule = key(Schedule.constant(1.0), "between both and the heads")
    heads: NotNegativeSchedule = key(Schedule.constant(1.0), "that end in logits or values")

    def by_part(self) -> dict[str, Schedule]:
        """Returns the number of every part, by the name of the part."""
        return {"encoder": self.encoder, "float_head": self.float_head, "trunk": self.trunk, "heads": self.heads}


class StillEncoderParams(ByPartParams):
    """The same with an encoder that stays as it was cloned, so that the features of replayed frames can be kept."""

    encoder: NotNegativeSchedule = key(Schedule.constant(0.0), "of images")


class Beside(NamedTuple):
    """What the section of an algorithm that is trained has to go with.

    Attributes:
        name: of the algorithm.
        network: sizes of networks.
        parts: what its network takes over.
        decision_ms: how long a decision lasts, repeats included.
        num_learners: that learn as one.
    """

    name: Algorithm
    network: NetworkParams
    parts: PartsParams
    decision_ms: int
    num_learners: int


class AlgorithmParams(Section):
    """Base of the sections of algorithms, each of which goes by the name of its algorithm."""

    action_repeat: ActionRepeat = 1
    rate_of: ByPartParams = key(ByPartParams(), "factors of the learning rate, by part of the network; 0 freezes one")

    SPLIT: ClassVar[tuple[str, ...]] = ()
    """Counts of which each of several learners has its share; nothing where only one can learn."""

    def share_of_learner(self, num_learners: int) -> Self:
        """Returns what each of so many learners goes by, that together do what these parameters say."""
        return self.model_copy(update={name: getattr(self, name) // num_learners for name in self.SPLIT})

    def impossible(self, beside: Beside) -> Iterator[str]:
        """Yields a sentence for each combination with other sections that cannot be, where the algorithm is trained."""
        if beside.num_learners > 1 and not self.SPLIT:
            yield f"train.learners is {beside.num_learners}, and {beside.name} learns with one: set it to 1"
        for count in self.SPLIT:
            yield from self._indivisible(count, getattr(self, count), beside)

    @staticmethod
    def _indivisible(key: str, count: int, beside: Beside) -> Iterator[str]:
        if count % beside.num_learners:
            yield f"{beside.name}.{key} {count} cannot be split over {beside.num_learners} train.learners"

    @property
    def races_per_start(self) -> int:
        """How many races of as many cars begin alike; 1 lets each begin by itself."""
        return 1

    @property
    def acts_quantised(self) -> bool:
        """Whether its collectors can act in `train.acting_precision`; else they act in `train.precision`."""
        return True

    def no_int8(self, network: NetworkParams) -> str:
        """Says which parameter keeps its network from acting in int8; nothing where it can."""
        del network
        return ""
