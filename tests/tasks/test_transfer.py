"""Stage `transfer` on random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rulka.artifacts import Artifact, load_artifact, save_artifact
from rulka.errors import UserError
from rulka.observation import FLOATS
from rulka.params import Params
from rulka.stage import StageInputError
from tasks.transfer import TransferError, transfer

Folders = tuple[Path, Path]
HEADS_OF_POLICY = {f"{layer}.{kind}" for layer in ("trunk.0", "trunk.2", "policy_head") for kind in ("weight", "bias")}


def run(params: Params, pretrained: Folders, **transfer_changes: object) -> Path:
    out = pretrained[0].parent / "agent_init"
    section = params.transfer.model_copy(update=transfer_changes)
    encoder_dir, policy_dir = pretrained
    transfer(
        params.observation,
        params.actions,
        params.network,
        params.train,
        section,
        encoder_dir=encoder_dir,
        policy_dir=policy_dir,
        out_dir=out,
    )
    return out


def report_of(folder: Path) -> dict[str, str]:
    return {t["name"]: t["action"] for t in json.loads((folder / "report.json").read_text())["tensors"]}


def test_ppo_takes_over_the_whole_policy_bit_by_bit(small_params: Params, pretrained: Folders) -> None:
    out = run(small_params, pretrained)
    policy, agent = load_artifact(pretrained[1], "policy"), load_artifact(out, "agent_init")
    assert set(agent.tensors) - set(policy.tensors) == {"value_head.weight", "value_head.bias"}
    for name, tensor in policy.tensors.items():
        assert torch.equal(agent.tensors[name], tensor), name
    assert agent.config["algorithm"] == "ppo"
    report = report_of(out)
    assert {name for name, action in report.items() if action == "kept"} == {"value_head.weight", "value_head.bias"}
    assert "refused" not in report.values()


def test_iqn_takes_only_what_sees(small_params: Params, pretrained: Folders) -> None:
    out = run(small_params, pretrained) / "compared" / "iqn"
    policy, agent = load_artifact(pretrained[1], "policy"), load_artifact(out, "agent_init")
    report = report_of(out)
    copied = {name for name, action in report.items() if action == "copied"}
    assert copied == set(policy.tensors) - HEADS_OF_POLICY
    for name in copied:
        assert torch.equal(agent.tensors[name], policy.tensors[name]), name
    assert {name for name, action in report.items() if action == "refused"} == HEADS_OF_POLICY
    assert {name.split(".")[0] for name, action in report.items() if action == "kept"} == {
        "tau_embed",
        "advantage_head",
        "value_head",
    }
    assert set(agent.tensors) == {name for name, action in report.items() if action != "refused"}
    assert "| tau_embed.0.weight | 528 x 8 | kept |" in (out / "report.md").read_text()


def test_iqn_carries_the_policy_that_drives_first(small_params: Params, pretrained: Folders) -> None:
    out = run(small_params, pretrained) / "compared" / "iqn"
    policy, carried = load_artifact(pretrained[1], "policy"), load_artifact(out / "warmup_policy", "policy")
    assert set(carried.tensors) == set(policy.tensors)
    assert all(torch.equal(carried.tensors[name], tensor) for name, tensor in policy.tensors.items())


def test_iqn_can_take_the_encoder_of_level_0(small_params: Params, pretrained: Folders) -> None:
    out = run(small_params, pretrained, iqn_encoder="pretrained") / "compared" / "iqn"
    encoder, policy = load_artifact(pretrained[0], "encoder"), load_artifact(pretrained[1], "policy")
    agent = load_artifact(out, "agent_init")
    name = "encoder.layers.0.weight"
    assert torch.equal(agent.tensors[name], encoder.tensors[name])
    assert not torch.equal(agent.tensors[name], policy.tensors[name])
    assert torch.equal(agent.tensors["float_head.0.weight"], policy.tensors["float_head.0.weight"])


def with_iqn(params: Params, **changes: object) -> Params:
    network = params.network.model_copy(update={"iqn": params.network.iqn.model_copy(update=changes)})
    return params.model_copy(update={"network": network})


def test_another_kind_of_encoder_is_refused_by_name_or_starts_fresh(small_params: Params, pretrained: Folders) -> None:
    params = with_iqn(small_params, encoder="impala", impala_width=1, adaptive_pool=2, layer_norm=True)
    with pytest.raises(TransferError, match=r"network.iqn.encoder is 'impala', the cloned encoder .* is 'conv'"):
        run(params, pretrained)
    out = run(params, pretrained, iqn_encoder="fresh") / "compared" / "iqn"
    agent, policy = load_artifact(out, "agent_init"), load_artifact(pretrained[1], "policy")
    assert torch.equal(agent.tensors["float_head.2.weight"], policy.tensors["float_head.2.weight"])
    report = {t["name"]: (t["action"], t["reason"]) for t in json.loads((out / "report.json").read_text())["tensors"]}
    assert report["encoder.layers.0.weight"] == ("kept", "initialised: transfer.iqn_encoder is fresh")
    assert report["float_head.norm_0.weight"][0] == "kept"
    assert {name for name, (action, _) in report.items() if action == "refused"} == HEADS_OF_POLICY


def test_seed_decides_what_starts_fresh(small_params: Params, pretrained: Folders) -> None:
    first, same, other = (
        load_artifact(run(small_params, pretrained, seed=seed), "agent_init").tensors["value_head.weight"]
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_other_normalisation_is_refused_by_name(small_params: Params, pretrained: Folders) -> None:
    _change(pretrained[0], "encoder", lambda artifact: _with_other_rpm(artifact))
    with pytest.raises(TransferError, match=r"normalisation.std of 'rpm' is \[3001\] for the encoder and \[3000\]"):
        run(small_params, pretrained)


def _with_other_rpm(artifact: Artifact) -> Artifact:
    std = artifact.normalisation.std.copy()
    std[FLOATS["rpm"]] = np.float32(3001.0)
    return replace(artifact, normalisation=replace(artifact.normalisation, std=std))


def test_other_sizes_are_refused_by_name(small_params: Params, pretrained: Folders) -> None:
    network = small_params.network.model_copy(update={"dense_hidden": 64})
    params = small_params.model_copy(update={"network": network})
    with pytest.raises(TransferError, match=r"network.dense_hidden is 32 in the cloned policy, expected 64"):
        run(params, pretrained)
    assert not (pretrained[0].parent / "agent_init").exists()


def test_tensor_of_another_shape_is_an_error(small_params: Params, pretrained: Folders) -> None:
    def shrink(artifact: Artifact) -> Artifact:
        return replace(artifact, tensors=artifact.tensors | {"policy_head.bias": torch.zeros(11)})

    _change(pretrained[1], "policy", shrink)
    with pytest.raises(TransferError, match=r"'policy_head.bias' has shape \[11\] in the cloned policy.*needs \[12\]"):
        run(small_params, pretrained)


def test_other_actions_are_refused(small_params: Params, pretrained: Folders) -> None:
    params = small_params.model_copy(
        update={"actions": small_params.actions.model_copy(update={"ticks_per_action": 4})}
    )
    with pytest.raises(UserError, match=r"actions.ticks_per_action is 5, expected 4"):
        run(params, pretrained)


@pytest.mark.parametrize(("missing", "stage"), [(0, "pretrain"), (1, "clone")])
def test_missing_input_names_the_stage(small_params: Params, tmp_path: Path, missing: int, stage: str) -> None:
    folders = [tmp_path / "encoder", tmp_path / "policy"]
    for folder in folders:
        folder.mkdir()
        (folder / "meta.json").write_text("{}")
    (folders[missing] / "meta.json").unlink()
    with pytest.raises(StageInputError, match=f"run `dvc repro {stage}` first"):
        run(small_params, (folders[0], folders[1]))


def _change(folder: Path, kind: str, change) -> None:
    save_artifact(folder, change(load_artifact(folder, kind)))
