"""Small inputs of the late stages: artifacts with random weights, and a short track with demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.encoders.build import build_encoder
from models.encoders.config import EncoderConfig
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.networks import build_clone_policy
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import Artifact, network_input_contract, save_artifact
from rulka.contracts.observation import Normalisation, reference_normalisation
from rulka.params import Params, read_params, reference_params
from rulka.training.agent_run import Folders
from tasks.capture import capture
from tasks.races import races
from tasks.transfer import transfer
from tests.conftest import sees

CONV = reference_params().encoder
PLAIN_IQN = reference_params().network.iqn.model_dump() | {"tau_embedding": 8}
SMALL_NETWORK: dict[str, Any] = {
    "float_hidden": 16,
    "dense_hidden": 32,
    "actions_per_decision": 1,
    "analog": False,
    "fusion": {"kind": "concat"},
    "iqn": PLAIN_IQN,
}


@pytest.fixture(scope="session")
def small_params() -> Params:
    """The project's parameters, with small networks, a short track and very little training."""
    params = read_params(Path(__file__).resolve().parents[2] / "params.yaml").model_dump()
    params["network"] |= SMALL_NETWORK
    params["track"] |= {"length_m": 150.0}
    params["races"] |= {"num_demonstrations": 3, "reference_decisions": 0}
    params["capture"] |= {"num_workers": 1, "validation_fraction": 0.0, "test_fraction": 0.0}
    params["race_end"]["max_race_s"] = 4.0
    params["train"] |= {
        "algorithm": "ppo",
        "compared": ["iqn"],
        "precision": "float32",
        "num_collectors": 0,
        "cars_per_collector": 4,
        "block_steps": 16,
        "max_env_steps": 512,
        "max_minutes": None,  # otherwise schedules and checks would follow the clock on a slow machine
        "num_checks": 2,
        "check_races": 2,
        "check_candidates": 2,
        "final_check_races": 2,
    }
    params["ppo"] |= {"steps_per_update": 128, "batch_size": 64, "epochs": 2, "value_warmup_steps": 128}
    params["iqn"] |= {"start_steps": 128, "batch_size": 16, "samples_per_insert": 1.0, "warmup_steps": 128}
    return Params.model_validate(params)


def write_pretrained(folder: Path, encoder: EncoderConfig, places: int = 1) -> tuple[Path, Path]:
    """Writes an encoder and a cloned policy with random weights and `places` actions per decision; returns folders."""
    torch.manual_seed(0)
    observation, single, table = sees(64, 64), action_table(5), action_table(5, places)
    network = NetworkParams(**SMALL_NETWORK | {"actions_per_decision": places})
    seen: Normalisation = reference_normalisation()
    normalisation = seen.for_chunks(places)
    tensors = {f"encoder.{name}": tensor for name, tensor in build_encoder(encoder, 64, 64).state_dict().items()}
    policy = build_clone_policy(observation, encoder, network, normalisation, table.space.num_outputs)
    config: dict[str, Any] = {"encoder": encoder.model_dump()}
    save_artifact(
        folder / "encoder", Artifact("encoder", tensors, config, network_input_contract(observation), single, seen)
    )
    config |= {"network": network.model_dump(mode="json"), "num_actions": table.num_actions, "shape": "policy"}
    contract = network_input_contract(observation, places)
    save_artifact(folder / "policy", Artifact("policy", policy.state_dict(), config, contract, table, normalisation))
    return folder / "encoder", folder / "policy"


@pytest.fixture
def encoder() -> EncoderConfig:
    """Encoder of the pretrained artifacts; tests parametrize it to change it."""
    return CONV


@pytest.fixture
def pretrained(tmp_path: Path, encoder: EncoderConfig) -> tuple[Path, Path]:
    """Folders of an encoder and of a cloned policy."""
    return write_pretrained(tmp_path, encoder)


@pytest.fixture(scope="session")
def driven(small_params: Params, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a few races of the built-in driver on a short track, and of their frames."""
    folder, params = tmp_path_factory.mktemp("driven"), small_params
    (folder / "recordings").mkdir()
    # The built-in driver needs longer than the shortened training races.
    longer = params.model_copy(update={"race_end": reference_params().race_end})
    races(longer, recordings_dir=folder / "recordings", out_dir=folder / "races")
    capture(params, races_dir=folder / "races", out_dir=folder / "frames", runs_dir=folder / "runs")
    return folder / "races", folder / "frames"


@pytest.fixture
def folders(small_params: Params, pretrained: tuple[Path, Path], driven: tuple[Path, Path], tmp_path: Path) -> Folders:
    """Folders of a training run whose initial agents exist."""
    return begin_training(small_params, pretrained, driven, tmp_path)


def changed(params: Params, section: str, **values: Any) -> Params:
    update = getattr(params, section).model_copy(update=values)
    return params.model_copy(update={section: update})


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def begin_training(params: Params, pretrained: tuple[Path, Path], driven: tuple[Path, Path], folder: Path) -> Folders:
    """Makes the initial agents of a training run, and returns its folders."""
    init = folder / "agent_init"
    transfer(params, encoder_dir=pretrained[0], policy_dir=pretrained[1], out_dir=init)
    return Folders(init, *driven, folder / "runs", folder / "agent")
