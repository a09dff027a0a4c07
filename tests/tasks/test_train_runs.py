"""Which run a training belongs to, and what becomes of it after its end; the training itself takes no time here."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import rulka.training.agent_run as stage
from rulka.contracts.artifacts import ArtifactError, load_artifact
from rulka.contracts.schedule import Schedule
from rulka.params import Params
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.greedy_check import Candidate, CheckResult
from rulka.runtime.learner_loop import Outcome, RunState
from rulka.runtime.live import METRICS_FILE
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.runtime.specs import RunSpec
from rulka.training.agent_run import AgentRun, Folders
from rulka.training.old_runs import FINAL_FOLDER
from tasks.train import train
from tests.tasks.conftest import changed

ROOT = Path(__file__).parents[2]
NOW_S = 1_800_000_000.0


@pytest.fixture
def params(small_params: Params) -> Params:
    return changed(small_params, "train", compared=())


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trainings that were really run, each of which took no time."""
    labels: list[str] = []

    def train_at_once(spec: RunSpec) -> Outcome:
        labels.append(spec.label)
        (spec.folder / METRICS_FILE).write_text('{"env_steps": 1}\n', encoding="utf-8")
        Checkpoints(spec.folder).save(1, {"number": len(labels)})
        ExperienceFiles(spec.folder, 0).write({0: {}})
        result = CheckResult(1, 0.0, None, 0.0, 1.0, None)
        best = Candidate(len(labels) - 1, result, spec.make_learner().network.state_dict())
        return Outcome(
            best, "max_env_steps", RunState(env_steps=1, marks=[[0, 5], [1, len(labels)]]), None, "float32", "yes"
        )

    monkeypatch.setattr(stage, "train_run", train_at_once)
    return labels


def run_of(algorithm: Any, params: Params, folders: Folders) -> str:
    return AgentRun(algorithm, params, folders).folder.name


