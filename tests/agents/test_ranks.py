"""Two learners that learn as one, against one learner with the union of their batches."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.shared.reductions import ALONE, fewest, mean_of, reduce_gradients, standardised
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.replay import Batch
from rulka.runtime.ranks import RankLostError, meet
from tests.agents.conftest import Races, Step, small_spec
from tests.waiting import PATIENCE_S

FALLING = {"interpolation": "linear", "points": [[0, 0.0001], [30000, 0.00001]]}
"""A rate over environment steps: ranks must count those of all."""
CHANGES: dict[str, dict[str, Any]] = {
    # Three epochs of whole batches, as their order is the ranks' own. In the third update both have moved farther than
    # max_kl together (9.33e-7), and the first rank by itself has not (8.61e-7): the third epoch is left out.
    "ppo": {
        "steps_per_update": 512,
        "batch_size": 512,
        "epochs": 3,
        "max_kl": {"interpolation": "staircase", "points": [[0, 9e-7], [3000, 1.0]]},
        "value_warmup_steps": 512,
        "learning_rate": FALLING,
    },
    "impala": {
        "steps_per_update": 512,
        "batch_size": 512,
        "value_warmup_steps": 512,
        "learning_rate": FALLING,
    },
    "iqn": {
        "batch_size": 32,
        "start_steps": 512,
        "buffer_steps": 2048,
        "samples_per_insert": 1.0,
        "gradient_steps_per_update": 1,
        "demonstration_share": 0.0,
        "learning_rate": FALLING,
        "max_grad_norm": 1.0,
        "prioritised": {"alpha": 0.6, "beta": 0.5, "epsilon": 0.002, "min_actions_left": 40},
    },
}


class TwoRanks:
    """What the first of two ranks sees, where the numbers of the other one are given."""

    rank, size = 0, 2

    def __init__(self, *others: torch.Tensor) -> None:
        self._others: Iterator[torch.Tensor] = iter(others)

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers + next(self._others)

    def largest(self, number: float) -> float:
        return max(number, float(next(self._others)))


def blocks_of(spec: Any, seed: int) -> list[ExperienceBlock]:
    """Four blocks of races whose lengths are chance: the numbers of resets differ between blocks, and ranks."""
    rng = np.random.default_rng(seed)
    races = Races(
        lambda state, action: Step(
            float(action == state) - 0.5 * seed,
            int(rng.integers(seed - 1, 3)),
            "terminated" if rng.random() < 0.1 * seed else "",
        )
    )
    races.rng = rng
    actor = make_actor(spec, seed=seed)
    actor.load_network(make_learner(spec, seed=0).network.state_dict())
    return [races.drive(actor) for _ in range(4)]


# In the processes of the ranks ---------------------------------------------------------------------------------------


def learn(rank: int, folder: Path, spec: AgentSpec, blocks: Sequence[ExperienceBlock], num_updates: int) -> None:
    """Learns from the blocks of a rank by its share of the settings; leaves its state, and what IQN has drawn."""
    torch.set_num_threads(1)
    with meet(folder / "meeting", rank, 2, limit_s=PATIENCE_S) as ranks:
        learner: Any = make_learner(spec, seed=0)
        drawn = record_draws(learner) if spec.algorithm == "iqn" else {}
        learner.join(ranks)
        feed(learner, [blocks], num_updates, num_ranks=2)
    torch.save((learner.state_dict(), drawn), folder / f"{rank}.pt")


def feed(learner: Any, sources: Sequence[Sequence[ExperienceBlock]], num_updates: int, num_ranks: int) -> None:
    """Lets a learner make updates; it is given the next block of every source whenever it may have more."""
    number = 0
    while learner.version < num_updates:
        if learner.num_env_steps < learner.num_allowed_env_steps():
            for source, blocks in enumerate(sources):
                learner.insert(blocks[number % len(blocks)], source, learner.version)
            number += 1
        learner.set_budget_share(0.0, (num_ranks - 1) * learner.num_env_steps)
        learner.update()


def record_draws(learner: Any) -> dict[str, list[Any]]:
    """Notes batches and fractions as they are drawn."""
    drawn: dict[str, list[Any]] = defaultdict(list)

    def noting(name: str) -> None:
        draw = getattr(learner, name)

        def drawing() -> Any:
            found = draw()
            drawn[name].append(found.clone() if torch.is_tensor(found) else [column.clone() for column in found])
            return found

        setattr(learner, name, drawing)

    noting("sample")
    noting("_draw_fractions")
    return drawn


def lose(rank: int, folder: Path) -> None:
    """Meets the other rank; the second one ends without a word, and the first leaves what it is told then."""
    try:
        with meet(folder / "meeting", rank, 2, limit_s=PATIENCE_S) as ranks:
            ranks.total(torch.ones(3))
            if rank == 1:
                os._exit(7)
            ranks.total(torch.ones(3))
    except RankLostError as error:
        (folder / "told").write_text(str(error), encoding="utf-8")


def add_one(rank: int, meeting: Path) -> None:
    """Meets the other rank and adds 1 to the sum of both."""
    with meet(meeting, rank, 2, limit_s=PATIENCE_S) as ranks:
        ranks.total(torch.ones(()))


# In this one --------------------------------------------------------------------------------------------------------


def in_processes(
    share: AgentSpec, blocks: Sequence[Sequence[ExperienceBlock]], folder: Path, num_updates: int
) -> list[tuple[dict[str, Any], dict[str, list[Any]]]]:
    """Returns the state of either rank's learner, and what IQN has drawn."""
    context = get_context("spawn")
    processes = [
        context.Process(target=learn, args=(rank, folder, share, blocks[rank], num_updates)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(
    ("algorithm", "num_updates"),
    [("ppo", 3), *(pytest.param(name, 100, marks=pytest.mark.slow) for name in sorted(CHANGES))],
)
def test_two_learners_equal_one_with_the_union_of_their_batches(
    tmp_path: Path, algorithm: str, num_updates: int
) -> None:
    """In float32 all weights are the same in the end, relative 1e-5; those of the ranks, to the last bit.

    In a hundred updates a ReLU's input comes within rounding of zero now and then, and counts in one alone: 1e-4.
    """
    spec = small_spec(algorithm, **CHANGES[algorithm])
    share = replace(spec, params=spec.params.share_of_learner(2))
    blocks = [blocks_of(spec, seed) for seed in (1, 2)]
    assert blocks[0][0].is_reset.sum() != blocks[1][0].is_reset.sum(), "the ranks learn from unequal numbers of rows"
    (first, one), (second, other) = in_processes(share, blocks, tmp_path, num_updates)
    union: Any = make_learner(spec, seed=0)
    if algorithm == "iqn":
        draw_as(union, one, other)
    feed(union, blocks, num_updates, num_ranks=1)
    for name, mine in first["network"].items():
        assert torch.equal(mine, second["network"][name]), f"{name} of both ranks"
    expected, begun = vector(union.network), vector(make_learner(spec, seed=0).network)
    found = make_learner(spec, seed=0)
    found.load_network(first["network"])
    assert (vector(found.network) - expected).norm() <= (1e-4 if num_updates == 100 else 1e-5) * expected.norm()
    assert (begun - expected).norm() >= 1e-5 * num_updates * expected.norm(), "it has learned"
    assert not torch.equal(first["generator"], second["generator"]), "each draws its own random numbers"


def vector(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def draw_as(union: Any, *ranks: dict[str, list[Any]]) -> None:
    """Lets a learner draw what ranks have drawn, side by side."""
    batches = (
        Batch(*map(torch.cat, zip(*each, strict=True))) for each in zip(*(r["sample"] for r in ranks), strict=True)
    )
    fractions = (torch.cat(each) for each in zip(*(r["_draw_fractions"] for r in ranks), strict=True))

    def sample() -> Batch:
        batch = next(batches)
        union._num_learned += len(batch.action)
        return batch

    union.sample, union._draw_fractions = sample, lambda: next(fractions)
    union._update_priorities = lambda _batch, _error: None


def test_reductions_by_hand() -> None:
    """Rows 1, 3 here and 5 there: mean 3, squares about it 8, deviation 2."""
    here, count = torch.tensor([1.0, 3.0]), torch.tensor(1.0, dtype=torch.float64)
    assert float(mean_of(here, TwoRanks(torch.tensor([5.0, 1.0], dtype=torch.float64)))) == 3.0
    others = (count, torch.tensor([5.0, 1.0], dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64))
    assert standardised(here, TwoRanks(*others)).tolist() == pytest.approx([-1.0, 0.0])
    assert fewest(7, TwoRanks(torch.tensor(-3.0))) == 3


def test_gradients_by_hand() -> None:
    """Gradients 2 of 3 rows and 6 of 1: sums are 8, means weighed by rows 3; what learns nothing stays without."""
    for reduce, other, expected in (
        (reduce_gradients, torch.tensor([6.0]), 8.0),
        (lambda network, ranks: reduce_gradients(network, ranks, 3), torch.tensor([6.0, 1.0]), 3.0),
    ):
        network = torch.nn.Linear(1, 1)
        network.weight.grad = torch.tensor([[2.0]])
        reduce(network, TwoRanks(other))
        assert network.weight.grad.tolist() == [[expected]]
        assert network.bias.grad is None


def test_alone_nothing_is_changed() -> None:
    values = torch.randn(9, generator=torch.Generator().manual_seed(0))
    assert mean_of(values, ALONE).equal(values.mean())
    assert standardised(values, ALONE).equal((values - values.mean()) / (values.std() + 1e-8))
    assert standardised(values[:1], ALONE).tolist() == [0.0], "the only decision among resets"


def test_shares_add_up() -> None:
    """Counts over the experience of all are split; rates, epochs and numbers of updates are not."""
    for algorithm, changes in CHANGES.items():
        whole = small_spec(algorithm, **changes).params
        share = whole.share_of_learner(2)
        for name, value in whole.model_dump().items():
            expected = value / 2 if name in whole.SPLIT else value
            assert share.model_dump()[name] == expected, name


def test_a_rank_that_ends_is_noticed_by_the_other(tmp_path: Path) -> None:
    """At once, not when the limit is over: the connection breaks."""
    context = get_context("spawn")
    processes = [context.Process(target=lose, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in processes] == [0, 7]
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert told.startswith("learner 0 of 2 lost the others: ")
    assert "timed out" not in told.lower()


@pytest.mark.slow
def test_after_a_meeting_in_vain_a_process_can_meet_new_ones(tmp_path: Path) -> None:
    """As when a learner dies before the meeting: the first one goes on in its process, all others are new."""
    for number in range(2):
        with (
            pytest.raises(RankLostError, match="learner 0 of 2 waited in vain"),
            meet(tmp_path / f"vain-{number}", 0, 2, limit_s=0.5),
        ):
            pytest.fail("nobody else is there")
    other = get_context("spawn").Process(target=add_one, args=(1, tmp_path / "meeting"))
    other.start()
    with meet(tmp_path / "meeting", 0, 2, limit_s=PATIENCE_S) as ranks:
        assert float(ranks.total(torch.ones(()))) == 2.0
    other.join(PATIENCE_S)
    assert other.exitcode == 0
