"""Stage `transfer` on random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.actor_critic import CloningHeads
from models.encoders.config import ImpalaConfig
from models.iqn import NUM_CLONED_FRACTIONS
from rulka.agents.algorithms import ALGORITHMS, CLONED_SHAPES
from rulka.agents.initial_weights import TransferError, check_agent
from rulka.agents.load import load_policy
from rulka.agents.params import Algorithm, TransferParams
from rulka.artifacts import Artifact, ArtifactError, load_artifact, save_artifact
from rulka.errors import UserError
from rulka.observation import FLOATS, Normalisation, reference_normalisation
from rulka.params import Params
from rulka.stage import StageInputError
from tasks.transfer import transfer

Folders = tuple[Path, Path]
HEADS_OF_POLICY = {f"{layer}.{kind}" for layer in ("trunk.0", "trunk.2", "policy_head") for kind in ("weight", "bias")}


def run(params: Params, pretrained: Folders) -> Path:
    out = pretrained[0].parent / "agent_init"
    encoder_dir, policy_dir = pretrained
    transfer(
        params.observation,
        params.actions,
        params.encoder,
        params.network,
        params.train,
        params.transfer,
        encoder_dir=encoder_dir,
        policy_dir=policy_dir,
        out_dir=out,
    )
    return out


def with_parts(params: Params, algorithm: str, **parts: str) -> Params:
    wished = getattr(params.transfer, algorithm).model_copy(update=parts)
    return params.model_copy(update={"transfer": params.transfer.model_copy(update={algorithm: wished})})


def with_iqn(params: Params, **changes: object) -> Params:
    network = params.network.model_copy(update={"iqn": params.network.iqn.model_copy(update=changes)})
    return params.model_copy(update={"network": network})


def rows_of(folder: Path, where: str) -> dict[str, tuple[str, str]]:
    """What became of each tensor in one place, and why."""
    tensors = json.loads((folder / "report.json").read_text())["tensors"]
    return {row["name"]: (row["action"], row["reason"]) for row in tensors if row["where"] == where}


def actions_of(folder: Path, where: str = "new network") -> dict[str, str]:
    return {name: action for name, (action, _) in rows_of(folder, where).items()}


def test_ppo_takes_over_the_whole_policy_bit_by_bit(small_params: Params, pretrained: Folders) -> None:
    out = run(small_params, pretrained)
    policy, agent = load_artifact(pretrained[1], "policy"), load_artifact(out, "agent_init")
    assert set(agent.tensors) - set(policy.tensors) == {"value_head.weight", "value_head.bias"}
    for name, tensor in policy.tensors.items():
        assert torch.equal(agent.tensors[name], tensor), name
    assert agent.config["algorithm"] == "ppo"
    kept = {name for name, action in actions_of(out).items() if action == "kept"}
    assert kept == {"value_head.weight", "value_head.bias"}
    assert set(actions_of(out, "cloned policy").values()) == {"copied"}
    assert rows_of(out, "pretrained encoder")["encoder.layers.0.weight"] == (
        "refused",
        "transfer.ppo.encoder is cloned",
    )


def test_iqn_takes_only_what_sees(small_params: Params, pretrained: Folders) -> None:
    out = run(small_params, pretrained) / "compared" / "iqn"
    policy, agent = load_artifact(pretrained[1], "policy"), load_artifact(out, "agent_init")
    actions = actions_of(out)
    copied = {name for name, action in actions.items() if action == "copied" and not name.startswith("guide.")}
    assert copied == set(policy.tensors) - HEADS_OF_POLICY
    for name in copied:
        assert torch.equal(agent.tensors[name], policy.tensors[name]), name
    refused = {name for name, action in actions_of(out, "cloned policy").items() if action == "refused"}
    assert refused == HEADS_OF_POLICY
    kept = {name.split(".")[0] for name, action in actions.items() if action == "kept"}
    assert kept == {"tau_embed", "advantage_head", "value_head", "guide"}


WISHES = [
    ("ppo", {"encoder": "fresh", "float_head": "fresh", "trunk": "fresh", "heads": "fresh"}),
    ("ppo", {"encoder": "pretrained", "float_head": "fresh", "trunk": "cloned", "heads": "fresh"}),
    ("ppo", {"encoder": "cloned", "float_head": "cloned", "trunk": "fresh", "heads": "cloned"}),
    ("iqn", {"encoder": "fresh", "float_head": "fresh", "trunk": "fresh", "heads": "fresh"}),
    ("iqn", {"encoder": "pretrained", "float_head": "cloned", "trunk": "fresh", "heads": "fresh"}),
    ("iqn", {"encoder": "fresh", "float_head": "cloned", "trunk": "fresh", "heads": "fresh"}),
]


@pytest.mark.parametrize(("algorithm", "wishes"), WISHES)
def test_every_part_comes_from_where_the_parameters_say(
    small_params: Params, pretrained: Folders, algorithm: Algorithm, wishes: dict[str, str]
) -> None:
    """Fresh weights are those of a network that was built alone with the same seed."""
    params = with_parts(small_params, algorithm, **wishes)
    out = run(params, pretrained) / ("." if algorithm == "ppo" else "compared/iqn")
    agent, encoder, policy = (
        load_artifact(*each).tensors
        for each in ((out, "agent_init"), (pretrained[0], "encoder"), (pretrained[1], "policy"))
    )
    torch.manual_seed(params.transfer.seed)
    fresh = (
        ALGORITHMS[algorithm]
        .build_network(params.observation, params.encoder, params.network, reference_normalisation(), 12)
        .state_dict()
    )
    assert set(agent) == set(fresh)
    for part, beginnings in ALGORITHMS[algorithm].parts.items():
        names = [name for name in agent if name.startswith(beginnings)]
        assert names, part
        for name in names:
            wish = "fresh" if name.startswith(ALGORITHMS[algorithm].without_source) else wishes[part]
            source = {"fresh": fresh, "pretrained": encoder, "cloned": policy}[wish]
            assert torch.equal(agent[name], source[name]), name
            assert actions_of(out)[name] == ("kept" if wish == "fresh" else "copied")


@pytest.mark.parametrize(("algorithm", "wishes"), WISHES)
def test_the_report_leaves_no_tensor_out(
    small_params: Params, pretrained: Folders, algorithm: str, wishes: dict[str, str]
) -> None:
    out = run(with_parts(small_params, algorithm, **wishes), pretrained)
    out = out if algorithm == "ppo" else out / "compared" / "iqn"
    places = {"new network": (out, "agent_init"), "pretrained encoder": (pretrained[0], "encoder")}
    places |= {"cloned policy": (pretrained[1], "policy")}
    report = json.loads((out / "report.json").read_text())
    assert report["parts"] == wishes
    assert len(report["tensors"]) == sum(len(load_artifact(*place).tensors) for place in places.values())
    for where, place in places.items():
        rows = rows_of(out, where)
        assert set(rows) == set(load_artifact(*place).tensors)
        assert all(reason for _, reason in rows.values())
    taken = [n for w in list(places)[1:] for n, action in actions_of(out, w).items() if action == "copied"]
    copied = [name for name, action in actions_of(out).items() if action == "copied"]
    assert sorted(taken) == sorted(name for name in copied if not name.startswith("guide."))


@pytest.mark.parametrize(
    ("algorithm", "part", "tensor"),
    [
        ("ppo", "encoder", "encoder.layers.2.weight"),
        ("ppo", "float_head", "float_mean"),
        ("ppo", "trunk", "trunk.0.weight"),
        ("ppo", "heads", "policy_head.bias"),
        ("iqn", "float_head", "float_head.2.weight"),
    ],
)
def test_a_tensor_that_the_policy_lacks_is_an_error(
    small_params: Params, pretrained: Folders, algorithm: str, part: str, tensor: str
) -> None:
    def rename(artifact: Artifact) -> Artifact:
        tensors = {f"{name}_old" if name == tensor else name: value for name, value in artifact.tensors.items()}
        return replace(artifact, tensors=tensors)

    _change(pretrained[1], "policy", rename)
    other = "iqn" if algorithm == "ppo" else "ppo"
    params = with_parts(small_params, other, encoder="fresh", float_head="fresh", trunk="fresh", heads="fresh")
    with pytest.raises(TransferError, match=rf"transfer.{algorithm}.{part} is cloned, but .* no tensor '{tensor}'"):
        run(params, pretrained)
    assert not (pretrained[0].parent / "agent_init").exists()


def test_a_tensor_that_the_network_has_no_place_for_is_an_error(small_params: Params, pretrained: Folders) -> None:
    def deepen(artifact: Artifact) -> Artifact:
        return replace(artifact, tensors=artifact.tensors | {"trunk.4.weight": torch.zeros(2, 2)})

    _change(pretrained[1], "policy", deepen)
    with pytest.raises(
        TransferError, match=r"'trunk.4.weight' of the cloned policy has no place in the network of ppo"
    ):
        run(small_params, pretrained)
    run(with_parts(small_params, "ppo", trunk="fresh"), pretrained)


def test_heads_that_look_ahead_are_left_behind(small_params: Params, pretrained: Folders) -> None:
    expected = load_artifact(run(small_params, pretrained), "agent_init").tensors
    heads = CloningHeads(32, 12, (1, 4)).state_dict()
    _change(pretrained[1], "policy", lambda artifact: replace(artifact, tensors=artifact.tensors | heads))
    out = run(small_params, pretrained)
    found = load_artifact(out, "agent_init").tensors
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    for folder in (out, out / "compared" / "iqn"):
        rows = rows_of(folder, "cloned policy")
        assert rows["ahead_heads.1.weight"] == ("refused", "looks 1 decision ahead")
        assert rows["ahead_heads.4.bias"] == ("refused", "looks 4 decisions ahead")


@pytest.mark.parametrize("part", ["trunk", "heads"])
def test_values_are_never_cloned(small_params: Params, pretrained: Folders, part: str) -> None:
    with pytest.raises(TransferError, match=f"transfer.iqn.{part} is cloned, but .* no values of actions"):
        run(with_parts(small_params, "iqn", **{part: "cloned"}), pretrained)


def test_iqn_carries_the_policy_that_drives_first(small_params: Params, pretrained: Folders) -> None:
    out = run(small_params, pretrained) / "compared" / "iqn"
    policy, carried = load_artifact(pretrained[1], "policy").tensors, load_artifact(out, "agent_init").tensors
    guide = {name.removeprefix("guide.policy."): tensor for name, tensor in carried.items() if "guide." in name}
    assert set(guide) == {*policy, "guide.floor"}
    assert all(torch.equal(guide[name], tensor) for name, tensor in policy.items())


def shape_like_iqn(params: Params, policy_dir: Path) -> Params:
    """Makes the cloned policy one of IQN's shape, and returns parameters by which IQN takes over all of it."""
    params = with_iqn(params, guided=False)
    torch.manual_seed(2)
    sizes = (params.observation, params.encoder, params.network, reference_normalisation(), 12)
    tensors = CLONED_SHAPES["iqn"](*sizes).state_dict()
    _change(policy_dir, "policy", lambda old: replace(old, tensors=tensors, config=old.config | {"shape": "iqn"}))
    params = with_parts(params, "iqn", trunk="cloned", heads="cloned")
    return with_parts(params, "ppo", trunk="fresh", heads="fresh")


