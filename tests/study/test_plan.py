"""What an experiment's file may say, and which work its cells share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.machine.errors import UserError
from rulka.stages.graph import CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE, PARAMS_FILE
from rulka.study.plan import Plan, jobs_of, read_plan

ROOT = Path(__file__).resolve().parents[2]
FILE: dict[str, Any] = {
    "title": "A test",
    "question": "Is it read?",
    "cost": "Nothing.",
    "budget": {"env_steps": 100_000},
    "seeds": [1, 2],
    "baseline": "plain",
    "overrides": {"train": {"compared": []}, "ppo": {"gamma": 0.99}},
    "variants": {
        "plain": {},
        "slow": {"ppo": {"gamma": 0.9}},
        "narrow": {"network": {"dense_hidden": 64}},
        "small eye": {"observation": {"height": 48, "width": 48}},
    },
}


def backbone(folder: str) -> dict[str, Any]:
    return {"kind": "backbone", "source": {"kind": "folder", "path": folder}}


def read(tmp_path: Path, **changes: object) -> Plan:
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(FILE | changes, sort_keys=False), encoding="utf-8")
    return read_plan(path)


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_cells_are_variants_times_seeds_and_share_what_does_not_differ(tmp_path: Path) -> None:
    plan = read(tmp_path)
    assert plan.name == "test"
    assert [cell.name for cell in plan.cells] == [f"{name}/{seed}" for name in FILE["variants"] for seed in (1, 2)]
    assert [cell.params.train.seed for cell in plan.cells] == [1, 2] * 4
    assert {cell.params.train.max_env_steps for cell in plan.cells} == {100_000}
    assert [cell.params.ppo.gamma.values[0] for cell in plan.cells if cell.variant == "slow"] == [0.9, 0.9]
    # `transfer` reads section `train`, as every one of its cells does: its seed lies there; and no algorithm's.
    jobs = [job.name.partition("-")[0] for job in jobs_of(read(tmp_path).cells)]
    counts = {stage: jobs.count(stage) for stage in dict.fromkeys(jobs)}
    assert counts == {"races": 1, "capture": 2, "pretrain": 2, "clone": 3, "transfer": 6, "train": 8, "evaluate": 8}
    jobs = read(tmp_path).cells[0].jobs
    assert jobs["train"].inputs == {
        "data/agent_init": jobs["transfer"].folder,
        "data/frames": jobs["capture"].folder,
        "data/races": jobs["races"].folder,
    }
    assert [cell.name for cell in read(tmp_path).chosen(["slow/2"]).cells] == ["slow/2"]
    with pytest.raises(UserError, match="has no cell slow/3"):
        read(tmp_path).chosen(["slow/3"])
    plan = read(tmp_path, seeded=["pretrain.seed", "train.seed"], seeds=[7])
    assert {(cell.params.pretrain.seed, cell.params.train.seed, cell.params.clone.seed) for cell in plan.cells} == {
        (7, 7, 1)
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"variants": {"plain": {}, "x": {"ppo": {"gama": 0.9}}}},
            "variant x has the unknown key ppo.gama; did you mean gamma?",
        ),
        ({"variants": {"plain": {}, "x": {"ppo": {"gamma": 0.99}}}}, "the variant 'x' changes nothing"),
        (
            {"variants": {"plain": {}, "x": {"ppo": {"clip": 0.1}}, "y": {"ppo": {"clip": 0.1}}}},
            "x/1 and y/1 do not differ in anything",
        ),
        ({"variants": {"plain": {}, "x": {"encoder": backbone("none")}}}, "variant 'x': there is no folder none"),
        ({"seeds": [1, 2, 1]}, "seeds need each seed once, but 1 comes twice"),
        ({"seeded": ["train.sed"]}, "train.sed"),
        ({"baseline": "plane"}, "baseline needs to be a variant, but plane is none of"),
        ({"measures": ["best_epoch"]}, "measures need last_stage pretrain or clone"),
        (
            {"last_stage": "clone", "measures": ["best_epoch"], "seeds": [1], "budget": None},
            "plain/1 and slow/1 do not differ in anything that is read up to clone",
        ),
        ({"budget": {"env_steps": 5, "cpu_minutes": 5}}, "either env_steps or cpu_minutes"),
    ],
)
def test_what_cannot_be_is_named_before_anything_runs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        read(tmp_path, **changes)
    assert message in str(raised.value)
    assert "test.yaml" in str(raised.value)


def test_other_weights_of_a_backbone_are_another_stage(tmp_path: Path) -> None:
    folder = tmp_path / "backbone"
    folder.mkdir()
    keys = []
    for weights in (b"one", b"other"):
        (folder / "model.safetensors").write_bytes(weights)
        cells = read(tmp_path, variants={"plain": {}, "x": {"encoder": backbone(folder.as_posix())}}).cells
        keys.append([cells[0].jobs["pretrain"].name, cells[-1].jobs["pretrain"].name])
    assert keys[0][0] == keys[1][0]
    assert keys[0][1] != keys[1][1]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_that_ships_can_be_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE, PARAMS_FILE):
        Path(name).symlink_to(ROOT / name)
    Path("data/backbones/mobilenet_v2").mkdir(parents=True)  # made by experiments/mobilenet_v2.py
    plan = read_plan(path)
    assert plan.cells
    assert plan.file.cost
