"""torchvision can be imported beside every torch."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from models.encoders.backbone import load_torchvision
from tests.waiting import PATIENCE_S


@pytest.mark.slow
def test_transforms_and_models_work() -> None:
    """In a process where it is not loaded yet; in the fast tier transformers imports it so, see test_backbone.py."""
    code = (
        "import torch\n"
        "from models.encoders.backbone import load_torchvision\n"
        "torchvision = load_torchvision()\n"
        "assert load_torchvision() is torchvision\n"
        "from torchvision.transforms import v2\n"
        "image = torch.zeros(2, 1, 64, 64)\n"
        "features = torchvision.models.resnet18()(image.expand(-1, 3, -1, -1))\n"
        "print(*v2.RandomResizedCrop(32)(image).shape, *features.shape)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["2", "1", "32", "32", "2", "1000"]


def test_another_error_of_the_import_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> ModuleType:
        message = "torch and torchvision do not fit"
        raise RuntimeError(message)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="torch and torchvision do not fit"):
        load_torchvision()
