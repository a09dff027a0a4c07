"""Fixtures shared by several test packages."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

# Set before torch is imported: several processes share the cores, and OpenMP threads of one would spin while they wait
# for those of another. A single process uses one thread too, so that it computes the same bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Test clusters are on loopback. Ray reads this once, when torchrl imports it.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Stages run on the CPU even if there is a GPU; tests of other devices request theirs.
os.environ.setdefault("RULKA_DEVICE", "cpu")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.contracts.observation import CAR, FLOATS, NUM_CAR_FIELDS, NUM_FLOATS
from rulka.contracts.observation_params import ObservationParams
from rulka.datasets.formats.frames import CapturedRace, FrameIndex, FrameWriter
from rulka.datasets.formats.split import split_maps
from rulka.evaluation.results import RaceResult
from rulka.machine.device import choose_device
from rulka.stages.graph import read_graph
from rulka.tracks.track import Track

torch.set_num_threads(1)  # overrides OMP_NUM_THREADS: multi-threaded sums differ in the last bits between machines
sys.path.insert(0, str(Path(__file__).parent / "device"))
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(Path(__file__).parents[1] / ".pytest_cache" / "hypothesis")
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "localhost,127.0.0.1,::1"
GIT = {"commit.gpgsign": "false", "color.ui": "auto", "status.showUntrackedFiles": "normal"}
"""Overrides of the developer's git settings; all others, such as safe.directory, stay in effect."""
os.environ["GIT_CONFIG_COUNT"] = str(len(GIT))
for _number, (_key, _value) in enumerate(GIT.items()):
    os.environ |= {f"GIT_CONFIG_KEY_{_number}": _key, f"GIT_CONFIG_VALUE_{_number}": _value}
ROOT = Path(__file__).parents[1]
NUM_PIXELS = 64
STEP_MS = 50
SEED = 1
NUM_SLOWEST = 25
LONG_S = 20.0
LONG = (
    "runtime/test_learning",
    "golden/test_golden",
    "agents/test_probes",
    "benchmarks/test_benchmarks",
    "flows/test_faults",
    "flows/test_up",
    "runtime/test_exact_order",
    "runtime/test_learners",
    "examples/test_torchrl_ppo",
    "tasks/test_stage_ends",
    "runtime/test_ray_cluster",
    "benchmarks/test_catch",
)
"""Slowest test files of either tier, slowest first."""


# The same examples on every machine, and none on disk. One that takes long is no failure: cores are shared.
settings.register_profile(
    "fast", derandomize=True, deadline=None, database=None, max_examples=30, suppress_health_check=list(HealthCheck)
)
settings.register_profile("slow", settings.get_profile("fast"), max_examples=300)


class Killed(BaseException):
    """Simulates `kill -9`: no handler saves anything."""


