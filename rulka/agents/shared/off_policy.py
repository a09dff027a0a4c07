"""Base class of the off-policy learners (IQN, PQL), and replay of image features while the encoder is frozen."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.torso import Torso
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.params import OffPolicyParams
from rulka.agents.shared.weights import NetworkT, PartRates
from rulka.buffers.experience import ExperienceBlock, StoredExperience
from rulka.contracts.schedule import Moment
from rulka.machine.device import device_of
from rulka.machine.precision import Precision, autocast

if TYPE_CHECKING:
    from rulka.buffers.replay import Replay

LARGE_RETURN = 100.0
"""Updates are clipped, so values move by steps that do not grow with the returns. IQN's returns are about 5: with 10
times the rewards it learns as usual, with 100 times one of two runs was lost."""
_LOGGER = logging.getLogger(__name__)

OffPolicyT = TypeVar("OffPolicyT", bound=OffPolicyParams)


class OffPolicyLearner(Learner[OffPolicyT, NetworkT]):
    """Off-policy learner with a replay ring.

    Attributes:
        replay: the ring; subclasses create it.
    """

    OWN_STATE: ClassVar[tuple[str, ...]] = (*Learner.OWN_STATE, "num_start_steps")

    replay: Replay

    _is_encoder_as_given = True
    _num_start_steps: int
    """Decisions that fill an empty ring: they do not count towards the replay ratio."""

    @property
    def allowed_lag(self) -> None:
        """No limit: replay is off-policy."""

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block into the ring."""
        del version
        self._choose_stored_observations()
        self.replay.insert(block, collector, self.num_env_steps)
        if self.num_env_steps == 0:
            self._warn_of_large_returns(block.reward)
        self.num_env_steps += block.is_reset.size

    def _warn_of_large_returns(self, reward: NDArray[np.float32]) -> None:
        """Warns of first rewards [T, N] whose returns are too large for values that begin at 0."""
        typical = float(np.abs(reward).mean()) / max(1.0 - self._params.gamma.at(self.moment), 1e-4)
        if typical > LARGE_RETURN:
            told = f"values beyond {LARGE_RETURN:.0f} may take longer to learn than the run lasts"
            to_do = f"divide all rewards by {10.0 * typical / LARGE_RETURN:.0f}"
            _LOGGER.warning("%s: returns are about %.0f, and %s: %s", self._spec.algorithm, typical, told, to_do)

    def experience(self) -> StoredExperience:
        """Returns the content of the ring."""
        return self.replay.experience()

    def load_experience(self, experience: StoredExperience) -> None:
        """Resumes from an `experience`; copies it."""
        self._choose_stored_observations()
        self.replay.load_experience(experience)

    def forget_experience(self) -> None:
        """Clears the ring. Learning pauses until it holds `start_steps` decisions again."""
        self.replay.clear()
        # Like the first fill, the refill does not count towards the replay ratio; else a burst of updates would follow.
        self._num_start_steps += self._params.start_steps

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the experience."""
        own = {"num_start_steps": self._num_start_steps, "is_encoder_as_given": self._is_encoder_as_given}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`; `load_experience` or `forget_experience` has to follow."""
        super().load_state_dict(state)
        self._num_start_steps = int(state["num_start_steps"])
        self._is_encoder_as_given = bool(state["is_encoder_as_given"])

    def _choose_stored_observations(self) -> None:
        """Makes batches hold image features until the encoder's first update, and images from then on.

        Target networks read them too: while frozen, all copies of the encoder are equal.
        """
        self._is_encoder_as_given &= is_frozen(self._rates, self.moment)
        store_features(self.replay, self.network, self.precision, self._params.batch_size, self._is_encoder_as_given)


def is_frozen(rates: PartRates, moment: Moment) -> bool:
    """Returns True if the encoder is frozen at this moment."""
    return rates.factor("encoder", moment) == 0.0


def store_features(replay: Replay, network: Torso, precision: Precision, batch_size: int, is_wanted: bool) -> None:
    """Starts or stops storing image features, which batches then hold instead of images.

    Args:
        replay: the ring.
        network: computes the features; its encoder must not change while they are stored.
        precision: of the features' computation.
        batch_size: images encoded at once.
        is_wanted: True to store features, False to drop them.
    """
    from rulka.buffers.replay import FEATURES  # not above: actors may be in a file with a learner, without torchrl

    device = device_of(network)

    def encode(image: Tensor, _floats: Tensor) -> Tensor:
        """Maps images [B, L, H, W] uint8 to features [B, E], as in collectors."""
        network.eval()  # training mode would update the spectral norms
        with torch.no_grad(), autocast(precision, device):
            parts = [network.encode(part.to(device)) for part in image.split(batch_size)]
        network.train()
        return torch.cat(parts)

    if is_wanted and not replay.has_features:
        replay.store_derived(FEATURES, encode)
    elif replay.has_features and not is_wanted:
        replay.drop_derived(FEATURES)
