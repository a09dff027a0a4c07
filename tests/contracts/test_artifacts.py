"""Artifacts: round trip, and rejection of everything invalid."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rulka.contracts import artifacts
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import (
    META_FILE,
    WEIGHTS_FILE,
    Artifact,
    ArtifactError,
    actions_to_json,
    float_layout_hash,
    load_artifact,
    network_input_contract,
    read_meta,
    save_artifact,
    write_artifact,
)
from rulka.contracts.observation import reference_normalisation
from tests.conftest import sees

OBSERVATION = sees(64, 48)
ACTIONS = action_table(5)
COUNTS = ("waypoints", "previous_actions")


def make_artifact() -> Artifact:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(4, 3, 2, 2, generator=generator).to(memory_format=torch.channels_last)
    return Artifact(
        kind="encoder",
        tensors={
            "encoder.weight": weight,
            "encoder.tied": weight,  # shares memory with the one above
            "encoder.half": torch.randn(5, generator=generator).to(torch.bfloat16),
            "encoder.count": torch.tensor(7),
        },
        config={"widths": [3, 4], "sizes": {"dense": 8}, "ratio": 0.1},
        observation=network_input_contract(OBSERVATION),
        actions=ACTIONS,
        normalisation=reference_normalisation(),
        provenance={"commit": None},
    )


WRONG_ACTIONS = [
    *(("ticks_per_action", wrong) for wrong in (0, -1, 101, 10**9)),
    *(("repeats", wrong) for wrong in (0, 10**6)),
    ("ticks_per_action", [1, 2]),
    ("actions_per_decision", 0),
    ("controls", []),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_artifact(tmp_path / "encoder", make_artifact())
    return tmp_path / "encoder"


def edit_meta(folder: Path, **changes: object) -> None:
    """Changes metadata and updates the checksum, as a careful other program would."""
    meta = json.loads((folder / META_FILE).read_text()) | changes
    meta["meta_sha256"] = artifacts._meta_hash(meta)
    (folder / META_FILE).write_text(json.dumps(meta))


def test_round_trip(folder: Path) -> None:
    saved, loaded = make_artifact(), load_artifact(folder, "encoder", observation=OBSERVATION, actions=ACTIONS)
    assert list(loaded.tensors) == sorted(saved.tensors), "in an order that is the same again"
    for name, tensor in saved.tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor), name
    np.testing.assert_array_equal(loaded.normalisation.mean, saved.normalisation.mean)
    np.testing.assert_array_equal(loaded.normalisation.std, saved.normalisation.std)
    assert (loaded.config, loaded.observation, loaded.provenance) == (saved.config, saved.observation, saved.provenance)
    assert loaded.actions == ACTIONS


def test_offsets_of_actions_travel_with_it(tmp_path: Path) -> None:
    """Three actions from 0, 10 and 30 ms on, where others of three are asked for."""
    table = action_table(6, (0, 10, 30))
    artifact = replace(make_artifact(), actions=table, observation=network_input_contract(OBSERVATION, 3))
    save_artifact(tmp_path / "uneven", artifact)
    assert load_artifact(tmp_path / "uneven", "encoder", actions=table).actions == table
    with pytest.raises(ArtifactError, match=r"actions\.ticks_per_action"):
        load_artifact(tmp_path / "uneven", "encoder", actions=action_table(6, 3))


@pytest.mark.parametrize("name", [WEIGHTS_FILE, META_FILE])
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_bit_is_noticed(folder: Path, name: str, where: float) -> None:
    content = bytearray((folder / name).read_bytes())
    content[int(where * len(content))] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=name):
        load_artifact(folder, "encoder")


@pytest.mark.parametrize("name", [WEIGHTS_FILE, META_FILE])
def test_a_missing_file_is_named_with_what_to_run(
    folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / name).unlink()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError) as caught:
        load_artifact(folder, "encoder")
    assert caught.value.hint == "`dvc repro pretrain` makes it.", "a fresh clone has nothing to bring back"
    Path("dvc.lock").touch()
    with pytest.raises(ArtifactError, match=name) as caught:
        load_artifact(folder, "encoder")
    assert "`dvc checkout --force pretrain` brings back" in caught.value.hint
    with pytest.raises(ArtifactError) as caught:
        load_artifact(folder.rename(folder.with_name("mine")), "encoder")
    assert caught.value.hint == "Take it from where it came from, or make it again."


def test_another_kind_version_or_layout_is_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="kind is 'encoder', expected 'policy'") as refused:
        load_artifact(folder, "policy")
    assert refused.value.hint == "Name a folder that holds one of kind policy, such as data/policy."
    meta = (folder / META_FILE).read_text()
    observation = read_meta(folder)["observation"]
    for changes, message in (
        ({"schema_version": 99}, "schema_version is 99, expected 4"),
        ({"surprise": 1}, "surprise"),
        ({"observation": observation | {"schema_version": 0}}, "observation.schema_version is 0"),
        ({"observation": observation | {"float_layout": "0"}}, "observation.float_layout is '0'"),
    ):
        (folder / META_FILE).write_text(meta)
        edit_meta(folder, **changes)
        with pytest.raises(ArtifactError, match=message):
            load_artifact(folder, "encoder")


def test_what_was_made_for_other_observations_or_actions_is_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match=r"observation.width is 48, expected 64"):
        load_artifact(folder, "encoder", observation=sees(64, 64))
    with pytest.raises(ArtifactError, match=r"actions.ticks_per_action is 5, expected 1"):
        load_artifact(folder, "encoder", actions=action_table(1))
    near = OBSERVATION.model_copy(update={"waypoints": 20})
    with pytest.raises(ArtifactError, match=r"observation.waypoints is 40, expected 20"):
        load_artifact(folder, "encoder", observation=near)


def test_who_does_not_tell_how_much_it_sees_sees_all(folder: Path) -> None:
    observation = read_meta(folder)["observation"]
    edit_meta(folder, observation={name: observation[name] for name in observation if name not in COUNTS})
    assert load_artifact(folder, "encoder", observation=OBSERVATION).observation == make_artifact().observation


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"config": []}, "config"),
        ({"config": {"algorithm": ["ppo"]}}, "config.algorithm"),
        ({"observation": None}, "observation"),
        ({"observation": {"frames": 1}}, "observation.schema_version is missing"),
        ({"actions": {}}, "actions"),
        *(({"actions": actions_to_json(ACTIONS) | {name: wrong}}, f"actions.*{name}") for name, wrong in WRONG_ACTIONS),
        ({"normalisation": {"mean": [0.0], "std": [float("nan")]}}, "normalisation"),
        ({"normalisation": {"mean": [0.0, 0.0], "std": [1.0]}}, "normalisation"),
        ({"normalisation": {"mean": 3}}, "normalisation.mean"),
        ({"provenance": None}, "provenance"),
        ({"provenance": {"training": None}}, "provenance.training"),
        ({"provenance": {"training": {"tracks": 5}}}, "provenance.training.tracks"),
        ({"provenance": {"training": {"last_check": {"finish_rate": "all"}}}}, "training.last_check.finish_rate"),
        ({"provenance": {"inputs_sha256": {"track": 5}}}, "provenance.inputs_sha256.track"),
    ],
)
def test_wrong_contents_with_a_right_checksum_are_named(folder: Path, changes: dict[str, object], key: str) -> None:
    edit_meta(folder, **changes)
    for read in (read_meta, lambda place: load_artifact(place, "encoder")):
        with pytest.raises(ArtifactError, match=rf"encoder/meta.json is damaged: .*{key}"):
            read(folder)


def test_actions_that_are_no_cars_are_named(folder: Path) -> None:
    edit_meta(folder, actions={"num_choices": 2, "num_places": 1})
    with pytest.raises(ArtifactError, match="encoder cannot be used: actions is"):
        load_artifact(folder, "encoder")


def test_an_action_table_is_whole(folder: Path) -> None:
    """Fields with a default value are required too."""
    actions = actions_to_json(ACTIONS)
    for name in actions:
        edit_meta(folder, actions={key: value for key, value in actions.items() if key != name})
        with pytest.raises(ArtifactError, match=r"actions"):
            load_artifact(folder, "encoder")


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"[]", b"null", b"{}"])
def test_what_is_no_metadata_is_named(folder: Path, content: bytes) -> None:
    (folder / META_FILE).write_bytes(content)
    with pytest.raises(ArtifactError, match="encoder"):
        read_meta(folder)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -3e38, "integers"])
def test_weights_that_nothing_finite_comes_of_are_named(tmp_path: Path, wrong: float | str) -> None:
    artifact, half = make_artifact(), torch.zeros(5, dtype=torch.bfloat16)
    artifact.tensors["encoder.half"] = (
        half.long() if isinstance(wrong, str) else half.index_fill(0, torch.tensor(3), wrong)
    )
    save_artifact(tmp_path / "encoder", artifact)
    with pytest.raises(ArtifactError, match=r"weights.safetensors cannot be used: encoder.half holds integers,"):
        load_artifact(tmp_path / "encoder", "encoder")


def test_the_float_layout_is_frozen() -> None:
    """Fails on any change to the layout of the floats, as a reminder that it invalidates all artifacts."""
    assert float_layout_hash() == "ea4eea382c7f1f36"


def test_metadata_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(artifacts, "_write", lambda path, _content: written.append(path.name))
    write_artifact(tmp_path, make_artifact())
    assert written == [WEIGHTS_FILE, META_FILE]
