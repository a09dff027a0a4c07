import subprocess
import sys
from pathlib import Path

import pytest

from flows.server import Occupant
from rulka import doctor
from rulka.errors import UserError

ROOT = Path(__file__).parents[1]
URL = "http://127.0.0.1:4200/api"


def findings(found: str = "nobody") -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine(lambda: (URL, found))}


def test_a_missing_server_is_named_among_the_rest() -> None:
    def nowhere() -> tuple[str, str]:
        message = "no PREFECT_API_URL is set"
        raise UserError(message)

    found = {finding.name: finding for finding in doctor.examine(nowhere)}
    assert (found["server"].is_fine, found["server"].text) == (False, "no PREFECT_API_URL is set")
    assert found["python"].is_fine


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = findings()
    assert all(good[name].is_fine for name in ("python", "prefect", "params.yaml", "folder"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "constraints.txt").write_text("prefect==0.1\n")
    bad = findings()
    assert "instead of 0.1; run `make setup`" in bad["prefect"].text
    assert not bad["params.yaml"].is_fine
    assert not bad["versioning"].is_fine


@pytest.mark.parametrize("found", Occupant)
def test_a_port_held_by_somebody_else_is_wrong(found: Occupant) -> None:
    server = findings(found)["server"]
    assert server.is_fine == (found in (Occupant.NOBODY, Occupant.OUR_SERVER))
    assert server.is_fine or f"is taken by {found}; end it, or choose another port" in server.text


def test_what_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (".dvc", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    # Root may write everywhere, so the answer is given here.
    monkeypatch.setattr("os.access", lambda name, _mode: Path(name).name != "data")
    found = findings()
    assert found["folder"].text.startswith(f"data in {tmp_path}: not writable")
    assert not found["server"].is_fine


def test_a_broken_prefect_is_a_finding_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "prefect.toml").write_text("[api\n")
    answer = subprocess.run(
        [sys.executable, "-m", "rulka.cli", "doctor"],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "WRONG server: Prefect cannot be used: " in answer.stdout