def test_a_finished_run_is_delivered_again_and_never_emptied(
    params: Params, folders: Folders, trained: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever became of the output: DVC was killed before its record, it was deleted, parameters changed and back."""
    train(params, folders=folders)
    first = load_artifact(folders.out, "agent").provenance
    (folder,) = (path for path in folders.runs.iterdir())
    left = {path for path in folder.rglob("*") if path.is_file()}
    shutil.rmtree(folders.out)
    train(params, folders=folders)
    assert load_artifact(folders.out, "agent").provenance == first
    assert f"{folder.as_posix()} is trained to its end and delivered again. To train anew, remove it" in caplog.text
    assert trained == ["train ppo"]
    kept = "ppo keeps its initial weights: none that it learned raced better"
    assert caplog.text.count(kept) == 1
    train(changed(params, "train", seed=9), folders=folders)
    assert caplog.text.count(kept) == 1, "the second run's were learned"
    assert trained == ["train ppo", "train ppo"]
    assert {path for path in folder.rglob("*") if path.is_file()} == left
    train(params, folders=folders)
    assert load_artifact(folders.out, "agent").provenance == first
    assert trained == ["train ppo", "train ppo"]
    shutil.rmtree(folder)
    train(params, folders=folders)
    assert trained == ["train ppo", "train ppo", "train ppo"], "as its message says"


def test_weights_that_an_equal_run_did_not_have_are_said(
    params: Params, folders: Folders, trained: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    train(params, folders=folders)
    assert "now the weights" not in caplog.text
    (folder,) = folders.runs.iterdir()
    shutil.rmtree(folder)
    train(params, folders=folders)
    assert len(trained) == 2
    expected = "came of equal parameters, inputs and code, and now the weights differ at 1 environment steps; at 0"
    assert expected in caplog.text


def test_a_full_disk_while_the_agent_is_copied_loses_nothing(
    params: Params, folders: Folders, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copyfile

    def full(source: Path, target: Path) -> None:
        if FINAL_FOLDER in source.parts:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left") as refused:
        train(params, folders=folders)
    assert refused.value.errno == errno.ENOSPC, "the stage tells from it what to say"
    monkeypatch.setattr(shutil, "copyfile", copy)
    train(params, folders=folders)
    assert trained == ["train ppo"]
    load_artifact(folders.out, "agent")


@pytest.mark.parametrize("name", ["weights.safetensors", "meta.json"])
def test_a_damaged_agent_is_named_and_made_again_from_the_checkpoint(
    params: Params, folders: Folders, trained: list[str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    train(params, folders=folders)
    (folder,) = (path for path in folders.runs.iterdir())
    assert Checkpoints(folder).load_newest() is not None, "there is something to go on from"
    data = bytearray((folder / FINAL_FOLDER / name).read_bytes())
    data[len(data) // 2] ^= 0x10
    (folder / FINAL_FOLDER / name).write_bytes(data)
    with pytest.raises(ArtifactError):
        load_artifact(folder / FINAL_FOLDER, "agent")
    train(params, folders=folders)
    assert "a trained agent is damaged, and is made again from the last checkpoint" in caplog.text
    assert trained == ["train ppo", "train ppo"]
    load_artifact(folders.out, "agent")


def test_a_second_training_of_the_same_is_refused(params: Params, folders: Folders, trained: list[str]) -> None:
    """Locks are of an open file, so that another process is no other case."""
    folder = folders.runs / run_of("ppo", params, folders)
    with locked(folder):
        before = sorted(path.name for path in folder.iterdir())
        with pytest.raises(RunInUseError, match=f"ppo-.* is in use: process {os.getpid()} trains there"):
            train(params, folders=folders)
        assert sorted(path.name for path in folder.iterdir()) == before
    assert trained == []
    train(params, folders=folders)
    assert trained == ["train ppo"]


def unfinished(folders: Folders, name: str, age_s: float) -> Path:
    """Makes the folder of a run with a checkpoint, experience, metrics, and a file that was being written."""
    folder = folders.runs / name
    saved = Checkpoints(folder).save(5, {"number": 5})
    ExperienceFiles(folder, 0).write({0: {}})
    (folder / METRICS_FILE).write_text('{"env_steps": 5}\n', encoding="utf-8")
    (folder / "checkpoint-000000000009.tmp").write_bytes(b"half")
    for file in (saved, *ExperienceFiles(folder, 0).folder.iterdir()):
        os.utime(file, (NOW_S - age_s, NOW_S - age_s))
    return folder


def test_the_newest_old_run_of_each_algorithm_is_kept_and_others_free_their_space(
    params: Params, folders: Folders, trained: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    newest, older, oldest = (unfinished(folders, f"ppo-{age:016x}", 100.0 * age) for age in (1, 2, 3))
    alive, iqn = unfinished(folders, f"ppo-{4:016x}", 400.0), unfinished(folders, f"iqn-{5:016x}", 500.0)
    unknown = unfinished(folders, "my-own-folder", 600.0)
    with locked(alive):
        train(params, folders=folders)
    assert trained == ["train ppo"]
    for folder in (newest, alive, iqn, unknown):
        assert Checkpoints(folder).files(), folder
        assert ExperienceFiles(folder, 0).folder.exists(), folder
    for folder in (older, oldest):
        assert Checkpoints(folder).files(), "what was learned stays"
        assert not ExperienceFiles(folder, 0).folder.exists()
        assert (folder / METRICS_FILE).exists(), "metrics stay"
    assert not any(list(folder.glob("*.tmp")) for folder in (newest, older, oldest, iqn))
    assert all(list(folder.glob("*.tmp")) for folder in (alive, unknown)), "somebody may be writing there"
    assert caplog.text.count("of experience of an old run went, all else stays") == 2
    assert f"{newest.as_posix()}, of other parameters, inputs or code, is kept" in caplog.text


def test_parameters_and_inputs_that_an_algorithm_reads_are_in_its_fingerprint(
    small_params: Params, folders: Folders, tmp_path: Path
) -> None:
    ppo, iqn = run_of("ppo", small_params, folders), run_of("iqn", small_params, folders)
    assert ppo.startswith("ppo-")
    extras, tau = ({"noisy_sigma": 0.5}, {"tau_embedding": 4})
    noisy, coarse = (small_params.network.iqn.model_copy(update=update) for update in (extras, tau))
    for section, name, value in [("train", "seed", 9), ("rewards", "per_metre", 0.06), ("network", "float_hidden", 8)]:
        other = changed(small_params, section, **{name: value})
        assert run_of("ppo", other, folders) != ppo, name
        assert run_of("iqn", other, folders) != iqn, name
    for section, name, value in [("iqn", "n_steps", 4), ("network", "iqn", noisy), ("network", "iqn", coarse)]:
        other = changed(small_params, section, **{name: value})
        assert run_of("ppo", other, folders) == ppo, f"PPO does not read {name}"
        assert run_of("iqn", other, folders) != iqn, name
    other = changed(small_params, "ppo", epochs=5)
    assert run_of("ppo", other, folders) != ppo
    assert run_of("iqn", other, folders) == iqn, "IQN does not read ppo"
    assert run_of("ppo", changed(small_params, "train", compared=()), folders) == ppo, "it trains just the same"
    # One changed pixel of the demonstrations: IQN is shown them, PPO is not.
    frames = tmp_path / "frames"
    shutil.copytree(folders.frames, frames)
    image = next(frames.rglob("image.npy"))
    data = bytearray(image.read_bytes())
    data[-1] ^= 1
    image.write_bytes(data)
    other = Folders(folders.agent_init, folders.races, frames, folders.runs, folders.out)
    assert run_of("ppo", small_params, other) == run_of("ppo", small_params, folders)
    assert run_of("iqn", small_params, other) != run_of("iqn", small_params, folders)
    alone = changed(small_params, "iqn", demonstration_share=Schedule.model_validate(0.0))
    assert run_of("iqn", alone, other) == run_of("iqn", alone, folders)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code, which stages find in the current folder."""
    folder = tmp_path / "project"
    for name in ("tasks", "rulka", "models"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, folder)
    monkeypatch.chdir(folder)
    return folder


def test_edited_code_makes_runs_begin_anew(small_params: Params, folders: Folders, project: Path) -> None:
    """Of all algorithms, where it decides a result; what only shows one does not."""
    rooms = ("agents/ppo/learner", "runtime/learner_loop", "envs/rewards", "simulator/physics")
    decides = {"models/iqn.py", *(f"rulka/{name}.py" for name in rooms)}
    shows = {f"rulka/{name}.py" for name in ("machine/progress", "runtime/live", "report/race_plots")}
    for file in (*decides, *shows):
        before = [run_of(name, small_params, folders) for name in ("ppo", "iqn")]
        (project / file).write_text((project / file).read_text(encoding="utf-8") + "\nNEW = 1\n", encoding="utf-8")
        after = [run_of(name, small_params, folders) for name in ("ppo", "iqn")]
        assert [one != other for one, other in zip(before, after, strict=True)] == [file in decides] * 2, file
