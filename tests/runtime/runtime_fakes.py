"""Cars, actor and learner that take no time and whose every number can be told in advance."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rulka.agents.shared.reductions import ALONE, Ranks
from rulka.agents.shared.spec import ActionValues, Decision
from rulka.buffers.experience import BlockSpec, ExperienceBlock, StoredExperience
from rulka.contracts.schedule import Moment
from rulka.contracts.step_results import StepResult
from rulka.machine.device import CPU
from rulka.machine.processes import end_group
from rulka.params import read_params
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import CollectLimits
from rulka.runtime.connect import connect
from rulka.runtime.greedy_check import RECORD_FILE
from rulka.runtime.learner_loop import LearnerLoop, Outcome
from rulka.runtime.ray_collectors import RayCollectors
from rulka.runtime.shared import MEMORY_FOLDER
from rulka.runtime.specs import MakeCars, RunSpec
from rulka.runtime.stop import StopSignals
from rulka.training.params import TrainParams
from tests.conftest import Killed
from tests.waiting import wait_for

HEIGHT, WIDTH, NUM_FLOATS, NUM_ACTIONS = 6, 10, 4, 5
RACE_STEPS = 7
"""Decisions of a fake race; car k is cut by a limit instead when k is odd."""
SPEC = BlockSpec(num_steps=16, num_cars=3, height=HEIGHT, width=WIDTH, num_floats=NUM_FLOATS)
BLOCK_STEPS = SPEC.num_steps * SPEC.num_cars
MAIN = Path(__file__).parent / "fake_main.py"
CLOCK = random.SystemRandom()
"""How long what takes a random time takes: no seed makes that the same again."""
OVER_S = 1e9
"""Seconds of training after which a run is over: a test sets `loop.state.seconds` to end it.

