"""Parameter sections of all algorithms, and section `transfer`: the initial weights of their networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from rulka.agents.impala.params import ImpalaParams
from rulka.agents.iqn.params import IqnParams, IqnPartsParams
from rulka.agents.ppo.params import PpoParams
from rulka.agents.pql.params import PqlParams
from rulka.agents.preferences.params import DpoParams, GrpoParams
from rulka.agents.shared.params import AlgorithmParams, PartsParams
from rulka.contracts.section import Section, Seed, key

Algorithm = Literal["ppo", "impala", "iqn", "grpo", "dpo", "pql"]
ALGORITHM_NAMES: tuple[Algorithm, ...] = get_args(Algorithm)


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