def test_iqn_takes_over_all_of_a_policy_of_its_shape_and_acts_like_it(
    small_params: Params, pretrained: Folders
) -> None:
    params = shape_like_iqn(small_params, pretrained[1])
    out = run(params, pretrained)
    policy = load_artifact(pretrained[1], "policy").tensors
    agent = load_artifact(out / "compared" / "iqn", "agent_init")
    assert set(agent.tensors) == set(policy)
    assert all(torch.equal(agent.tensors[name], tensor) for name, tensor in policy.items())
    assert set(actions_of(out / "compared" / "iqn").values()) == {"copied"}
    reasons = rows_of(out, "cloned policy")
    assert reasons["tau_embed.0.weight"] == ("refused", "transfer.ppo.trunk is fresh")
    assert reasons["advantage_head.2.bias"] == ("refused", "transfer.ppo.heads is fresh")
    assert reasons["float_head.0.weight"][0] == "copied"
    sizes = (params.observation, params.encoder, params.network, agent.normalisation, 12)
    network = ALGORITHMS["iqn"].build_network(*sizes)
    network.load_state_dict(agent.tensors)
    acting = replace(agent, config=agent.config | {"iqn": {"num_quantiles_acting": NUM_CLONED_FRACTIONS}})
    choose = ALGORITHMS["iqn"].greedy_choice(network, acting, torch.device("cpu"))
    image, floats = torch.randint(0, 256, (70, 1, 64, 64), dtype=torch.uint8), torch.randn(70, 184)
    driver = load_policy(pretrained[1])
    with torch.no_grad():
        expected = choose(image, floats).numpy()
    assert (driver(image.numpy(), floats.numpy()) == expected).all()
    assert len(set(expected)) > 1


