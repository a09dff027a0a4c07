from collections.abc import Callable, Mapping

import pytest

from benchmarks import agents, fusions
from rulka.params import Params, read_params

QUICK = {"A: conv, concat", "C: conv, fused vector", "C: unified"}


def small() -> Params:
    """Returns the shipped parameters with batches of 32."""
    params = read_params()
    return params.model_copy(
        update={name: params.algorithms[name].model_copy(update={"batch_size": 32}) for name in ("ppo", "iqn")}
    )


def come_to_their_end(variants: Mapping[str, Callable[[], int]]) -> None:
    assert all(variant() > 0 for variant in variants.values())


@pytest.mark.slow
def test_updates_come_to_their_end() -> None:
    come_to_their_end(agents.update_variants(small()))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in fusions.VARIANTS]
)
def test_a_learner_and_its_layers_learn_from_as_much(name: str) -> None:
    given = fusions.updates(read_params(), *fusions.VARIANTS[name])
    come_to_their_end(given)
    assert len({variant() for variant in given.values()}) == 1
