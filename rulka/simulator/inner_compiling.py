"""A compiler for kernels that only kernels call.

numba would optimise each of them, then once more within each of its callers, and make machine code of it that nobody
runs. Here LLVM sees them for the first time in the outermost kernel, all at once.

Subclasses of numba's own classes, private ones among them; `pyproject.toml` therefore pins numba to one minor version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue] compiled, without a stub
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering


class InnerLibrary(JITCodeLibrary):
    """Intermediate code to be linked into that of callers: neither optimised nor machine code."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Leaves that to the outermost kernel."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(NativeLowering):
    """Lowers a kernel and stops before machine code; makes it known to callers."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> Literal[True]:
        """Sets `state.cr` and `state.library`."""
        state.library = InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        about = lowered.fndesc
        # What stands for the kernel in numba's registry. There is no code at its address: see `InnerKernel`.
        name = about.qualname.split(".")[-1]
        function = _dynfunc.make_function(about.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(function, about, [state.library])
        state["cr"] = lowered._replace(cfunc=function)
        return True


class InnerCompiler(CompilerBase):
    """numba's compiler with `InnerLowering` at its end."""

    def define_pipelines(self) -> list[PassManager]:
        """Returns the one pipeline."""
        usual = DefaultPassBuilder.define_nopython_pipeline(self.state)
        inner = PassManager("inner")
        for step, meaning in usual.passes:
            inner.add_pass(InnerLowering if step is NativeLowering else step, meaning)
        inner.finalize()
        return [inner]


class InnerKernel(CPUDispatcher):
    """A kernel for kernels."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        """Wraps a Python function; the options are those of `numba.njit`."""
        inner = {"nopython": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        super().__init__(function, targetoptions=options | inner, pipeline_class=InnerCompiler)

    def __call__(self, *_arguments: Any, **_named: Any) -> None:
        """Refuses: there is no machine code to run."""
        message = f"only kernels can call {self.py_func.__qualname__}; call it within a function under numba.njit"
        raise TypeError(message)