@pytest.mark.parametrize("part", ["trunk", "heads"])
def test_parts_of_the_other_shape_are_refused(small_params: Params, pretrained: Folders, part: str) -> None:
    params = shape_like_iqn(small_params, pretrained[1])
    with pytest.raises(TransferError, match=rf"transfer.ppo.{part} is cloned, .* clone.shape iqn, not that of ppo"):
        run(with_parts(params, "ppo", **{part: "cloned"}), pretrained)
    with pytest.raises(
        TransferError, match=r"guided carries a cloned policy of clone.shape policy, and clone.shape is"
    ):
        run(with_iqn(params, guided=True), pretrained)


@pytest.mark.parametrize(("name", "value"), [("tau_embedding", 16), ("embedding_at", "state")])
def test_a_policy_of_another_iqn_is_refused(
    small_params: Params, pretrained: Folders, name: str, value: object
) -> None:
    params = shape_like_iqn(small_params, pretrained[1])
    with pytest.raises(TransferError, match=rf"network.iqn.{name} is .* in the cloned policy, expected {value}"):
        run(with_iqn(params, **{name: value}), pretrained)


def test_a_policy_that_says_no_shape_is_refused(small_params: Params, pretrained: Folders) -> None:
    _change(pretrained[1], "policy", lambda old: replace(old, config=old.config | {"shape": "round"}))
    with pytest.raises(TransferError, match="does not say how large its network is, or whose"):
        run(small_params, pretrained)


