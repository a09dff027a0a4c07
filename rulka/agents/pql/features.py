"""Image features in place of images, while the encoder stands still."""

from __future__ import annotations

import torch
from torch import Tensor

from models.actor_critic import ClonePolicy
from rulka.agents.pql.replay import PqlReplay
from rulka.agents.precision import Precision, autocast
from rulka.device import device_of
from rulka.params import PqlParams
from rulka.schedule import Moment


class FeatureKeeper:
    """Has a ring keep image features until the encoder learns for the first time.

    Attributes:
        is_as_given: the encoder has not learned yet.
    """

    def __init__(self, network: ClonePolicy, replay: PqlReplay, params: PqlParams, precision: Precision) -> None:
        self._network, self._replay, self._params = network, replay, params
        self._precision: Precision = precision
        self._device = device_of(network)
        self.is_as_given = True

    def look(self, moment: Moment) -> None:
        """Has the ring keep at this moment of the run what is right: features or images."""
        self.is_as_given &= self._params.rate_of.encoder.at(moment) == 0.0
        if self.is_as_given == self._replay.has_features:
            return
        if self.is_as_given:
            dtype = torch.bfloat16 if self._precision == "bfloat16" else torch.float32
            self._replay.keep_features(self._encode, self._network.num_encoded, dtype)
        else:
            self._replay.drop_features()

    def _encode(self, image: Tensor, _floats: Tensor) -> Tensor:
        """Maps images [B, L, H, W] uint8 to features [B, E], as collectors see them."""
        self._network.eval()  # spectral norms must not move on
        with torch.no_grad(), autocast(self._precision, self._device):
            parts = [self._network.encode(part.to(self._device)) for part in image.split(self._params.batch_size)]
        self._network.train()
        return torch.cat(parts)
