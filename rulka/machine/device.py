"""Device selection, and tensor transfers to and from the device: the only module that asks torch for devices.

A device is a fact of the machine, never a parameter: it comes from `--device` or from the environment, and no
fingerprint holds it. On the CPU every transfer but `upload_copy` returns its input, without a copy.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from rulka.machine.errors import UserError
from rulka.machine.terminal import tell

DEVICE_VARIABLE = "RULKA_DEVICE"
"""Environment variable that names the device; `auto` if it is not set."""

CPU = torch.device("cpu")
NUM_THREADS = 2
"""Threads of stages that compute alone: threads divide sums and so decide their last bits, which must not depend on the
number of cores."""

_NAMES = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
_KNOWN = "auto, cpu, cuda, cuda:1 (or another number) and mps"
_INSTALL = "install a torch 2.13 that was built for CUDA into .venv, as pytorch.org/get-started says"
_REASONS = (
    ("driver on your system is too old", "its driver is too old for this torch", "update the driver"),
    ("no kernel image", "this torch holds no kernels for its architecture", _INSTALL),
    ("not compiled with cuda", "this torch was built for the CPU", _INSTALL),
    ("no nvidia driver", "no NVIDIA driver is loaded", "install the driver, and look at `nvidia-smi`"),
    ("out of memory", "its memory is full", "end what else runs on it, and look at `nvidia-smi`"),
    ("invalid device ordinal", "there is no GPU of that number", "name one that `nvidia-smi` lists"),
    ("no cuda-capable device", "the driver shows no GPU", "look at CUDA_VISIBLE_DEVICES and at `nvidia-smi`"),
    ("mps", "this torch or this macOS has no Metal", "use an arm64 Python on macOS 14 or later"),
)
"""Fragment of torch's error in lower case; its meaning; the remedy."""

_NO_GPU = "this machine shows no NVIDIA GPU; if it has one, install the driver, and look at `nvidia-smi`"
_NVIDIA_DRIVER, _PROCESSORS = Path("/proc/driver/nvidia"), Path("/proc/cpuinfo")

BatchT = TypeVar("BatchT", bound=tuple[Tensor, ...])


class ChosenDevice(NamedTuple):
    """A device, and the reason for it.

    Attributes:
        device: with its index, if there may be several.
        why: the reason, for messages.
        problem: why a GPU is not used although the CPU was not requested, and the remedy; usually empty.
    """

    device: torch.device
    why: str
    problem: str = ""


