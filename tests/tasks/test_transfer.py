"""Stage `transfer` on random weights."""

from __future__ import annotations

import json
import shutil
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
from rulka.agents.algorithms import CLONED_SHAPES, actor_class
from rulka.agents.initial_weights import TransferError, check_agent, check_agreement
from rulka.agents.load import SHIPPED, SHIPPED_AGENT, load_policy
from rulka.agents.params import Algorithm, TransferParams
from rulka.agents.shared.network_params import NetworkParams
from rulka.contracts.actions import ActionParams
from rulka.contracts.artifacts import Artifact, load_artifact, save_artifact
from rulka.contracts.observation import FLOATS, Normalisation, reference_normalisation
from rulka.machine.errors import UserError
from rulka.params import Params
from tasks.transfer import transfer

Folders = tuple[Path, Path]
Prepare = Callable[[Params, Folders], Params]


def run(params: Params, pretrained: Folders) -> Path:
    out = pretrained[0].parent / "agent_init"
    transfer(params, encoder_dir=pretrained[0], policy_dir=pretrained[1], out_dir=out)
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


IMPALA = ImpalaConfig(kind="impala", width=1, adaptive_pool=2, spectral_norm=True)
FUSED: dict[str, Any] = {"kind": "fused_vector", "tokens": 2, "width": 8, "depth": 1, "heads": 2}
PARTS = ("encoder", "float_head", "trunk", "heads")
WISHES = [
    ("ppo", {"encoder": "pretrained", "float_head": "fresh", "trunk": "cloned", "heads": "fresh"}),
    ("ppo", {"encoder": "cloned", "float_head": "cloned", "trunk": "fresh", "heads": "cloned"}),
    ("iqn", {"encoder": "pretrained", "float_head": "cloned", "trunk": "fresh", "heads": "fresh"}),
]


@pytest.mark.parametrize("encoder", [IMPALA])
@pytest.mark.parametrize(("algorithm", "wishes"), WISHES)
def test_every_part_comes_from_where_the_parameters_say_and_the_report_leaves_no_tensor_out(
    small_params: Params, pretrained: Folders, algorithm: Algorithm, wishes: dict[str, str]
) -> None:
    """Fresh weights are those of a network that was built alone with the same seed; spectral norms travel too."""
    params = with_parts(small_params.model_copy(update={"encoder": IMPALA}), algorithm, **wishes)
    actor = actor_class(algorithm)
    out = run(params, pretrained) / ("." if algorithm == "ppo" else "compared/iqn")
    places = {"new network": (out, "agent_init"), "pretrained encoder": (pretrained[0], "encoder")}
    places |= {"cloned policy": (pretrained[1], "policy")}
    agent, encoder, policy = (load_artifact(*place).tensors for place in places.values())
    torch.manual_seed(params.transfer.seed)
    inputs = params.observation, params.encoder, params.network, reference_normalisation(), 12
    fresh = actor.build_network(*inputs).state_dict()
    assert set(agent) == set(fresh)
    for part, beginnings in actor.parts.items():
        names = [name for name in agent if name.startswith(beginnings)]
        assert names, part
        for name in names:
            wish = "fresh" if name.startswith(actor.without_source) else wishes[part]
            source = {"fresh": fresh, "pretrained": encoder, "cloned": policy}[wish]
            assert torch.equal(agent[name], source[name]), name
            assert actions_of(out)[name] == ("kept" if wish == "fresh" else "copied")
    report = json.loads((out / "report.json").read_text())
    assert report["parts"] == wishes
    assert len(report["tensors"]) == len(agent) + len(encoder) + len(policy)
    for where, tensors in zip(places, (agent, encoder, policy), strict=True):
        rows = rows_of(out, where)
        assert set(rows) == set(tensors)
        assert all(reason for _, reason in rows.values())
    taken = [n for w in list(places)[1:] for n, action in actions_of(out, w).items() if action == "copied"]
    copied = [name for name, action in actions_of(out).items() if action == "copied"]
    assert sorted(taken) == sorted(name for name in copied if not name.startswith("guide."))


def lacking(tensor: str) -> Prepare:
    """A policy whose tensor of this name has another."""

    def prepare(params: Params, pretrained: Folders) -> Params:
        policy = load_artifact(pretrained[1], "policy")
        renamed = {f"{name}_old" if name == tensor else name: value for name, value in policy.tensors.items()}
        save_artifact(pretrained[1], replace(policy, tensors=renamed))
        return params

    return prepare


