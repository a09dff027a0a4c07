"""The table of algorithms, and the sections of `params.yaml` that are built from it.

No other code branches on their names. A new algorithm is a line here and a folder beside this file; see
docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import create_model

from rulka.agents.impala.params import ImpalaParams
from rulka.agents.iqn.params import IqnParams
from rulka.agents.ppo.params import PpoParams
from rulka.agents.pql.params import PqlParams
from rulka.agents.preferences.params import DpoParams, GrpoParams
from rulka.agents.shared.params import AlgorithmParams, PartsParams
from rulka.contracts.section import Section, Seed, key

ALGORITHMS: Mapping[str, type[AlgorithmParams]] = {
    "ppo": PpoParams,
    "impala": ImpalaParams,
    "iqn": IqnParams,
    "grpo": GrpoParams,
    "dpo": DpoParams,
    "pql": PqlParams,
}
"""The section of every algorithm, which names its learner and its actor."""

if TYPE_CHECKING:
    Algorithm = str
else:
    Algorithm = Literal[tuple(ALGORITHMS)]
    """A key of `ALGORITHMS`."""


SectionT = TypeVar("SectionT", bound=Section)


def with_section_of_each(base: type[SectionT], sections: Mapping[str, tuple[type[Section], str]]) -> type[SectionT]:
    """Returns `base` with a field for each algorithm, of a section and with a description."""
    fields: dict[str, Any] = {name: (section, key(section(), meaning)) for name, (section, meaning) in sections.items()}
    return create_model(base.__name__, __base__=base, **fields)


_Parts = with_section_of_each(
    Section, {name: (section.PARTS, f"Parts of {section.LABEL}'s network.") for name, section in ALGORITHMS.items()}
)


class TransferParams(_Parts):
    """Stage `transfer`: sources of the initial weights of each algorithm's network."""

    from_scratch: bool = key(False, "Fresh weights for every part of every network, whatever else this section says.")
    agent: str | None = key(None, "Trained agent that parts come from: its folder, or shipped.", min_length=1)
    seed: Seed = key(1, "Seed of fresh weights.")

    def _check_combinations(self) -> Iterator[str]:
        wishes = {name: dict(self.of(name)) for name in ALGORITHMS}
        asking = [f"{name}.{part}" for name, parts in wishes.items() for part, wish in parts.items() if wish == "agent"]
        if asking and self.agent is None:
            yield f"{asking[0]} is agent, but transfer.agent is null: set it to the folder of a trained agent"
        if self.agent is not None and not asking:
            yield f"agent is {self.agent}, but no part is taken from it: set one part to agent, or agent to null"

    def of(self, algorithm: Algorithm) -> PartsParams:
        """Returns the part sources of one algorithm, all fresh if `from_scratch`."""
        parts: PartsParams = getattr(self, algorithm)
        return parts.model_copy(update=dict.fromkeys(dict(parts), "fresh")) if self.from_scratch else parts
