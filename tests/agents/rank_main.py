"""One learner of two, in a process of its own: what `test_ranks.py` starts."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rulka.agents.algorithms import make_learner
from rulka.agents.spec import AgentSpec
from rulka.buffers.experience import ExperienceBlock
from rulka.runtime.ranks import RanksApartError, meet
from tests.waiting import PATIENCE_S


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
            drawn[name].append(found.clone() if torch.is_tensor(found) else [column.clone() for column in found.batch])
            return found

        setattr(learner, name, drawing)

    noting("draw")
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
    except RanksApartError as error:
        (folder / "told").write_text(str(error), encoding="utf-8")


def add_one(rank: int, meeting: Path) -> None:
    """Meets the other rank and adds 1 to the sum of both."""
    with meet(meeting, rank, 2, limit_s=PATIENCE_S) as ranks:
        ranks.total(torch.ones(()))
