"""`params.yaml`: every number is bounded, every type strict, impossible combinations are reported."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.utils.serialize import parse_yaml

from rulka.machine.errors import UserError
from rulka.params import Params, checked_params, read_params, read_sections, resolved
from rulka.params.reader import parsed
from rulka.pretraining.params import CloneParams

ROOT = Path(__file__).resolve().parents[2]
BASE: dict[str, Any] = resolved(read_sections(ROOT / "params.yaml"), "params.yaml")
PRIORITISED = {
    "alpha": 0.6,
    "beta": {"interpolation": "linear", "points": [[0, 0.4]]},
    "epsilon": 0.002,
    "min_actions_left": 40,
}
AROUND = {"tracks": [{"kind": "campaign", "slugs": ["sidewinder"]}]}
IQN_ALONE = {"train.algorithm": "iqn", "train.compared": []}
VIEWS = {"projection": 128, "crop_pixels": 8.0, "brightness": 0.2, "blur_pixels": 0.0, "noise": 0.0}
SIMCLR = {"kind": "simclr", "temperature": 0.5, **VIEWS}
PATCHES = {"kind": "patches", "patch": 10, "width": 64, "depth": 1, "heads": 2}
BARE_PATCHES = PATCHES | {"patch": 8, "depth": 0}
VIT = {"kind": "backbone", "source": {"kind": "folder", "path": "vit"}}
VIT |= {"pixels": None, "token": "cls"}
IMPALA = {"kind": "impala", "width": 2, "adaptive_pool": 6, "spectral_norm": True}
UNIFIED = {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 4}}
UNIFIED |= {"width": 64, "depth": 1, "heads": 4}
VAE = {"kind": "vae", "num_latent": 64, "kl_weight": 0.001}
FUSED = {"kind": "fused_vector", "tokens": 8, "width": 64, "depth": 1, "heads": 4}
OPTIONAL = {
    "races.select.min_race_s": 1.0,
    "races.select.max_race_s": 60.0,
    "races.select.max_best_ratio": 1.5,
    "iqn.max_grad_value": 1000.0,
    "iqn.munchausen": {"alpha": 0.9, "temperature": 0.03, "floor": -1.0},
    "iqn.prioritised": PRIORITISED,
    "iqn.use_double_dqn": False,
    "iqn.guide_floor": {"interpolation": "linear", "points": [[0, 0.0]]},
    "encoder": IMPALA,
    "network.fusion": UNIFIED,
    "pretrain.objective": SIMCLR,
}
"""Sections that are null in `params.yaml`, and other kinds of those present, so that all keys are covered."""

STILL = {"part": "velocity", "mean": [0.0], "std": [20.0]}


def with_keys(values: dict[str, Any]) -> dict[str, Any]:
    data = copy.deepcopy(BASE)
    for key, value in values.items():
        *outer, last = key.split(".")
        where: Any = data
        for name in outer:
            where = where[int(name) if isinstance(where, list) else name]
        where[int(last) if isinstance(where, list) else last] = copy.deepcopy(value)
    return data


def numbers(data: Any, inside: str = "") -> Iterator[tuple[str, float]]:
    """Yields every number in sections and lists with its key."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{inside}{name}", value
        else:
            yield from numbers(value, f"{inside}{name}.")


def refusal(data: dict[str, Any]) -> str:
    """Returns the error message for invalid parameters; empty if they are valid."""
    try:
        checked_params(data, "wrong")
    except UserError as error:
        return str(error)
    return ""


def test_every_number_is_finite_bounded_and_a_number() -> None:
    assert refusal(with_keys(OPTIONAL)) == ""
    others = {"network.fusion": FUSED, "pretrain.objective": VAE}
    keys = [key for key, _ in numbers(with_keys(OPTIONAL))]
    assert len(keys) > 300
    cases = [(OPTIONAL, keys)]
    cases += [(others, [f"{place}.{key}" for place in others for key, _ in numbers(others[place])])]
    taken = []
    for value in (float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 10**30, -(10**30), True, "1"):
        for optional, wrong in cases:
            said = refusal(with_keys(optional | dict.fromkeys(wrong, value)))
            # A schedule is validated as a whole.
            prefixes = [(key, key.partition(".points")[0].partition(".shares")[0]) for key in wrong]
            taken += [
                f"{key}: {value}" for key, prefix in prefixes if not re.search(rf"^  {prefix}\b", said, re.MULTILINE)
            ]
    assert taken == [], "taken, or refused without a word of the key"


