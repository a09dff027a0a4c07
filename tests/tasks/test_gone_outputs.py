"""What took hours is not made anew where DVC's cache holds it; see `rulka.stage.check_not_cached`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rulka.artifacts import META_FILE, WEIGHTS_FILE
from rulka.folders import AGENT, ENCODER, POLICY
from rulka.stage import StageInputError
from tasks import clone, pretrain, train

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("left", [None, META_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize(("out", "main"), [(ENCODER, pretrain.main), (POLICY, clone.main), (AGENT, train.main)])
def test_a_long_stage_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Path, main: Callable[[], None], left: str | None
) -> None:
    for file in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rulka.stage.is_cached", lambda path: path == out)
    if left is not None:
        out.mkdir(parents=True)
        (out / left).touch()
    with pytest.raises(StageInputError, match=f"^{out}.* is not there, and DVC's cache holds the one of before"):
        main()
