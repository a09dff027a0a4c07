"""Which device is taken, and what is said of those that cannot be; the stand-in refuses what a GPU refuses."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rulka.machine import device
from rulka.machine.device import (
    CPU,
    DEVICE_VARIABLE,
    NUM_THREADS,
    choose_device,
    upload_ahead,
    use_device,
    use_threads,
)
from rulka.machine.errors import UserError
from rulka.operations import doctor
from rulka.operations.doctor import State, findings_of

HERE = torch.ones(3)

REFUSED: tuple[Callable[[Tensor], object], ...] = (
    lambda there: there + HERE,
    lambda there: HERE * there,
    lambda there: torch.cat([there, HERE]),
    lambda there: torch.where(there > 0, there, HERE),
    lambda there: there.add_(HERE),
    lambda there: torch.nn.Linear(3, 2)(there),
    lambda there: HERE.index_select(0, there.long()),
    lambda there: torch.rand(3, device=there.device, generator=torch.Generator()),
    lambda there: torch.randperm(3, device=there.device, generator=torch.Generator()),
    lambda there: there.numpy(),
)


def test_an_implicit_transfer_is_refused(device: torch.device) -> None:
    for do in REFUSED:
        with pytest.raises((RuntimeError, TypeError)):
            do(torch.ones(3, device=device))


ROOT = Path(__file__).parents[2]
GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)


def test_a_name_goes_before_the_variable_and_without_a_gpu_the_cpu_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "_present", list)
    assert choose_device() == (CPU, "there is no GPU", "")
    assert use_device() == CPU
    assert capsys.readouterr().err == "", "there is nothing to choose"
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda:7")
    assert choose_device("cpu") == (CPU, "named by --device", "")
    monkeypatch.setenv(DEVICE_VARIABLE, "cpu")
    assert choose_device() == (CPU, "named by RULKA_DEVICE", "")


@pytest.mark.parametrize("name", ["gpu", "CUDA", "cuda:", "cuda:x", "xpu", "cpu:0", "mps:0", "meta"])
def test_what_is_no_device_is_refused_with_all_that_are(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, name)
    for given, by in ((name, "--device"), (None, DEVICE_VARIABLE)):
        said = f"{name!r}, which {by} names, is no device: known are auto, cpu, cuda, cuda:1"
        with pytest.raises(UserError, match=re.escape(said)):
            choose_device(given)


@pytest.mark.parametrize("has_driver", [False, True])
@pytest.mark.parametrize("has_smi", [False, True])
def test_another_torch_is_advised_only_where_the_system_shows_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_driver: bool, has_smi: bool
) -> None:
    def refuse(*_shape: int, **_settings: object) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch, "ones", refuse)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "_NVIDIA_DRIVER", tmp_path if has_driver else tmp_path / "none")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if has_smi else None)
    said = "this torch was built for the CPU; install" if has_driver or has_smi else "this machine shows no NVIDIA GPU"
    with pytest.raises(UserError, match=f"cuda, which --device names, cannot be used: {said}"):
        choose_device("cuda")


REASONS = (
    ("Torch not compiled with CUDA enabled", AssertionError, "this torch was built for the CPU; install a torch"),
    (
        "The NVIDIA driver on your system is too old (found version 11040).",
        RuntimeError,
        "its driver is too old for this torch; update the driver",
    ),
    (
        "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be",
        RuntimeError,
        "this torch holds no kernels for its architecture",
    ),
    ("Found no NVIDIA driver on your system.", RuntimeError, "no NVIDIA driver is loaded"),
    ("CUDA out of memory. Tried to allocate 20.00 MiB.", torch.OutOfMemoryError, "its memory is full; end what else"),
    ("CUDA error: invalid device ordinal", RuntimeError, "there is no GPU of that number"),
    ("something\n  new", RuntimeError, "something new"),
)


@pytest.mark.parametrize(("error", "kind", "said"), REASONS)
def test_an_unusable_gpu_is_an_error_where_it_is_named_and_otherwise_left_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: str,
    kind: type[Exception],
    said: str,
) -> None:
    """With what is wrong with it, and what to do, from what torch says."""

    def fail(*_shape: int, **_settings: object) -> None:
        raise kind(error)

    monkeypatch.setattr(device, "_present", lambda: [GPU])
    monkeypatch.setattr(torch, "ones", fail)
    with pytest.raises(UserError, match=re.escape(f"cuda, which --device names, cannot be used: {said}")):
        choose_device("cuda")
    assert use_device() == CPU
    assert capsys.readouterr().err.startswith(f"device: cpu, because cuda:0 cannot be used: {said}")
    found = doctor.device()
    assert (found.state, said in found.text) == (State.NOTE, True)


def test_a_gpu_that_computes_wrongly_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.zeros(shape))
    with pytest.raises(UserError, match="it computes wrongly"):
        choose_device("cuda")


def test_doctor_calls_a_named_device_wrong_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, "teapot")
    (found,) = findings_of("device", doctor.device)
    assert (found.state, "'teapot', which RULKA_DEVICE names, is no device" in found.text) == (State.WRONG, True)


def test_one_module_asks_what_devices_there_are() -> None:
    asks = re.compile(r"torch\.(cuda|mps|accelerator|xpu)\b|backends\.(cuda|mps|cudnn)|RULKA_DEVICE\"")
    files = [file for room in ("flows", "tasks", "rulka", "models") for file in (ROOT / room).rglob("*.py")]
    asking = {file.relative_to(ROOT).as_posix() for file in files if asks.search(file.read_text(encoding="utf-8"))}
    assert asking == {"rulka/machine/device.py"}


@pytest.mark.gpu
def test_a_gpu_is_taken_where_one_works() -> None:
    chosen = choose_device()
    assert chosen.device.type != "cpu"
    assert chosen.why.startswith("a GPU that works")


class _Numbers(NamedTuple):
    value: torch.Tensor


def test_a_batch_is_made_while_the_last_is_computed_with() -> None:
    """By another thread, one batch ahead and no further; what goes wrong there goes wrong here, in its turn."""
    makers: list[int] = []

    def batches() -> Iterator[_Numbers]:
        for number in range(4):
            makers.append(threading.get_ident())
            yield _Numbers(torch.full((2,), float(number)))
        message = "no more"
        raise ValueError(message)

    coming = upload_ahead(batches(), CPU)
    values = [next(coming).value.tolist()]
    assert len(makers) <= 2
    with pytest.raises(ValueError, match="no more"):
        values.extend(batch.value.tolist() for batch in coming)
    assert values == [[number, number] for number in (0.0, 1.0, 2.0, 3.0)]
    assert threading.get_ident() not in makers


def test_threads_are_as_many_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """They divide sums, and so decide what is learned."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    try:
        use_threads()
        assert torch.get_num_threads() == NUM_THREADS
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        use_threads()
        assert torch.get_num_threads() == 1, "what people set holds"
    finally:
        torch.set_num_threads(1)