def test_the_other_kinds_in_comments_are_valid() -> None:
    """Commented-out alternatives to `munchausen`, `correction` and others are valid values."""
    places = {"params": ("iqn.munchausen", "iqn.prioritised")}
    places |= {"dpo": 2 * ("dpo.pairs",), "impala": 3 * ("impala.correction",)}
    for name, keys in places.items():
        file = ROOT / ("params.yaml" if name == "params" else f"presets/{name}.yaml")
        comments = [line.partition("#")[2] for line in file.read_text(encoding="utf-8").splitlines() if "#" in line]
        values = [yaml.safe_load(found.group()) for line in comments if (found := re.search(r"\{\w+: .*\}", line))]
        for key, value in zip(keys, values, strict=True):
            double = {"iqn.use_double_dqn": False, "iqn.guide_floor": 0.0} if key == "iqn.munchausen" else {}
            checked_params(with_keys({key: value} | double), "wrong")


def test_what_the_file_leaves_out_has_its_default() -> None:
    assert checked_params({}, "wrong") == Params() == read_params(ROOT / "params.yaml")
    found = checked_params({"iqn": {"rate_of": {"heads": 0.5}}, "train": {"algorithm": "pql"}}, "wrong")
    assert found.iqn.rate_of.encoder.values == (0.0,), "that of IQN, whose other parts have others"
    assert found.pql == Params().pql


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train.seed": True}, r"train.seed: must be a valid integer \(got True\)"),
        ({"track.length_m": float("inf")}, r"track.length_m: must be a finite number \(got inf\)"),
        ({"ppo.clone_weight": 0.1}, r"ppo.clone_weight was renamed: use ppo.initial_kl_weight$"),
        ({"iqn.n_stops": 3}, r"iqn.n_stops is not a key that is known here; did you mean n_steps\?$"),
        ({"train.randomisation.friction": 0.1}, r"train.randomisation.friction is not a key .*; known are physics$"),
        ({"network.iqn.spectral_norm": True}, r"iqn.spectral_norm is not .*; did you mean encoder.spectral_norm\?$"),
        ({"encoder.width": 2}, "width is a key of another kind of encoder: this one has kind"),
        ({"encoder.adaptive_pol": 1}, r"encoder.adaptive_pol is not .*; did you mean adaptive_pool\?$"),
        ({"encoder.kind": "covn"}, r"encoder.kind: must be 'conv', 'impala', 'patches' or 'backbone' \(got 'covn'\)$"),
        ({"encoder": {}}, "encoder.kind is missing$"),
        ({"encoder": PATCHES}, "encoder.patch needs to divide observation.height 64 and width 64: change it$"),
        ({"encoder": {"kind": "backbone"}}, "\n  encoder.source is missing$"),
        (
            {"network.fusion": FUSED | {"heads": 5}},
            "network.fusion: width needs to be a multiple of heads, but 64 is none of 5: change",
        ),
        ({"network.fusion": UNIFIED | {"floats": {"tokens": 4}}}, "network.fusion.floats.kind is missing$"),
        (
            {"network.fusion": UNIFIED, "encoder.adaptive_pool": 1},
            "encoder.adaptive_pool is 1: set it to 2, or network.fusion.image",
        ),
        ({"network.fusion": UNIFIED, "encoder": PATCHES | {"patch": 64}}, "encoder.patch 64 is the whole image: lower"),
        ({"network.fusion": UNIFIED, "encoder": VIT}, "encoder.token is cls: set encoder.token to mean, or network"),
        ({"network.fusion": FUSED, "encoder": BARE_PATCHES}, "encoder.depth 0 .* fused_vector takes only their mean"),
        ({"network.fusion": UNIFIED | {"image": "one"}, "encoder": BARE_PATCHES}, "set encoder.depth to 1 or more, or"),
        (
            {"races.driver.pace_low": 1.01},
            "races.driver: pace_low needs to be at most pace, but 1.01 is greater than 1.0",
        ),
        (
            {"races.select.min_race_s": 9.0, "races.select.max_race_s": 8.0},
            "min_race_s needs to be at most max_race_s, but 9.0 is greater",
        ),
        (
            {"capture.backend": "game"},
            "capture: backend game needs the open map alone, but maps is all: set it to main",
        ),
        (
            {"capture.validation_fraction": 0.5, "capture.test_fraction": 0.5},
            "need to leave races to train: lower their sum below 1",
        ),
        ({"clone.offsets": [1, 2]}, r"clone: offsets need to rise from 0, which drives, but are \[1, 2\]"),
        (
            {"clone.dagger": AROUND | {"adviser": "recording"}},
            "dagger.adviser recording needs the main track alone: remove dagger.tracks",
        ),
        ({"clone.dagger": AROUND | {"tracks": []}}, "clone.dagger.tracks"),
        ({"simulator.physics.idle_rpm": 2e4}, "idle_rpm needs to be at most max_rpm, but 20000.0 is greater"),
        ({"simulator.physics.gear_up_mps": [65.0, 60.0, 63.0, 97.0]}, "gear_up_mps needs to rise"),
        ({"network.iqn.layer_norm": True}, "set transfer.iqn.float_head to fresh"),
        ({"clone.shape": "iqn"}, "transfer.ppo.trunk cloned needs .*, but clone.shape is iqn: set transfer.ppo"),
        (IQN_ALONE | {"clone.shape": "iqn"}, "guided needs a cloned policy, but clone.shape is iqn: set clone"),
        ({"transfer.iqn.heads": "cloned"}, "but clone.shape is policy: .* to fresh, or clone.shape to iqn"),
        ({"transfer.ppo.heads": "fresh"}, "set ppo.value_warmup_steps to 0"),
        ({"train.algorithm": "impala", "transfer.impala.heads": "fresh"}, "set impala.value_warmup_steps to 0"),
        # Budgets in which nothing can be learned.
        (
            {"train.max_env_steps": 16_383},
            "ppo.value_warmup_steps 16384 needs a longer run than train.max_env_steps 16383",
        ),
        (IQN_ALONE | {"train.max_env_steps": 16_383}, "iqn.warmup_steps 16384 needs a longer run than train.max_env"),
        (IQN_ALONE | {"train.max_env_steps": 4000, "iqn.warmup_steps": 0}, "iqn.start_steps 8192 needs a longer run"),
        ({"impala.correction.c_bar": 1.5}, "c_bar needs to be at most rho_bar, but 1.5 is greater than 1.0"),
        ({"train.learners": 2, "ppo.batch_size": 511}, "train.learners 2 needs equal shares of ppo.batch_size 511"),
        ({"train.learners": 2, "train.num_collectors": 3}, "learners need equal shares of num_collectors, but it is 3"),
        (
            {"train.learners": 2, "train.algorithm": "grpo"},
            "grpo needs a single learner, but train.learners is 2: set it",
        ),
        ({"impala.batch_size": 4096}, "batch_size needs to be at most steps_per_update, but 4096 is greater than 2048"),
        ({"iqn.mini_race_ms": 99.0}, "iqn.mini_race_ms 99 has 0 of 100 ms: set it to at least 100"),
        ({"iqn.n_steps": 71}, "iqn.n_steps 71 needs as many decisions, but iqn.mini_race_ms 7000 has 70 of 100 ms"),
        ({"network.actions_per_decision": 5}, "iqn.action_repeat 2 needs single actions, but .*_per_decision is 5"),
        ({"observation.frames": 2}, "iqn.action_repeat 2 needs frames .*, but observation.frames is 2: set one"),
        (
            {"iqn.prioritised": PRIORITISED | {"min_actions_left": 140}},
            "min_actions_left needs to leave a decision, but .* has 70",
        ),
        ({"pretrain.objective": SIMCLR | {"crop_pixels": 64.0}}, "crop_pixels needs to be less than 64"),
        ({"pretrain.objective": SIMCLR, "pretrain.batch_size": 1}, "several images in a batch, but batch_size is 1"),
        ({"pretrain.normalisation": [STILL | {"std": [0.0]}]}, r"normalisation.*std.*: must be greater than 0 \(got 0"),
        ({"pretrain.normalisation": [STILL | {"mean": [0, 0.5]}]}, "mean of velocity needs 1 number or 3, but has 2"),
        ({"pretrain.normalisation": [STILL, STILL]}, "normalisation needs each part once, but has velocity, velocity"),
        ({"observation.waypoints": 41}, "observation.waypoints: must be at most 40|less than or equal to 40"),
    ],
)
def test_what_cannot_be_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_params(with_keys(values), "wrong")
    assert re.search(message, str(caught.value))


