"""A device that is none: its tensors lie in main memory, and refuse all that a GPU's tensors would refuse.

Mixing with tensors in main memory, `.numpy()`, indexing from afar, and generators of elsewhere raise; only `.to`,
`.cpu`, `copy_` and single numbers cross over, and each crossing is counted. It is torch's PrivateUse1 backend, written
in Python: factories are registered for it, and every other operation runs on what the tensor holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
FREE_BYTES = 1 << 30
aten = torch.ops.aten

crossings: Counter[str] = Counter()
"""Copies to the device and from it, single numbers read, and results whose shape only the device knows, since the last
`clear`. A GPU has to be waited for in the last three cases."""
_SHAPED_BY_VALUES = {
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
}


class ImplicitTransferError(RuntimeError):
    """Something was computed from tensors of two places."""


class _Backend:
    """What torch asks of the module of a device."""

    free_bytes = FREE_BYTES

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def synchronize(self, device: object = None) -> None:
        crossings["waits"] += 1

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return self.free_bytes, 2 * FREE_BYTES


class StandInTensor(torch.Tensor):
    """Holds a tensor in main memory, `raw`, and claims to be elsewhere."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> StandInTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        tensor.raw = raw
        return tensor

    def __repr__(self) -> str:
        return f"StandInTensor({self.raw})"

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: StandInTensor) -> None:
        torch.Tensor.data.__set__(self, value)
        self.raw = value.raw

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch.inference_mode(False):  # a view of an ordinary tensor is one, whatever mode it is made in
            return _run(func, args, kwargs or {})


class StandInGenerator(torch.Generator):
    """A generator of the host that claims to be elsewhere."""

    known: ClassVar[dict[int, StandInGenerator]] = {}
    """By address: operations see another object in Python for the same generator. Kept, so that none is reused."""

    def __init__(self) -> None:
        self.known[self._cdata] = self

    @property
    def device(self) -> torch.device:
        return DEVICE


_TorchGenerator = torch.Generator


class _Generator(_TorchGenerator):
    def __new__(cls, device: Any = "cpu") -> Any:
        is_here = torch.device(device).type == NAME
        return StandInGenerator() if is_here else _TorchGenerator(device)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, StandInTensor) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs one operation of which at least one tensor is here."""
    if func is aten._to_copy.default:
        return _copy_to(*args, **kwargs)
    if func is aten.copy_.default:
        target, source = args[:2]
        if isinstance(target, StandInTensor) != isinstance(source, StandInTensor):
            crossings["up" if isinstance(target, StandInTensor) else "down"] += 1
        _raw(target).copy_(_raw(source))
        return target
    if func is aten._local_scalar_dense.default:
        crossings["numbers"] += 1
        return func(*map(_raw, args))
    crossings["shapes"] += func in _SHAPED_BY_VALUES or _has_mask(func, args)
    if _is_composite(func):
        result = func.decompose(*args, **kwargs)  # without gradients these arrive whole
        if result is not NotImplemented:
            return result
    return _on_raw(func, args, kwargs)


def _has_mask(func: Any, args: Any) -> bool:
    is_indexing = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_)
    return is_indexing and any(index is not None and index.dtype == torch.bool for index in args[1])


def _on_raw(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs an operation on what the tensors hold, none of which may lie elsewhere."""
    own: dict[int, StandInTensor] = {}

    def raw(tensor: Tensor) -> Tensor:
        if isinstance(tensor, StandInTensor):
            own[id(tensor.raw)] = tensor
            return tensor.raw
        if tensor.dim():
            message = f"{func}: a tensor {tuple(tensor.shape)} in main memory among tensors on {DEVICE}"
            raise ImplicitTransferError(message)
        return tensor

    args = [_each_tensor(raw, value) for value in args]
    kwargs = {name: _each_tensor(raw, value) for name, value in kwargs.items()}
    _check_generator(func, kwargs)
    device = kwargs.pop("device", None)
    kwargs.pop("pin_memory", None)
    if device is not None and torch.device(device).type != NAME:
        message = f"{func}: makes a tensor on {device} from one on {DEVICE}"
        raise ImplicitTransferError(message)
    # An operation in place returns what it was given.
    return _each_tensor(lambda made: own[id(made)] if id(made) in own else StandInTensor(made), func(*args, **kwargs))


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _each_tensor(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Returns a value with each of its tensors changed; torch's `tree_map` takes longer than the operation."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_each_tensor(change, each) for each in value)
    return value


def _check_generator(func: Any, kwargs: dict[str, Any]) -> None:
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata not in StandInGenerator.known:
        message = f"{func}: a generator in main memory for tensors on {DEVICE}"
        raise ImplicitTransferError(message)


def _copy_to(source: Tensor, *, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
    target = source.device if device is None else torch.device(device)
    raw = aten._to_copy.default(_raw(source), **kwargs)
    is_here, was_here = target.type == NAME, isinstance(source, StandInTensor)
    if is_here != was_here:
        crossings["up" if is_here else "down"] += 1
    return StandInTensor(raw) if is_here else raw


def _factory(op: Any) -> Callable[..., Tensor]:
    def make(*args: Any, **kwargs: Any) -> Tensor:
        _check_generator(op, kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
        return StandInTensor(op(*args, **kwargs))

    return make


def _factories() -> Iterator[tuple[str, Any]]:
    """Yields every operation that makes a tensor on a device out of no other tensor."""
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::"):
            continue
        name, _, overload = full.removeprefix("aten::").partition(".")
        try:
            op = getattr(getattr(aten, name), overload or "default")
        except (AttributeError, RuntimeError):
            continue
        schema = op._schema
        makes_one = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
        has_device = any(argument.name == "device" for argument in schema.arguments)
        if makes_one and has_device and not any("Tensor" in str(a.type) for a in schema.arguments):
            yield full.removeprefix("aten::"), op


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    crossings["up" if isinstance(target, StandInTensor) else "down"] += 1
    _raw(target).copy_(_raw(source))
    return target


_CAST = ("linear", "matmul", "addmm", "mm", "bmm", "baddbmm", "conv2d", "conv_transpose2d.input")
"""Operations that autocast makes bfloat16, as far as networks here use them; named as torch names them."""


def _autocast(op: Any) -> Callable[..., Any]:
    def cast(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            dtype = torch.get_autocast_dtype(NAME)
            return op(*_each_tensor(lambda x: x.to(dtype) if x.is_floating_point() else x, args))

    return cast


def _register() -> list[torch.library.Library]:
    _setup_privateuseone_for_python_backend(NAME, backend_module=backend)
    kernels = torch.library.Library("aten", "IMPL")
    for name, op in _factories():
        kernels.impl(name, _factory(op), "PrivateUse1")
    kernels.impl("_copy_from", _copy_from, "PrivateUse1")
    for name in _CAST:
        base, _, overload = name.partition(".")
        kernels.impl(name, _autocast(getattr(getattr(aten, base), overload or "default")), "AutocastPrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return [kernels, others]


backend = _Backend()
_libraries = _register()
DEVICE = torch.device(NAME, 0)


@contextmanager
def generators() -> Iterator[None]:
    """Lets `torch.Generator` make generators for the stand-in, which backends written in Python cannot."""
    torch.Generator = _Generator
    try:
        yield
    finally:
        torch.Generator = _TorchGenerator
