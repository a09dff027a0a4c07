"""torchvision can be imported beside every torch; each test in a process of its own, where it is not loaded yet."""

import subprocess
import sys


def run(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_transforms_and_models_work() -> None:
    code = (
        "import torch\n"
        "from models.torchvision_loading import load_torchvision\n"
        "torchvision = load_torchvision()\n"
        "assert load_torchvision() is torchvision\n"
        "from torchvision.transforms import v2\n"
        "image = torch.zeros(2, 1, 64, 64)\n"
        "features = torchvision.models.resnet18()(image.expand(-1, 3, -1, -1))\n"
        "print(*v2.RandomResizedCrop(32)(image).shape, *features.shape)\n"
    )
    assert run(code).split() == ["2", "1", "32", "32", "2", "1000"]


def test_where_the_import_succeeds_nothing_is_defined() -> None:
    code = (
        "import sys, types\n"
        "sys.modules['torchvision'] = whole = types.ModuleType('torchvision')\n"
        "from models import torchvision_loading\n"
        "assert torchvision_loading.load_torchvision() is whole\n"
        "print(len(torchvision_loading._DEFINED))\n"
    )
    assert run(code) == "0\n"


def test_another_error_of_the_import_is_not_hidden() -> None:
    code = (
        "import importlib\n"
        "from models.torchvision_loading import load_torchvision\n"
        "def broken(name):\n"
        "    raise RuntimeError('torch and torchvision do not fit')\n"
        "importlib.import_module = broken\n"
        "try:\n"
        "    load_torchvision()\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert run(code) == "torch and torchvision do not fit\n"