def with_tensor(name: str, value: torch.Tensor) -> Prepare:
    def prepare(params: Params, pretrained: Folders) -> Params:
        _change(pretrained[1], "policy", lambda policy: replace(policy, tensors=policy.tensors | {name: value}))
        return params

    return prepare


def with_network(**changes: object) -> Prepare:
    return lambda params, _: params.model_copy(update={"network": params.network.model_copy(update=changes)})


def with_other_rpm(params: Params, pretrained: Folders) -> Params:
    encoder = load_artifact(pretrained[0], "encoder")
    std = encoder.normalisation.std.copy()
    std[FLOATS["rpm"]] = np.float32(3001.0)
    save_artifact(pretrained[0], replace(encoder, normalisation=replace(encoder.normalisation, std=std)))
    return params


def of_no_shape(params: Params, pretrained: Folders) -> Params:
    _change(pretrained[1], "policy", lambda old: replace(old, config=old.config | {"shape": "round"}))
    return params


def like_iqn(change: Callable[[Params], Params]) -> Prepare:
    return lambda params, pretrained: change(shape_like_iqn(params, pretrained[1]))


def from_mine(change: Callable[[Artifact], Artifact], algorithm: str, *parts: str) -> Prepare:
    """Parts of PPO's network are to come from an agent, which is changed before."""

    def prepare(params: Params, pretrained: Folders) -> Params:
        mine = pretrained[0].parent / "mine"
        save_artifact(mine, change(trained(params, pretrained, algorithm, mine)))
        shutil.rmtree(pretrained[0].parent / "agent_init")
        return from_agent(params, "ppo", mine, *parts)

    return prepare


def of_other_numbers(agent: Artifact) -> Artifact:
    return replace(agent, normalisation=Normalisation(agent.normalisation.mean + 1.0, agent.normalisation.std))


def of_other_height(agent: Artifact) -> Artifact:
    return replace(agent, observation=replace(agent.observation, height=80))


REFUSED: list[tuple[Prepare, str]] = [
    (lacking("encoder.layers.2.weight"), "transfer.ppo.encoder is cloned, but .* no tensor 'encoder.layers.2.weight'"),
    (lacking("policy_head.bias"), r"transfer.ppo.heads is cloned, but .* no tensor 'policy_head.bias'"),
    (with_tensor("trunk.4.weight", torch.zeros(2, 2)), "'trunk.4.weight' of the cloned policy has no place in the net"),
    (with_tensor("policy_head.bias", torch.zeros(11)), r"'policy_head.bias' has shape \[11\] in .*needs \[12\]"),
    (lambda params, _: with_parts(params, "iqn", trunk="cloned"), "transfer.iqn.trunk cloned needs Q-values, but"),
    (
        lambda params, _: with_iqn(params, layer_norm=True),
        "transfer.iqn.float_head cloned needs clone.shape iqn, but it is policy and network.iqn.layer_norm true",
    ),
    (lambda params, _: params.model_copy(update={"encoder": IMPALA}), "encoder.kind is 'conv', expected 'impala'"),
    (with_network(dense_hidden=64), "network.dense_hidden is 32 in the cloned policy, expected 64"),
    (with_other_rpm, r"normalisation.std of 'rpm' is \[3001\] for the encoder and \[3000\]"),
    (of_no_shape, "does not say how large its network is, or whose"),
    (
        lambda params, _: params.model_copy(update={"actions": ActionParams(ticks_per_action=4)}),
        "actions.ticks_per_action is 5, expected 4",
    ),
    (
        like_iqn(lambda p: with_parts(p, "ppo", heads="cloned")),
        "ppo.heads cloned needs a cloned policy, but clone.shape is iqn",
    ),
    (
        like_iqn(lambda p: with_iqn(p, guided=True)),
        "guided needs a cloned policy, but clone.shape is iqn",
    ),
    (like_iqn(lambda p: with_iqn(p, tau_embedding=16)), "network.iqn.tau_embedding is .*, expected 16"),
    (from_mine(lambda agent: agent, "iqn", "trunk"), "transfer.ppo.trunk is agent, but the agent has no tensor 'trunk"),
    (from_mine(of_other_numbers, "ppo", "float_head"), "normalisation.mean is another one for the agent"),
    (from_mine(of_other_height, "ppo", "encoder"), "observation.height is 80 for the agent and 64 for the new one"),
]