ALL_OF_IQN = IQN_ALONE | {
    "clone.shape": "iqn",
    "network.iqn.guided": False,
    "iqn.warmup_steps": 0,
    "iqn.guide_floor": 0.0,
    "transfer.iqn.trunk": "cloned",
    "transfer.iqn.heads": "cloned",
}
BESIDE_PPO = ALL_OF_IQN | {"train.compared": ["ppo"], "transfer.ppo.trunk": "fresh", "ppo.value_warmup_steps": 0}
PQL = {"train.algorithm": "pql", "train.compared": []}
DPO = {"train.algorithm": "dpo", "train.compared": [], "train.start_from_earlier": 0.0}
FILE_OF_PAIRS = {"kind": "file", "path": "pairs.jsonl", "pairs_per_update": 4}
TEN_TRACKS = [{"kind": "campaign", "slugs": ["copper-oval", "sidewinder"]}] * 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"train.algorithm": "grpo", "train.cars_per_collector": 12},
            "grpo needs groups of 8 cars .*_collector is 12: make",
        ),
        (DPO | {"dpo.pairs.group_size": 5}, "dpo needs groups of 5 cars .*_collector is 32: make"),
        ({"train.algorithm": "grpo", "train.start_from_earlier": 0.2}, "train.start_from_earlier is 0.2: set it to 0"),
        (DPO | {"train.tracks": TEN_TRACKS}, "10 tracks have 8 groups: name fewer in train.tracks"),
        (DPO | {"dpo.pairs": FILE_OF_PAIRS, "dpo.action_repeat": 2}, "dpo.pairs file needs decisions taken once"),
        ({"grpo.encoder_epochs": 5, "train.algorithm": "grpo"}, "encoder_epochs needs to be at most epochs, but 5"),
        (PQL | {"network.actions_per_decision": 5}, "pql needs single actions, but .*_per_decision is 5: set it to 1"),
        (PQL | {"transfer.pql.heads": "fresh"}, "pql.critic_warmup_updates 1000 needs a trained policy, but"),
        (PQL | {"pql.buffer_steps": 100}, "start_steps needs to be at most buffer_steps, but 8192"),
        (PQL | {"pql.noise_least": 0.5}, "noise_least needs to be at most noise_most, but 0.5"),
        ({"network.analog": True}, r"iqn needs discrete actions, but network\.analog is true: set it"),
        (
            {"network.analog": True, "network.actions_per_decision": 5, "actions.ticks_per_action": 4},
            "4 ticks cannot be shared evenly by 5 actions: change network.actions_per_decision or actions.ticks",
        ),
        ({"network.analog": True, "network.actions_per_decision": 5}, "network.actions_per_decision is 5: set it to 1"),
        ({"network.actions_per_decision": [0, 15]}, "offsets .* multiples of 10 ms, but 15 is not: change network.act"),
        (
            {"network.actions_per_decision": [0, 50]},
            "within the decision of 50 ms, but 50 does not: change network.act",
        ),
        ({"network.actions_per_decision": [0, 10, 30]}, "iqn.action_repeat 2 needs single .* is 3: set one of them"),
        (PQL | {"network.actions_per_decision": [0, 20]}, "pql needs single actions, but .*_per_decision is 2: set it"),
        (
            {"network.analog": True, "train.compared": [], "clone.labels": "hard"},
            "clone.labels is hard: set it to soft",
        ),
        ({"network.analog": True, "train.compared": [], "clone.shape": "iqn"}, "clone.shape is iqn: set it to policy"),
    ],
)
def test_what_an_algorithm_cannot_do_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked_params(with_keys(values), "wrong")