None ever takes so long, so how much of its budget is used goes by environment steps and never by the clock.
"""


class FakeCars:
    """Observations count decisions: floats are (count, car, seed, decisions of this race)."""

    def __init__(
        self,
        num_cars: int,
        *,
        at_line: bool,
        starts_at_line: bool = True,
        step_s: float = 0.0,
        jitter_s: float = 0.0,
        fault: str = "",
        is_kept: bool = True,
    ) -> None:
        self._num_cars, self._step_s, self._jitter_s, self._fault = num_cars, step_s, jitter_s, fault
        self._is_kept = is_kept
        self._is_full_race = at_line or starts_at_line
        self._count = 0
        self._seed = 0
        self._race_steps = np.zeros(num_cars, np.int64)
        self._has_ended = np.zeros(num_cars, bool)

    def reset_into(self, image_out, floats_out, potential_out, seed: int) -> None:
        self._count, self._seed = 0, seed % 1000
        self._race_steps[:] = 0
        self._has_ended[:] = False
        self._write(image_out, floats_out, potential_out)

    def step_into(self, actions, image_out, floats_out, potential_out) -> StepResult:
        time.sleep(self._step_s + self._jitter_s * CLOCK.random())
        self._count += 1
        self._misbehave()
        is_reset = self._has_ended.copy()
        self._race_steps = np.where(is_reset, 0, self._race_steps + 1)
        self._has_ended = self._race_steps == RACE_STEPS
        is_odd = np.arange(self._num_cars) % 2 == 1
        self._write(image_out, floats_out, potential_out)
        reward = np.where(is_reset, 0.0, 1.0 + np.asarray(actions)).astype(np.float32)
        return StepResult(
            reward=reward,
            terminated=self._has_ended & ~is_odd,
            truncated=self._has_ended & is_odd,
            is_reset=is_reset,
            is_finished=self._has_ended & ~is_odd,
            is_full_race=np.full(self._num_cars, self._is_full_race),
            is_off_track=np.zeros(self._num_cars, bool),
            progress_m=self._race_steps.astype(np.float32) * 2.0,
            start_m=np.zeros(self._num_cars, np.float32),
            race_time_ms=self._race_steps * 50 + np.arange(self._num_cars),
        )

    def set_moment(self, moment: Moment) -> None:
        self.env_steps = moment.env_steps

    def cars(self) -> np.ndarray:
        """Car k, in its race step s, is at (s, 0, k) and drives at 3 m/s."""
        cars = np.arange(self._num_cars)
        return np.stack([self._race_steps, cars * 0, cars, cars * 0 + 3], axis=1).astype(np.float32)

    def state_dict(self) -> dict[str, Any] | None:
        if not self._is_kept:
            return None
        return {"count": self._count, "seed": self._seed, "race_steps": self._race_steps, "has_ended": self._has_ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count, self._seed = state["count"], state["seed"]
        self._race_steps, self._has_ended = state["race_steps"], state["has_ended"]

    def close(self) -> None:
        pass

    def _write(self, image_out, floats_out, potential_out) -> None:
        cars = np.arange(self._num_cars)
        image_out[:] = fake_pixel(self._count, cars, self._seed)[:, None, None, None]
        floats_out[:] = np.stack([np.full_like(cars, self._count), cars, np.full_like(cars, self._seed), cars * 0], 1)
        floats_out[:, 3] = self._race_steps
        potential_out[:] = -0.5 * self._race_steps

    def _misbehave(self) -> None:
        if self._fault == "raise" and self._count == 20:
            message = "the fake cars broke down"
            raise RuntimeError(message)


def fake_pixel(count, car, seed):
    return ((13 * np.asarray(count) + 31 * np.asarray(car) + 7 * np.asarray(seed)) % 251).astype(np.uint8)


class FakeNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(40_000))  # large enough for a torn read to show
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


MOMENT = 2.0**-14
"""What each environment step so far adds to the version in the log-probabilities of the fake actor."""


def versions_in(block: ExperienceBlock) -> NDArray[np.float32]:
    """Returns the version of the weights that took each decision of a block, by the fake actor."""
    return np.floor(block.log_prob)


class FakeActor:
    """Takes random actions; its log-probabilities are its weight and moment, so that a block shows what acted in it."""

    def __init__(self, seed: int, device: torch.device = CPU) -> None:
        self.network = FakeNetwork().requires_grad_(False)
        self._generator = np.random.default_rng(seed)
        self._env_steps = 0

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(dict(tensors))

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        num_cars = len(floats)
        action = (
            self._generator.integers(NUM_ACTIONS, size=(num_cars, 1)) if explore else np.ones((num_cars, 1), np.int64)
        )
        low, high = float(self.network.weight.min()), float(self.network.weight.max())
        assert low == high, "torn weights"
        log_prob = np.full(num_cars, low + min(self._env_steps * MOMENT, 1.0 - MOMENT), np.float32)
        return Decision(action, log_prob, action[:, 0] == 1)

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues:
        """Thinks most of action 1, and more of all the more decisions a race has taken."""
        value = np.eye(NUM_ACTIONS, dtype=np.float32)[1] + floats.numpy()[:, 3:]
        return ActionValues("q_value", value)

    def set_moment(self, moment: Moment) -> None:
        self._env_steps = moment.env_steps

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]


class FakeLearner:
    """Every `blocks_per_update` blocks its weight becomes the new version number; `seen` digests all it was given.

    One of several learners adds up with the others what it was given, and `together` is the sum of all of that.
    """

    OWN_STATE = ("num_env_steps",)
    precision = "float32"

    def __init__(
        self,
        *,
        blocks_per_update: int = 2,
        ahead: int = 4,
        update_s: float = 0.0,
        jitter_s: float = 0.0,
        fault: str = "",
        is_central: bool = False,
    ) -> None:
        self.network = FakeNetwork()
        self.version, self.num_env_steps, self._pending = 0, 0, 0
        self._blocks_per_update, self._ahead, self._update_s, self._fault = blocks_per_update, ahead, update_s, fault
        self._is_central, self._jitter_s = is_central, jitter_s
        self.seen: list[float] = []
        self.collectors: list[int] = []
        self.staleness: list[int] = []
        self.totals: list[int] = []
        self.together = 0.0
        self.ranks: Ranks = ALONE

    def join(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @property
    def racer(self) -> FakeNetwork:
        return self.network

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(dict(tensors))

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        check_intact(block, version, is_central=self._is_central)
        self.seen.append(float(block.reward.sum()) + float(block.floats.sum()))
        self.collectors.append(collector)
        self.staleness.append(self.version - version)
        self.num_env_steps += block.reward.size
        self._pending += 1

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        raise AssertionError

    def set_budget_share(self, share: float, env_steps_elsewhere: int = 0) -> None:
        self.totals.append(self.num_env_steps + env_steps_elsewhere)

    @property
    def allowed_lag(self) -> int:
        return self._ahead // self._blocks_per_update

    def num_allowed_env_steps(self) -> int:
        if self._fault == "stall":
            return 2 * BLOCK_STEPS
        return self.num_env_steps - self._pending * BLOCK_STEPS + self._ahead * BLOCK_STEPS

    def is_ready(self) -> bool:
        return self._pending >= self._blocks_per_update and self._fault != "stall"

    def update(self) -> dict[str, float] | None:
        if not self.is_ready():
            return None
        time.sleep(self._update_s + self._jitter_s * CLOCK.random())
        self._misbehave()
        self.together += float(self.ranks.total(torch.tensor(sum(self.seen[-self._pending :]), dtype=torch.float64)))
        self._pending = 0
        self.version += 1
        value = float("nan") if self._fault == "diverge" and self.version == 2 else float(self.version)
        with torch.no_grad():
            self.network.weight.fill_(value)
        if self._fault == "interrupt" and self.version == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        if self._fault in ("drift", "nan") and self.version == 4 and self.ranks.rank == 1:
            with torch.no_grad():
                self.network.weight.fill_(5.0 if self._fault == "drift" else float("nan"))
        return {"loss": 1.0 / self.version, "gradient_steps": 3.0, "num_samples": 6.0}

    def _misbehave(self) -> None:
        """Does what is to happen once, in the second of several learners."""
        if self.ranks.rank != 1 or self.version != 4:
            return
        if self._fault == "raise":
            message = "the second learner broke down"
            raise RuntimeError(message)
        flag = Path(self._fault.removeprefix("die:"))
        if self._fault.startswith("die:") and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def inspect(self) -> dict[str, float]:
        return {"Network/weight": float(self.network.weight.detach()[0])}

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "version": self.version,
            "num_env_steps": self.num_env_steps,
            "together": self.together,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.version, self.num_env_steps = state["version"], state["num_env_steps"]
        self.together = state["together"]

    def experience(self) -> StoredExperience:
        """Everything seen so far, a piece for each block."""
        pieces = {number: {"seen": np.array(seen)} for number, seen in enumerate(self.seen)}
        return StoredExperience({"pending": self._pending}, pieces)

    def load_experience(self, experience: StoredExperience) -> None:
        self._pending = experience.state["pending"]
        self.seen = [float(experience.pieces[number]["seen"]) for number in sorted(experience.pieces)]

    def forget_experience(self) -> None:
        self._pending, self.seen = 0, []


def check_intact(block: ExperienceBlock, version: int, *, is_central: bool = False) -> None:
    """Asserts that every number of a block is what the fake cars and the fake actor must have written.

    With central inference, weights and schedules may move on in the middle of a block.
    """
    count, car, seed = block.floats[..., 0], block.floats[..., 1], block.floats[..., 2]
    assert (np.diff(count, axis=0) == 1).all(), "decisions follow each other"
    assert (car == np.arange(block.spec.num_cars)).all()
    assert (seed == seed[0, 0]).all()
    pixel = fake_pixel(count.astype(np.int64), car.astype(np.int64), seed.astype(np.int64))
    assert (block.image == pixel[..., None, None, None]).all()
    assert (block.potential == -0.5 * block.floats[..., 3]).all()
    if is_central:
        acted = versions_in(block)
        assert acted.min() == version, "the oldest version"
        assert (np.diff(acted, axis=0) >= 0).all(), "weights never become older"
        assert (acted == acted[:, :1]).all(), "one version in each decision"
    else:
        assert (versions_in(block) == version).all(), "one version in the whole block"
        assert (block.log_prob == block.log_prob[0, 0]).all(), "one moment in the whole block"
    assert (block.reward == np.where(block.is_reset, 0.0, 1.0 + block.action[..., 0])).all()
    assert (block.is_greedy == (block.action[..., 0] == 1)).all()
    ended = block.floats[1:, :, 3] == RACE_STEPS
    assert (block.terminated == (ended & (car[1:] % 2 == 0))).all()
    assert (block.truncated == (ended & (car[1:] % 2 == 1))).all()
    assert (block.is_reset[1:] == ended[:-1]).all()


def fake_train(**changes: object) -> TrainParams:
    """Returns `train` parameters for fakes."""
    small = {
        "order": "free",
        "blocks_ahead": 3,
        "num_collectors": 0,
        "cars_per_collector": SPEC.num_cars,
        "block_steps": SPEC.num_steps,
        "max_env_steps": 20 * BLOCK_STEPS,
        "max_minutes": OVER_S / 1000.0,
        "num_checks": 2,
        "check_races": 2,
        "check_candidates": 2,
        "final_check_races": 4,
    }
    return TrainParams.model_validate(read_params().train.model_dump() | small | changes)


def fake_learner(_num_learners: int, _device: torch.device, **arguments: Any) -> FakeLearner:
    return FakeLearner(**arguments)


def alike(make_cars: MakeCars, _collector: int) -> MakeCars:
    """Returns what builds the cars of every collector."""
    return make_cars


def fake_run(
    folder: Path, *, cars: Mapping[str, Any] | None = None, learner: Mapping[str, Any] | None = None, **train: object
) -> RunSpec:
    """Returns a run made of fakes; `cars` and `learner` are arguments of theirs."""
    make_cars = partial(FakeCars, **(cars or {}))
    return RunSpec(
        make_cars=make_cars,
        cars_of=partial(alike, make_cars),
        make_actor=FakeActor,
        collecting_actor=FakeActor,
        build_learner=partial(fake_learner, **(learner or {})),
        block=SPEC,
        train=fake_train(**train),
        folder=folder,
        label="test",
    )


Happening = Callable[[LearnerLoop], None]


def drive(spec: RunSpec, happens: Happening = lambda _loop: None) -> tuple[Outcome | None, LearnerLoop]:
    """Runs to the end, or until `happens`, called after each update, raises `Killed`: there is no outcome then."""
    with StopSignals() as stop, connect(spec, stop) as loop:
        update = loop._learner.update

        def update_and_more() -> dict[str, float] | None:
            values = update()
            if values is not None:
                happens(loop)
            return values

        loop._learner.update = update_and_more
        try:
            return loop.run(), loop
        except Killed:
            return None, loop


def killed_at(version: int) -> Happening:
    """Dies just after an update of a number, which is learned and never saved."""

    def die(loop: LearnerLoop) -> None:
        if loop._learner.version == version:
            raise Killed

    return die


def until_all_work(collectors: RayCollectors) -> None:
    """Waits until every collector is built: from then on each gets its share of the permissions."""

    def all_work() -> bool:
        collectors.collect(CollectLimits(0, 0.05))
        return all(remote.state == "working" for remote in collectors.remotes)

    wait_for(all_work, "all collectors to work")


def newest(folder: Path) -> dict[str, Any]:
    """Returns what the newest checkpoint of a run holds."""
    saved = Checkpoints(folder).load_newest()
    assert saved is not None, "nothing was saved"
    return saved


@contextmanager
def fake_stage(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Starts `fake_main.py` in a group of its own; what is left of it when the block ends is killed."""
    command = [sys.executable, str(MAIN), str(folder), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as stage:
        try:
            yield stage
        finally:
            end_group(stage, ask=signal.SIGKILL)


def saved_env_steps(folder: Path) -> int:
    """Returns how far the newest checkpoint of a run is, by its name: files come and go while the run lives."""
    return max((int(path.stem.rpartition("-")[2]) for path in folder.glob("checkpoint-*.ckpt")), default=0)


def until_saved(stage: subprocess.Popen[str], folder: Path, after: int = 0) -> None:
    """Waits until a stage that goes on has saved a checkpoint after more environment steps than these."""
    wait_for(lambda: saved_env_steps(folder) > after or stage.poll() is not None, "a checkpoint")
    assert stage.poll() is None, stage.communicate()[0]


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is there and is more than an entry that nobody has reaped."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def family() -> set[int]:
    """What this process has started, and what that has; not Python's own helpers."""
    found = set[int]()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if is_alive(child) and not re.search(r"resource_tracker|forkserver|^$", " ".join(child.cmdline())):
                found.add(child.pid)
    return found


def record_in(folder: Path) -> dict[str, NDArray]:
    """Returns all of the record of a run."""
    with np.load(folder / RECORD_FILE, allow_pickle=False) as stored:
        return dict(stored)


def memory_of(pid: int | str = "self") -> set[Path]:
    """The shared memory that a process has."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return {Path(line.split()[5]) for line in maps if f"{MEMORY_FOLDER}/torch_" in line}