@pytest.mark.parametrize(("prepare", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_does_not_fit_is_named(small_params: Params, pretrained: Folders, prepare: Prepare, message: str) -> None:
    params = prepare(small_params, pretrained)
    with pytest.raises(UserError, match=message):
        run(params, pretrained)
    assert not (pretrained[0].parent / "agent_init").exists()


def test_a_policy_of_another_backbone_is_refused(small_params: Params, pretrained: Folders) -> None:
    """Parameters ask for an encoder; which backbone that is, only the artifacts say."""
    encoder, policy = load_artifact(pretrained[0], "encoder"), load_artifact(pretrained[1], "policy")
    other = replace(policy, config=policy.config | {"encoder": IMPALA.model_dump()})
    with pytest.raises(TransferError, match="the cloned policy was made with another backbone") as raised:
        check_agreement(encoder, other, small_params.network)
    assert "dvc repro clone" in raised.value.hint


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


def test_iqn_takes_over_a_policy_of_its_shape_and_acts_like_it(small_params: Params, pretrained: Folders) -> None:
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
    network = actor_class("iqn").build_network(*sizes)
    network.load_state_dict(agent.tensors)
    acting = replace(agent, config=agent.config | {"iqn": {"num_quantiles_acting": NUM_CLONED_FRACTIONS}})
    choose = actor_class("iqn").greedy_choice(network, acting, torch.device("cpu"))
    image, floats = torch.randint(0, 256, (70, 1, 64, 64), dtype=torch.uint8), torch.randn(70, 184)
    driver = load_policy(pretrained[1])
    with torch.no_grad():
        expected = choose(image, floats).numpy()[:, 0]
    assert (driver(image.numpy(), floats.numpy()) == expected).all()
    assert len(set(expected)) > 1


def with_fusion(params: Params, **changes: object) -> Params:
    network = params.network.model_validate(params.network.model_dump() | {"fusion": FUSED | changes})
    return params.model_copy(update={"network": network})


def test_an_agent_of_another_fusion_is_refused_though_tensors_fit(small_params: Params, pretrained: Folders) -> None:
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
def test_an_agent_goes_on(small_params: Params, pretrained: Folders, tmp_path: Path, algorithm: Algorithm) -> None:
    agent = trained(small_params, pretrained, algorithm, tmp_path / "mine")
    out = run(from_agent(small_params, algorithm, tmp_path / "mine", *PARTS), pretrained)
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


def test_an_agent_of_frames_in_channels_is_refused(small_params: Params, pretrained: Folders, tmp_path: Path) -> None:
    """Else channels would be summed where each frame has an encoder's features of its own."""
    agent = trained(small_params, pretrained, "ppo", tmp_path / "mine")
    channels = replace(agent.observation, frames=3, frames_as="channels")
    observation = small_params.observation.model_copy(update={"frames": 3, "frames_as": "features"})
    policy = load_artifact(pretrained[1], "policy")
    with pytest.raises(TransferError, match=r"observation\.frames_as is 'channels' for the agent and 'features' for"):
        check_agent(replace(agent, observation=channels), policy, observation)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ppo": {"encoder": "agent"}},
            r"ppo\.encoder is agent, but transfer\.agent is null: set it to the folder of a trained agent",
        ),
        ({"agent": "mine"}, "no part is taken from it: set one part to agent, or agent to null"),
        (
            {"agent": "mine", "ppo": {"encoder": "agent"}, "from_scratch": True},
            "no part is taken from it: set one part to agent, or agent to null",
        ),
    ],
)
def test_an_agent_and_its_parts_go_together(small_params: Params, changes: dict[str, Any], message: str) -> None:
    data = small_params.transfer.model_dump()
    for name, value in changes.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=message):
        TransferParams.model_validate(data)


def test_training_begins_with_the_shipped_driver(small_params: Params, pretrained: Folders) -> None:
    """A cloned policy has no value head, which starts fresh."""
    shipped = load_artifact(SHIPPED_AGENT, "policy")
    sizes = NetworkParams.model_validate(shipped.config["network"])
    params = small_params.model_copy(update={"network": sizes})
    write_policy(params, pretrained[1])
    begun = load_artifact(run(from_agent(params, "ppo", Path(SHIPPED), *PARTS), pretrained), "agent_init")
    values = {name for name in begun.tensors if name.startswith("value_head.")}
    assert set(begun.tensors) - values == set(shipped.tensors)
    assert all(torch.equal(begun.tensors[name], tensor) for name, tensor in shipped.tensors.items())