def pytest_configure(config: pytest.Config) -> None:
    """Tries more examples in the slow tier."""
    settings.load_profile("fast" if config.option.markexpr == "not slow" else "slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Uses one worker more than cores: many tests wait for subprocesses."""
    return (os.cpu_count() or 1) + 1


def sees(height: int, width: int) -> ObservationParams:
    """Returns an observation of one frame of this size, with no floats withheld."""
    return ObservationParams(height=height, width=width, frames=1, frames_as="channels", withheld=())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs slow files first, imports the stand-in device if needed, and skips tests that need a GPU if there is none.

    With slow files first, xdist workers finish at about the same time. The stand-in must be imported before the first
    gradient of the process, when torch counts devices, once. torch then takes the stand-in for the machine's
    accelerator and no longer pins memory for a GPU, so GPU tests need a process of their own: `-m gpu`.
    """
    places = {f"tests/{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))
    needing = [item for item in items if item.get_closest_marker("gpu")]
    others = [item for item in items if not item.get_closest_marker("gpu")]
    has_stand_in = any({"device", "standin"} & set(getattr(item, "fixturenames", ())) for item in others)
    if has_stand_in:
        importlib.import_module("stand_in")
    if not needing:
        return
    chosen = choose_device("auto")
    if chosen.device.type == "cpu":
        reason = f"needs a GPU: {chosen.why}"
    elif has_stand_in:
        reason = "needs a process without the stand-in: `pytest -m gpu`"
    else:
        return
    for item in needing:
        item.add_marker(pytest.mark.skip(reason=reason))


def seed_all(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  for libraries that still draw from it
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seeds every test, so that it draws the same numbers alone or after others."""
    seed_all(SEED)


@pytest.fixture(autouse=True)
def _logged() -> Iterator[None]:
    """Re-enables logging after each test: benchmarks disable it for the whole process."""
    yield
    logging.disable(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    """Seeds shared fixtures too: pytest creates them before `_seeded` of the first test that uses them."""
    if fixturedef.scope != "function":
        seed_all(SEED)
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports the slowest tests and files, and tests too slow for the fast tier."""
    tests, files, is_slow = defaultdict[str, float](float), defaultdict[str, float](float), set[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += report.duration
                files[report.nodeid.partition("::")[0]] += report.duration
                if "slow" in report.keywords:
                    is_slow.add(report.nodeid)
    for what, seconds in {"tests": tests, "files": files}.items():
        terminalreporter.section(f"slowest {NUM_SLOWEST} {what} of {len(seconds):,}, {sum(seconds.values()):,.0f} s")
        for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:NUM_SLOWEST]:
            terminalreporter.line(f"{seconds[name]:6.1f} s  {name}")
    if long := [name for name, duration_s in tests.items() if duration_s > LONG_S and name not in is_slow]:
        terminalreporter.section(f"over {LONG_S} s in the fast tier")
        for name in sorted(long):
            terminalreporter.line(
                f"{tests[name]:6.1f} s  {name}: shorten it, or mark it `slow` and keep a small case here"
            )


@pytest.fixture
def standin() -> Iterator[torch.device]:
    """A device that refuses implicit transfers, see `tests/device/stand_in.py`."""
    stand_in = importlib.import_module("stand_in")
    stand_in.crossings.clear()
    stand_in.backend.free_bytes = stand_in.FREE_BYTES
    with stand_in.generators():
        yield stand_in.DEVICE


@pytest.fixture(params=["standin", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The stand-in device, and a GPU if there is one."""
    if request.param == "standin":
        return request.getfixturevalue("standin")
    return choose_device("auto").device


@pytest.fixture(scope="session", autouse=True)
def _children_hear_interrupts() -> None:
    """Restores SIGINT: a shell starts background jobs with it ignored, and every child would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """Fork server with the stages' libraries preloaded: importing them takes longer than most tests.

    `torch._dynamo` is included because the first optimizer imports it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*(f"tasks.{stage}" for stage in read_graph(ROOT / "dvc.yaml")), "torch._dynamo"])
    return context


def synthetic_race(race_id: str, num_frames: int, seed: int, map_uid: str = "synthetic") -> CapturedRace:
    """A race whose correct action is visible in the image: the bright side is the side to steer to.

    The latest previous action among the floats is the action of the preceding frame, as in real frames.
    """
    rng = np.random.default_rng(seed)
    action = np.repeat(rng.choice([0, 1, 2], size=num_frames, p=[0.5, 0.3, 0.2]), 3)[:num_frames]
    image = rng.integers(60, 120, (num_frames, 1, NUM_PIXELS, NUM_PIXELS)).astype(np.uint8)
    image[action == 1, :, :, :20] += 120
    image[action == 2, :, :, -20:] += 120
    floats = rng.normal(0, 1, (num_frames, NUM_FLOATS)).astype(np.float32)
    previous = np.concatenate([[0], action[:-1]])
    floats[:, FLOATS["previous_actions"].stop - 4 : FLOATS["previous_actions"].stop] = action_table(5).keys()[previous]
    share = np.full((num_frames, 12), 0.0, np.float32)
    share[np.arange(num_frames), action] = 0.8
    share[np.arange(num_frames), 3] = 0.2
    time_ms = 50 * np.arange(num_frames, dtype=np.int32)
    along_m = 0.5 * time_ms.astype(np.float32)
    keys = np.eye(12, dtype=np.float32)[action] @ action_table(5).analog()
    ticks = np.stack([*4 * [action], np.full(num_frames, 3)], axis=1).astype(np.uint8)
    return CapturedRace(
        race_id, "driver", map_uid, image, floats, action.astype(np.uint8), share, ticks, keys, time_ms, along_m
    )