def test_what_fits_together_is_taken() -> None:
    """Pairs from a file need no equal starts; a clone shaped like IQN transfers whole; untrained algorithms pass."""
    for values in (
        DPO | {"train.cars_per_collector": 5, "dpo.pairs": FILE_OF_PAIRS},
        {"network.iqn.layer_norm": True, "train.compared": []},
        ALL_OF_IQN,
        ALL_OF_IQN | {"network.iqn.layer_norm": True},
        ALL_OF_IQN | {"network.actions_per_decision": 5, "iqn.action_repeat": 1},
        {"network.actions_per_decision": [0, 10, 30], "iqn.action_repeat": 1},
        BESIDE_PPO | {"transfer.ppo.heads": "fresh"},
        {"track.length_m": 600},
    ):
        checked_params(with_keys(values), "wrong")
    normed = BESIDE_PPO | {"transfer.ppo.heads": "fresh", "network.iqn.layer_norm": True}
    assert "transfer.ppo.heads cloned needs" in refusal(with_keys(BESIDE_PPO))
    assert re.search("transfer.ppo.float_head cloned needs .* network.iqn.layer_norm", refusal(with_keys(normed)))
    pooled = {"kind": "conv", "adaptive_pool": 2}
    for encoder in (BARE_PATCHES, PATCHES | {"patch": 32}, VIT | {"token": "mean"}, pooled):
        checked_params(with_keys({"network.fusion": UNIFIED, "encoder": encoder}), "wrong")
    checked_params(with_keys({"network.fusion": UNIFIED | {"image": "one"}, "encoder": VIT}), "wrong")