def numerics_fingerprint() -> str:
    """Describes what determines rounding of sums on this machine: processor, number of threads, torch."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):  # only Linux has the file, and not every processor the line
        if found := re.search(r"^model name\s*: (.+)$", _PROCESSORS.read_text(encoding="utf-8"), re.MULTILINE):
            model = found[1]
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{model} with {kernels}, {torch.get_num_threads()} threads, torch {torch.__version__}"


# Choosing -------------------------------------------------------------------------------------------------------------


def choose_device(name: str | None = None) -> ChosenDevice:
    """Returns the device that networks run on; a GPU has just passed a test computation.

    Args:
        name: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`; None takes `RULKA_DEVICE`, or `auto` if that is not set.
            `auto` takes a GPU that works and otherwise the CPU.

    Raises:
        UserError: if the name is unknown, or that device cannot be used.
    """
    variable = os.environ.get(DEVICE_VARIABLE) or "auto"
    asked, by = (variable, DEVICE_VARIABLE) if name is None else (name, "--device")
    if not _NAMES.fullmatch(asked):
        message = f"{asked!r}, which {by} names, is no device: known are {_KNOWN}"
        raise UserError(message, hint=f"Devices are named by --device, or else by {DEVICE_VARIABLE}.")
    if asked == "auto":
        return _automatic()
    device = torch.device("cuda", 0) if asked == "cuda" else torch.device(asked)
    problem = _problem_of(device)
    if problem:
        message = f"{asked}, which {by} names, cannot be used: {problem}"
        raise UserError(message, hint=f"Or take another device: {by} may be {_KNOWN}.")
    return ChosenDevice(device, f"named by {by}{_described(device)}")


def use_device(name: str | None = None) -> torch.device:
    """Chooses a device, and says on standard error which GPU it is, or why a GPU cannot be used.

    Raises:
        UserError: see `choose_device`.
    """
    chosen = choose_device(name)
    if chosen.problem:
        tell(f"device: cpu, because {chosen.problem}")
    elif chosen.device.type != "cpu":
        tell(f"device: {chosen.device} ({chosen.why})")
    return chosen.device


def devices_of_learners(first: torch.device, count: int) -> list[torch.device]:
    """Returns the devices of several learners: a GPU each, from the first one on, or the CPU for all.

    Raises:
        UserError: if there are fewer GPUs, or processor cores, than learners.
    """
    if first.type == "cuda":
        place, there = first.index or 0, torch.cuda.device_count()
        devices = [torch.device("cuda", index) for index in range(place, there)]
        what = f"{there} GPUs, of which they would take those from {first} on"
    elif first.type == "cpu":
        devices = [CPU] * _num_cores()
        what = f"{len(devices)} processor cores"
    else:
        devices = [first]
        what = f"one device, {first}"
    if count > len(devices):
        message = f"train.learners is {count}, and there are {what} here: each learner needs one of its own"
        raise UserError(message, hint=f"Set train.learners to {len(devices)} or less, or name another device.")
    return devices[:count]


def _num_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # only Linux has it
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


def _automatic() -> ChosenDevice:
    problems = []
    for device in _present():
        problem = _problem_of(device)
        if not problem:
            return ChosenDevice(device, f"a GPU that works{_described(device)}")
        problems.append(f"{device} cannot be used: {problem}")
    problem = "; ".join(problems)
    return ChosenDevice(CPU, problem or "there is no GPU", problem)


def _present() -> list[torch.device]:
    """Returns the GPUs that this machine seems to have, whether or not torch can use them."""
    found = []
    with warnings.catch_warnings():  # about a driver that is too old, which `_problem_of` reports
        warnings.simplefilter("ignore")
        is_available = torch.cuda.is_available()
    if is_available:
        found += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    elif _NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi") is not None:  # whether or not torch can use it
        found.append(torch.device("cuda", 0))
    if torch.backends.mps.is_available():
        found.append(torch.device("mps"))
    return found


def _problem_of(device: torch.device) -> str:
    """Returns why a device cannot be used and the remedy; empty if it passes a test computation."""
    if device.type == "cpu":
        return ""
    try:
        ones = torch.ones(8, 8, device=device)
        total = float((ones @ ones).sum())
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch has no error of its own for it
        if device.type == "cuda" and all(found.type != "cuda" for found in _present()):
            return _NO_GPU  # torch's error would only name what its build lacks
        return _explained(str(error))
    if total != 512.0:
        return f"it computes wrongly (8 x 8 x 8 = {total}); restart the machine"
    # "float32" means float32, as on the CPU: convolutions would otherwise round to 10 bits.
    torch.backends.cudnn.allow_tf32 = False
    return ""


def _explained(error: str) -> str:
    said = " ".join(error.split())
    for fragment, reason, advice in _REASONS:
        if fragment in said.lower():
            return f"{reason}; {advice}"
    return said[:300]


def _described(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    facts = torch.cuda.get_device_properties(device)
    return f", {facts.name}, {facts.total_memory / 1e9:.0f} GB"


# Properties -----------------------------------------------------------------------------------------------------------


def free_bytes(device: torch.device) -> int:
    """Returns the free memory of a GPU in bytes; not for the CPU."""
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return free


def device_of(network: nn.Module) -> torch.device:
    """Returns the device of a network's weights."""
    return next(network.parameters()).device


def use_threads() -> None:
    """Makes torch use `NUM_THREADS` threads, unless OMP_NUM_THREADS sets their number."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(NUM_THREADS)


def has_bfloat16(gpu: torch.device) -> bool:
    """True if a GPU supports bfloat16 natively; emulation does not count."""
    return gpu.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Returns the dtype of running averages: float64, or float32 on a Mac's GPU, which has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def wait_for(device: torch.device) -> None:
    """Waits until a device has done all work queued so far; returns at once on the CPU."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


# Transfers ------------------------------------------------------------------------------------------------------------


def has_pinned_copies(device: torch.device) -> bool:
    """True if copies from pinned memory to a device run asynchronously."""
    return device.type == "cuda"


def upload(batch: BatchT, device: torch.device) -> BatchT:
    """Moves a named tuple of tensors to a device.

    From pinned memory the copy is asynchronous: the source must not be overwritten before the device has finished
    the work queued next, see `wait_for`.
    """
    if device.type == "cpu":
        return batch
    is_async = has_pinned_copies(device)
    return _like(batch, (column.to(device, non_blocking=is_async) for column in batch))


def upload_copy(batch: BatchT, device: torch.device) -> BatchT:
    """Copies tensors in main memory to a device; the originals may change as soon as this returns."""
    if device.type == "cpu":
        return _like(batch, (column.clone() for column in batch))
    return upload(_pinned(batch, device), device)


def staging(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocates uninitialised main memory as a source of copies to a device."""
    return torch.empty(shape, dtype=dtype, pin_memory=has_pinned_copies(device))


def upload_ahead(batches: Iterator[BatchT], device: torch.device) -> Iterator[BatchT]:
    """Yields batches on a device; a thread prepares and copies the next one during computation on the last."""

    def take() -> BatchT | None:
        batch = next(batches, None)
        return None if batch is None else upload(_pinned(batch, device), device)

    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(take)
        while (batch := coming.result()) is not None:
            coming = reader.submit(take)
            yield batch


def _pinned(batch: BatchT, device: torch.device) -> BatchT:
    return _like(batch, (column.pin_memory() for column in batch)) if has_pinned_copies(device) else batch


def _like(batch: BatchT, columns: Iterable[Tensor]) -> BatchT:
    make: Any = type(batch)
    return make(*columns) if hasattr(batch, "_fields") else make(columns)


def on_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns tensors in main memory; starts all copies, then waits once."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return tensors
    is_async = has_pinned_copies(tensors[0].device)
    copies = tuple(tensor.detach().to("cpu", non_blocking=is_async) for tensor in tensors)
    if is_async:
        wait_for(tensors[0].device)
    return copies


def weights_on_host(network: nn.Module) -> dict[str, Tensor]:
    """Returns the weights of a network by name: its own tensors if it is on the CPU, else copies."""
    tensors = network.state_dict()
    return dict(zip(tensors, on_host(*tensors.values()), strict=True))


def state_on_host(state: Any) -> Any:
    """Returns nested dictionaries, lists and tuples with all their tensors in main memory, for checkpoints."""
    if isinstance(state, Tensor):
        return on_host(state)[0]
    if isinstance(state, Mapping):
        return {name: state_on_host(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(state_on_host(value) for value in state)
    return state


# Random numbers -------------------------------------------------------------------------------------------------------


def make_generator(device: torch.device, seed: int) -> torch.Generator:
    """Returns a seeded RNG on a device."""
    return torch.Generator(device).manual_seed(seed)


class Generators:
    """RNGs from one seed, in main memory and on a device; on the CPU both are the same.

    Attributes:
        host: draws in main memory.
        device: draws on the networks' device.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.host = make_generator(CPU, seed)
        self.device = self.host if device.type == "cpu" else make_generator(device, seed)

    def seed(self, seed: int) -> None:
        """Reseeds both."""
        self.host.manual_seed(seed)
        self.device.manual_seed(seed)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns both RNG states."""
        own = {} if self.device is self.host else {"device_generator": self.device.get_state()}
        return {"generator": self.host.get_state(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`, on any device.

        RNG states differ between kinds of device: if the state is another kind's, the device's RNG gets a seed drawn
        by the host's.
        """
        self.host.set_state(state["generator"])
        if self.device is self.host:
            return
        saved = state.get("device_generator")
        if saved is not None and saved.shape == self.device.get_state().shape:
            self.device.set_state(saved)
        else:
            self.device.manual_seed(int(torch.randint(1 << 62, (), generator=self.host)))
