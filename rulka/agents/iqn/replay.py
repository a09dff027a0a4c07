"""The experience of an IQN learner: its own ring, its priorities, races held out, and demonstrations.

Dimensions: B batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.agents.spec import AgentError, AgentSpec, Experience, Piece
from rulka.buffers.demonstrations import demonstration_buffer
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.buffers.held_out import RaceSplit
from rulka.buffers.mini_race import ClockRule
from rulka.buffers.prioritised import Priorities
from rulka.buffers.sampler import Batch, MiniRaceSampler, Portion
from rulka.buffers.storage import BlockBuffer, place_of_ring
from rulka.observation import MINI_RACE_ACTIONS
from rulka.params import IqnParams

_LOGGER = logging.getLogger(__name__)


class _Pieces(Mapping[int, Piece]):
    """The blocks of a ring by number, each read when it is asked for: from a device that is a copy."""

    def __init__(self, buffer: BlockBuffer) -> None:
        self._buffer = buffer

    def __getitem__(self, number: int) -> Piece:
        if number not in self._buffer.numbers():
            raise KeyError(number)
        return self._buffer.block_arrays(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._buffer.numbers())

    def __len__(self) -> int:
        return self._buffer.num_blocks


class IqnReplay:
    """Where batches come from; how often is the learner's to decide.

    Attributes:
        num_own: transitions of our own in the last batch, demonstrations not counted.
    """

    def __init__(self, spec: AgentSpec[IqnParams], seed: int, device: torch.device) -> None:
        self._device = device
        params: IqnParams = spec.settings
        self._params = params
        self._split = RaceSplit(params.held_out_share, seed)
        rule = ClockRule(MINI_RACE_ACTIONS, params.oversample_long_term, params.oversample_max_term)
        size = (spec.observation.height, spec.observation.width)
        num_floats = len(spec.normalisation.mean)
        self._sampler = MiniRaceSampler(size, num_floats, params.batch_size, rule, spec.chunk_shape, device)
        self._buffer: BlockBuffer | None = None
        self._priorities: Priorities | None = None
        self._demonstrations: BlockBuffer | None = None
        self.num_own = 0

    @property
    def batch(self) -> Batch:
        """The last batch."""
        return self._sampler.batch

    @property
    def num_rows(self) -> int:
        """Decisions in the ring, resets and held-out races included."""
        return 0 if self._buffer is None else self._buffer.num_rows

    def clear(self) -> None:
        """Forgets all experience but the demonstrations."""
        self._buffer = self._priorities = None

    def insert(self, block: ExperienceBlock, stream: int, num_env_steps: int) -> None:
        """Copies a block in; `num_env_steps` decisions came before it."""
        buffer = self._buffer or self._reserve(block.spec)
        is_held_out = self._split.split(block, stream, num_env_steps) if self._params.held_out_share else None
        slot = buffer.insert(block, stream, is_held_out)
        if self._priorities is not None:
            self._priorities.enter(slot)

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Replaces the demonstrations.

        Raises:
            AgentError: if they show something else than the agent sees.
            ValueError: if there are none.
        """
        _, _, height, width = self.batch.image.shape
        expected = (height, width, self.batch.floats.shape[1])
        for block in blocks:
            found = (block.spec.height, block.spec.width, block.spec.num_floats)
            if found != expected:
                message = f"demonstrations have (height, width, floats) {found}, the agent sees {expected}"
                raise AgentError(message, hint="Capture the demonstrations again with the present parameters.")
        self._demonstrations = demonstration_buffer(blocks, self._device)

    def experience(self) -> Experience:
        """Returns all but the demonstrations; see `rulka.agents.spec.Learner`."""
        if self._buffer is None:
            return Experience({}, {})
        buffer = self._buffer
        state: dict[str, Any] = {
            "spec": asdict(buffer.spec),
            "ring": buffer.ring_state(),
            "split": self._split.state_dict(),
        }
        if self._priorities is not None:
            state["priorities"] = self._priorities.state_dict()
        return Experience(state, _Pieces(buffer))

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        self.clear()
        if not experience.state:
            return
        buffer = self._reserve(BlockSpec(**experience.state["spec"]))
        buffer.load_ring(experience.state["ring"], experience.pieces)
        self._split.load_state_dict(experience.state["split"])
        if self._priorities is not None:
            self._priorities.load_state_dict(experience.state["priorities"])

    def draw(self, num_env_steps: int, generator: torch.Generator) -> Batch:
        """Draws a batch to learn from, with the settings at an environment step.

        Raises:
            ValueError: if there is nothing to draw.
        """
        params = self._params
        num_shown = round(params.batch_size * params.demonstration_share) if self._demonstrations is not None else 0
        self.num_own = params.batch_size - num_shown
        beta = params.prioritised.beta.at(num_env_steps) if params.prioritised is not None else 1.0
        portions = [Portion(self._own(), self.num_own, self._priorities, beta)]
        if self._demonstrations is not None:
            portions.append(Portion(self._demonstrations, num_shown))
        return self._sampler.sample(portions, params.n_steps, params.gamma.at(num_env_steps), generator)

    def note_errors(self, error: Tensor) -> None:
        """Sets priorities from the errors [B] of the batch drawn last, which may still be being computed.

        Only where its mini-race has at least `min_actions_left` decisions left: near its end little is left to gain,
        and a small error there says nothing of the same transition earlier in a mini-race. What is not a number ends
        the run elsewhere, with the weights that led to it.
        """
        if self._priorities is None or self._params.prioritised is None:
            return
        errors = error[: self.num_own].cpu().numpy()
        clock = self._sampler.clock[: self.num_own]
        counts = (clock < MINI_RACE_ACTIONS - self._params.prioritised.min_actions_left) & np.isfinite(errors)
        self._priorities.update(self._sampler.rows[0][counts], errors[counts])

    def priorities(self) -> NDArray[np.float64]:
        """Priority of each row of the ring, 0 where none was measured yet; nothing without prioritised replay."""
        return np.zeros(0) if self._priorities is None else self._priorities.measured

    def has_held_out(self) -> bool:
        """Whether the ring holds a transition of a race that is held out."""
        arrays = self._own().arrays
        stored = slice(0, self._own().num_blocks)
        return bool((arrays.is_held_out[stored] & ~arrays.is_reset[stored]).any())

    def draw_held_out(self, num_env_steps: int, generator: torch.Generator) -> Batch:
        """Draws a batch of transitions of the races that are held out.

        Raises:
            ValueError: if there is none.
        """
        portion = Portion(self._own(), self._params.batch_size, from_held_out=True)
        gamma = self._params.gamma.at(num_env_steps)
        return self._sampler.sample([portion], self._params.n_steps, gamma, generator)

    def _reserve(self, spec: BlockSpec) -> BlockBuffer:
        """Makes the ring, and its priorities where there are any."""
        rows = spec.num_steps * spec.num_cars
        num_slots = max(2, -(-self._params.buffer_steps // rows))
        place, remark = place_of_ring(spec, num_slots, self._device)
        if remark:
            _LOGGER.warning(remark)
        self._buffer = BlockBuffer(spec, num_slots, place)
        if self._params.prioritised is not None:
            settings = self._params.prioritised
            self._priorities = Priorities(self._buffer, settings.alpha, settings.epsilon)
        return self._buffer

    def _own(self) -> BlockBuffer:
        if self._buffer is None:
            message = "nothing was inserted yet"
            raise ValueError(message)
        return self._buffer