def test_a_message_holds_key_rule_and_value_alone() -> None:
    data = with_keys({"iqn.num_quantiles": 7, "train.checkpoint_s": 0, "encoder": {}, "clone.focal": 0.0})
    with pytest.raises(UserError) as caught:
        checked_params(data, "p.yaml is wrong")
    assert str(caught.value).splitlines() == [
        "p.yaml is wrong:",
        "  encoder.kind is missing",
        f"  clone.focal is not a key that is known here; known are {', '.join(CloneParams.model_fields)}",
        "  train.checkpoint_s: must be greater than 0 (got 0)",
        "  iqn: num_quantiles and num_quantiles_acting must be even: the second half mirrors the first",
    ]
    assert "`rulka params list` shows all keys" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is not UTF-8 text: byte 0 is 0xff"),
        ("a: ä".encode("latin-1"), "is not UTF-8 text: byte 3 is 0xe4"),
        (b"a: [", "is not valid YAML"),
        (b"a: 2026-13-45", "is not valid YAML: month must be in 1..12"),
        (b"a: 1\nb: 2\na: 3\n", r'found duplicate key "a" with value "3" .original value: "1"., line 3$'),
        (b"a:\n\tb: 1\n", r"found a tab; YAML indents by spaces, line 2$"),
        (b"[" * 1500, "is not valid YAML"),
        (b"", "must hold sections of keys, not nothing"),
        (b"- 1", r"must hold sections of keys, not \[1\]"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_named_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "params.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_params(path)


def test_scalars_are_what_dvc_takes_them_for() -> None:
    """DVC compares them to detect changed stages, and writes them into `dvc.lock`."""
    texts = (
        "010, 1:30, 1e-3, 1_000, 0o10, 0x1f, yes, off, ~, null, 2026-11-23, '1', .5, +1., -.inf, 1e400, a:b, !!str 12"
    )
    for text in texts.split(", "):
        ours, theirs = parsed(f"a: {text}")["a"], parse_yaml(f"a: {text}", "params.yaml")["a"]
        assert (ours, type(ours)) == (theirs, type(theirs)), text
    assert parsed("[010, 1e-3, yes, 1:30]") == [10, 0.001, "yes", "1:30"]