def test_an_agent_without_a_guide_carries_no_policy(small_params: Params, pretrained: Folders) -> None:
    sizes = small_params.network.model_copy(
        update={"iqn": small_params.network.iqn.model_copy(update={"guided": False})}
    )
    out = run(small_params.model_copy(update={"network": sizes}), pretrained) / "compared" / "iqn"
    assert not [name for name in load_artifact(out, "agent_init").tensors if name.startswith("guide.")]


IMPALA = ImpalaConfig(kind="impala", width=1, adaptive_pool=2, spectral_norm=True)


def test_another_encoder_is_refused_by_name(small_params: Params, pretrained: Folders) -> None:
    params = small_params.model_copy(update={"encoder": IMPALA})
    with pytest.raises(ArtifactError, match=r"encoder.kind is 'conv', expected 'impala'"):
        run(params, pretrained)
    pooled = small_params.encoder.model_copy(update={"adaptive_pool": 2})
    with pytest.raises(ArtifactError, match=r"encoder.adaptive_pool is 0, expected 2"):
        run(small_params.model_copy(update={"encoder": pooled}), pretrained)


@pytest.mark.parametrize("encoder", [IMPALA])
def test_every_kind_of_encoder_is_handed_on_to_both_agents(small_params: Params, pretrained: Folders) -> None:
    params = small_params.model_copy(update={"encoder": IMPALA})
    out, policy = run(params, pretrained), load_artifact(pretrained[1], "policy")
    names = {name for name in policy.tensors if name.startswith("encoder.")}
    assert any(name.endswith(".left") for name in names), "the vectors of its spectral norms travel too"
    for folder in (out, out / "compared" / "iqn"):
        agent = load_artifact(folder, "agent_init", encoder=IMPALA)
        assert names == {name for name in agent.tensors if name.startswith("encoder.")}
        assert all(torch.equal(agent.tensors[name], policy.tensors[name]) for name in names)


def test_a_float_head_with_layer_norm_computes_something_else_and_is_not_cloned(
    small_params: Params, pretrained: Folders
) -> None:
    params = with_iqn(small_params, layer_norm=True)
    with pytest.raises(TransferError, match=r"network.iqn.layer_norm makes another function"):
        run(params, pretrained)
    actions = actions_of(run(with_parts(params, "iqn", float_head="fresh"), pretrained) / "compared" / "iqn")
    assert {name: action for name, action in actions.items() if name.startswith("float_head.")} == {
        f"float_head.{layer}.{kind}": "kept" for layer in ("0", "norm_0", "2", "norm_2") for kind in ("weight", "bias")
    }


