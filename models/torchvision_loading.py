"""torchvision, also beside a torch without CUDA. Whoever needs it, or a library that imports it, calls this first.

The wheels of torchvision are linked to CUDA. Beside a CPU build of torch their compiled part does not load, which
torchvision itself forgives; but its Python part then registers shapes for two operators that only the compiled part
defines, and `import torchvision` ends with "operator torchvision::nms does not exist". So does the import of what
builds on it, such as the vision models of transformers and timm.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

MISSING = "operator torchvision::nms does not exist"
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_DEFINED: list[torch.library.Library] = []  # operators last as long as the object that defined them


def load_torchvision() -> ModuleType:
    """Imports torchvision and returns it: transforms, models, `make_grid` and the like work on every device.

    Where the compiled part does not load, what needs it refuses when it is called: `ops.nms`, `io.read_image`.

    Raises:
        ImportError: if torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        # Only then: where the compiled part is there, it defines them, and a name can be defined only once.
        if str(error) != MISSING:
            raise
    library = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        library.define(operator)
    _DEFINED.append(library)
    return importlib.import_module("torchvision")
