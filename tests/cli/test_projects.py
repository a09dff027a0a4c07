"""`rulka new`: a project folder outside a checkout, from this checkout and from a wheel."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from rulka import params
from rulka.cli import projects
from rulka.cli.projects import FILES, make_project
from rulka.machine.errors import UserError
from rulka.stages.graph import CODE_FOLDERS, GRAPH_FILE
from tests.cli.conftest import call

ROOT = Path(__file__).parents[2]


def test_a_wheel_carries_what_a_project_has() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {path.as_posix(): f"rulka/project/{path.as_posix()}" for path in FILES}
    assert set(CODE_FOLDERS) <= set(wheel["packages"])


def test_a_new_project_has_all_and_what_is_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / ".new-killed").mkdir(parents=True)
    written = make_project(folder)
    assert set(written) == {path.parts[0] for path in FILES} | set(CODE_FOLDERS)
    assert all((folder / path).exists() for path in FILES)
    assert not (folder / ".new-killed").exists()
    assert (folder / "tasks").resolve() == ROOT / "tasks"
    assert make_project(folder) == []
    folder = tmp_path / "mine"
    make_project(folder)
    (folder / "params.yaml").write_text("mine")
    (folder / "prefect.toml").unlink()
    (folder / "rulka").unlink()
    (folder / "rulka").symlink_to(tmp_path / "gone")
    assert make_project(folder) == ["prefect.toml", "rulka"]
    assert (folder / "params.yaml").read_text() == "mine"
    assert (folder / "rulka").resolve() == ROOT / "rulka"


def test_edits_of_a_checkout_that_are_copied_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(f"new {tmp_path / 'shipped'}") == 0
    assert "has the edits of" not in capsys.readouterr().out
    edited = tmp_path / "params.yaml"
    edited.write_text((ROOT / "params.yaml").read_text().replace("max_race_s: 120.0", "max_race_s: 121.0"))
    monkeypatch.setattr(projects, "packaged_file", lambda path: edited if path.name == edited.name else ROOT / path)
    monkeypatch.setattr(params, "packaged_file", lambda _: edited)
    assert call(f"new {tmp_path / 'edited'}") == 0
    assert f"params.yaml has the edits of {edited}" in capsys.readouterr().out


def test_other_folders(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds something else than a project"):
        make_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / ".git").mkdir()
    make_project(tmp_path)
    assert not (tmp_path / ".dvc/config.local").exists()


def source_archive(folder: Path) -> Path:
    """Makes the archive of the source, as `make dist` does, where an experiment's folder links to the code."""
    tools, made, checkout = folder / "tools", folder / "source", folder / "checkout"
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(lambda name: (ROOT / name).is_file(), names):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    (checkout / "runs" / "experiments" / "train").mkdir(parents=True)
    for name in CODE_FOLDERS:
        (checkout / "runs" / "experiments" / "train" / name).symlink_to(checkout / name)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, "hatchling"]
    subprocess.run(install, check=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", made]
    subprocess.run(build, cwd=checkout, env={**os.environ, "PYTHONPATH": str(tools)}, check=True)
    (archive,) = made.glob("*.tar.gz")
    return archive


@pytest.mark.slow
@pytest.mark.parametrize("made_of", ["the checkout", "the archive of its source"])
def test_a_wheel_runs_stages_outside_a_checkout(tmp_path: Path, made_of: str) -> None:
    """Needs the registry, for the tools that build."""
    source = ROOT if made_of == "the checkout" else source_archive(tmp_path)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert "rulka/project/.dvc/config" in packed.namelist()
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(packages)
    # Everything that it needs, from the environment of this test; but not this checkout.
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = tmp_path / "venv" / "bin" / "python"
    make = "import sys; from rulka.cli import main; sys.argv = ['rulka', 'new', 'mine']; main()"
    subprocess.run([python, "-c", make], cwd=tmp_path, check=True)
    project = tmp_path / "mine"
    assert (project / "rulka").resolve() == (packages / "rulka").resolve()
    values = yaml.safe_load((project / "params.yaml").read_text())
    values["races"] |= {"num_demonstrations": 2, "reference_decisions": 0}
    (project / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    path = f"{python.parent}:/usr/bin:/bin"
    repro = [python, "-m", "dvc", "repro", "capture"]
    subprocess.run(repro, cwd=project, env={"PATH": path, "HOME": str(tmp_path)}, check=True)
    assert (project / "data/frames/index.json").is_file()
    assert GRAPH_FILE.name in {path.name for path in project.iterdir()}