def test_seed_decides_what_starts_fresh(small_params: Params, pretrained: Folders) -> None:
    seeded = [
        small_params.model_copy(update={"transfer": small_params.transfer.model_copy(update={"seed": seed})})
        for seed in (1, 1, 2)
    ]
    first, same, other = (
        load_artifact(run(params, pretrained), "agent_init").tensors["value_head.weight"] for params in seeded
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


FUSED: dict[str, Any] = {"kind": "fused_vector", "tokens": 2, "width": 8, "depth": 1, "heads": 2}


def with_fusion(params: Params, **changes: object) -> Params:
    network = params.network.model_validate(params.network.model_dump() | {"fusion": FUSED | changes})
    return params.model_copy(update={"network": network})


def test_a_policy_of_another_fusion_is_refused(small_params: Params, pretrained: Folders) -> None:
    with pytest.raises(TransferError, match=r"network.fusion is .*'concat'.* in the cloned policy, expected .*'fused"):
        run(with_fusion(small_params), pretrained)


def test_an_agent_of_another_fusion_is_refused_though_its_tensors_fit(
    small_params: Params, pretrained: Folders
) -> None:
    """How many heads attend does not show in the shape of any tensor."""
    params, other = with_fusion(small_params), with_fusion(small_params, heads=4)
    write_policy(params, pretrained[1])
    trained(params, pretrained, "ppo", pretrained[0].parent / "mine")
    write_policy(other, pretrained[1])
    asked = from_agent(other, "ppo", pretrained[0].parent / "mine", "float_head")
    with pytest.raises(TransferError, match=r"network.fusion is .*'heads': 2.* for the agent and .*'heads': 4"):
        run(asked, pretrained)
    run(from_agent(other, "ppo", pretrained[0].parent / "mine", "encoder", "trunk"), pretrained)


def write_policy(params: Params, folder: Path) -> None:
    """Writes a policy with random weights over the one that is there."""
    policy = load_artifact(folder, "policy")
    torch.manual_seed(4)
    network = CLONED_SHAPES["policy"](
        params.observation, params.encoder, params.network, policy.normalisation, policy.actions.num_actions
    )
    config = policy.config | {"network": params.network.model_dump(mode="json")}
    save_artifact(folder, replace(policy, tensors=network.state_dict(), config=config))


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


def _change(folder: Path, kind: str, change: Callable[[Artifact], Artifact]) -> None:
    save_artifact(folder, change(load_artifact(folder, kind)))


def trained(params: Params, pretrained: Folders, algorithm: str, folder: Path) -> Artifact:
    """Writes an agent with random weights, of the parameters and the size of the algorithm's network."""
    out = run(params, pretrained)
    initial = load_artifact(out if algorithm == "ppo" else out / "compared" / "iqn", "agent_init")
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: tensor
        if name.startswith(("float_mean", "float_std", "guide."))
        else torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial.tensors.items()
    }
    agent = replace(initial, kind="agent", tensors=tensors)
    save_artifact(folder, agent)
    return agent


def from_agent(params: Params, algorithm: str, folder: Path, *parts: str) -> Params:
    wished = with_parts(params, algorithm, **dict.fromkeys(parts, "agent"))
    return wished.model_copy(update={"transfer": wished.transfer.model_copy(update={"agent": str(folder)})})


@pytest.mark.parametrize("algorithm", ["ppo", "iqn"])
def test_all_of_an_agent_is_gone_on_with(
    small_params: Params, pretrained: Folders, tmp_path: Path, algorithm: Algorithm
) -> None:
    agent = trained(small_params, pretrained, algorithm, tmp_path / "mine")
    parts = ("encoder", "float_head", "trunk", "heads")
    out = run(from_agent(small_params, algorithm, tmp_path / "mine", *parts), pretrained)
    folder = out if algorithm == "ppo" else out / "compared" / "iqn"
    begun = load_artifact(folder, "agent_init")
    own = [name for name in agent.tensors if not name.startswith("guide.")]
    assert all(torch.equal(begun.tensors[name], agent.tensors[name]) for name in own)
    rows = rows_of(folder, "agent")
    assert {rows[name][0] for name in own} == {"copied"}
    assert all(action == "refused" for name, (action, _) in rows.items() if name.startswith("guide."))


