"""What the sections of algorithms have in common."""

from __future__ import annotations

from typing import get_args

from rulka.params.base import Algorithm, Section
from rulka.params.networks import NetworkParams, PartsParams

ALGORITHM_NAMES: tuple[Algorithm, ...] = get_args(Algorithm)


class AlgorithmParams(Section):
    """Base of the sections of algorithms, each of which goes by the name of its algorithm."""

    def impossible(self, network: NetworkParams, parts: PartsParams, *, is_trained: bool) -> list[tuple[bool, str]]:
        """Returns for each combination with other sections that cannot be whether it is there, and what is wrong.

        Args:
            network: sizes of networks.
            parts: what its network takes over.
            is_trained: whether the algorithm takes part.
        """
        return parts.impossible(network) if is_trained else []