def write_synthetic_frames(
    folder: Path,
    num_races: int = 6,
    num_frames: int = 40,
    shard_frames: int = 100,
    validation_fraction: float = 0.3,
    test_fraction: float = 0.0,
    num_elsewhere: int = 0,
) -> FrameIndex:
    """Writes synthetic races of 64 x 64 pixels; the last `num_elsewhere` are on another map than the main track."""
    folder.mkdir()
    num_here = num_races - num_elsewhere
    map_of = {f"race-{n}": "synthetic" if n < num_here else "elsewhere" for n in range(num_races)}
    writer = FrameWriter(
        folder,
        observation=observation_contract(sees(NUM_PIXELS, NUM_PIXELS)),
        actions=action_table(5),
        main_track="synthetic",
        splits=split_maps(map_of, validation_fraction, test_fraction),
        shard_frames=shard_frames,
    )
    for number, (race_id, map_uid) in enumerate(map_of.items()):
        writer.add(synthetic_race(race_id, num_frames + number, number, map_uid))
    return writer.close()


@pytest.fixture
def write_frames(tmp_path: Path) -> Callable[..., tuple[Path, FrameIndex]]:
    """Returns a function that writes a synthetic frame dataset; it returns folder and index.

    For its arguments see `write_synthetic_frames`.
    """

    def write(**changes: int | float) -> tuple[Path, FrameIndex]:
        return tmp_path / "frames", write_synthetic_frames(tmp_path / "frames", **changes)

    return write


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real recordings: `RULKA_RECORDINGS`, or `shared/recordings` beside the repository."""
    folder = Path(os.environ.get("RULKA_RECORDINGS", ROOT.parent / "shared" / "recordings"))
    if not (folder / "expected.csv").is_file():
        pytest.skip(f"no real recordings in {folder}; set RULKA_RECORDINGS to a folder with expected.csv")
    return folder


def along_z(length_m: float) -> NDArray[np.float64]:
    """Straight centre line [Z, 3] from the origin along +z, one zone every half metre."""
    along = np.arange(int(length_m / 0.5) + 1) * 0.5
    return np.stack([0 * along, 0 * along, along], axis=1)


def plain_road(centre_m: NDArray[np.float64], width_m: float, gates_m: Sequence[float] = (), **others: Any) -> Track:
    """A level asphalt road along a centre line [Z, 3], with gates before the finish; `others` override fields."""
    flat = np.zeros(len(centre_m))
    fields: dict[str, Any] = {
        "uid": "test",
        "name": "test",
        "centre_m": centre_m,
        "width_m": flat + width_m,
        "bank_rad": flat,
        "material": np.full(len(flat), 16, np.uint8),
        "edge": np.zeros(len(flat), np.uint8),
        "gate_m": np.array([*gates_m, 0.5 * (len(flat) - 1)]),
        "source": "made by hand",
    }
    return Track(**fields | others)


def straight_track(length_m: float = 100.0) -> Track:
    """A road 10 m wide along +z with gates at 40 %, 80 % and the finish."""
    name = "straight <b>road</b>"
    return plain_road(along_z(length_m), 10.0, (0.4 * length_m, 0.8 * length_m), uid="straight", name=name)


def steady_race(track: Track, speed_mps: float, seed: int = 0, stop_m: float | None = None) -> RaceResult:
    """A race at constant speed along the centre line, to the finish or, at `stop_m`, off the track."""
    end_m = track.length_m if stop_m is None else stop_m
    num_samples = int(np.ceil(end_m / speed_mps * 1000 / STEP_MS)) + 1
    sample_ms = np.arange(num_samples, dtype=np.int64) * STEP_MS
    along_m = np.minimum(sample_ms / 1000 * speed_mps, end_m)
    cars = np.zeros((num_samples, NUM_CAR_FIELDS), np.float32)
    cars[:, CAR["position"]] = [0.0, 0.5, 0.0]
    cars[:, CAR["position"].stop - 1] = along_m
    cars[:, CAR["rotation"]] = np.eye(3).ravel()
    cars[:, CAR["velocity"].stop - 1] = speed_mps
    gates = np.where(track.gate_m <= end_m, np.round(track.gate_m / speed_mps * 1000), 0).astype(np.int64)
    return RaceResult(
        track=track,
        seed=seed,
        end="finished" if stop_m is None else "left the track",
        time_ms=int(gates[-1]) if stop_m is None else None,
        gate_times_ms=gates,
        sample_ms=sample_ms,
        cars=cars,
        along_m=along_m,
        controls=np.tile(np.array([0.0, 1.0, 0.0], np.float32), (num_samples, 1)),
    )


@pytest.fixture
def track() -> Track:
    return straight_track()


@pytest.fixture
def make_race(track: Track) -> Callable[..., RaceResult]:
    def make(speed_mps: float, seed: int = 0, stop_m: float | None = None) -> RaceResult:
        return steady_race(track, speed_mps, seed, stop_m)

    return make