def test_a_part_of_an_agent_is_taken_over_alone(small_params: Params, pretrained: Folders, tmp_path: Path) -> None:
    """An encoder is the same in all networks, whoever trained it."""
    agent = trained(small_params, pretrained, "iqn", tmp_path / "mine")
    out = run(from_agent(small_params, "ppo", tmp_path / "mine", "encoder"), pretrained)
    begun, policy = load_artifact(out, "agent_init"), load_artifact(pretrained[1], "policy")
    for name, tensor in begun.tensors.items():
        if name.startswith("encoder."):
            assert torch.equal(tensor, agent.tensors[name])
        elif name in policy.tensors:
            assert torch.equal(tensor, policy.tensors[name])
    assert rows_of(out, "new network")["encoder.layers.0.weight"] == ("copied", "from the agent")


def test_heads_of_another_algorithm_are_refused(small_params: Params, pretrained: Folders, tmp_path: Path) -> None:
    trained(small_params, pretrained, "iqn", tmp_path / "mine")
    with pytest.raises(
        TransferError, match=r"transfer.ppo.trunk is agent, but the agent has no tensor 'trunk.0.weight'"
    ) as caught:
        run(from_agent(small_params, "ppo", tmp_path / "mine", "trunk"), pretrained)
    assert "Name another one in transfer.agent" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"withheld": ("image",)}, r"observation.withheld is \('image',\) for the agent and \(\) for the new one"),
        ({"height": 80}, r"observation\.height is 80 for the agent and 64 for the new one"),
        ({"frames": 2, "frames_as": "features"}, r"observation\.frames is 2 for the agent and 1 for the new one"),
    ],
)
def test_an_agent_that_saw_something_else_is_refused(
    small_params: Params, pretrained: Folders, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    agent = trained(small_params, pretrained, "ppo", tmp_path / "mine")
    save_artifact(tmp_path / "other", replace(agent, observation=replace(agent.observation, **changes)))
    with pytest.raises(TransferError, match=message):
        run(from_agent(small_params, "ppo", tmp_path / "other", "encoder"), pretrained)


def test_frames_that_reached_an_agent_otherwise_are_refused(
    small_params: Params, pretrained: Folders, tmp_path: Path
) -> None:
    """Else channels would be summed where each frame has an encoder's features of its own."""
    agent = trained(small_params, pretrained, "ppo", tmp_path / "mine")
    channels = replace(agent.observation, frames=3, frames_as="channels")
    observation = small_params.observation.model_copy(update={"frames": 3, "frames_as": "features"})
    policy = load_artifact(pretrained[1], "policy")
    with pytest.raises(TransferError, match=r"observation\.frames_as is 'channels' for the agent and 'features' for"):
        check_agent(replace(agent, observation=channels), policy, observation)


def test_an_agent_of_other_numbers_is_refused(small_params: Params, pretrained: Folders, tmp_path: Path) -> None:
    agent = trained(small_params, pretrained, "ppo", tmp_path / "mine")
    other = Normalisation(agent.normalisation.mean + 1.0, agent.normalisation.std)
    save_artifact(tmp_path / "other", replace(agent, normalisation=other))
    with pytest.raises(TransferError, match=r"normalisation\.mean is another one for the agent"):
        run(from_agent(small_params, "ppo", tmp_path / "other", "float_head"), pretrained)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ppo": {"encoder": "agent"}}, r"ppo\.encoder is agent: name the folder of one in transfer\.agent"),
        ({"agent": "mine"}, "no part is taken from it: set it to null"),
        (
            {"agent": "mine", "ppo": {"encoder": "agent"}, "from_scratch": True},
            "no part is taken from it: set it to null",
        ),
    ],
)
def test_an_agent_and_what_is_taken_from_it_go_together(
    small_params: Params, changes: dict[str, Any], message: str
) -> None:
    data = small_params.transfer.model_dump()
    for name, value in changes.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=message):
        TransferParams.model_validate(data)
