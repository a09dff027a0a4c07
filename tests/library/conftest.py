"""A folder with the outputs of a pipeline."""

from pathlib import Path

import pytest

from rulka.contracts.actions import FORWARD, action_table
from rulka.contracts.artifacts import Artifact, load_artifact, network_input_contract, save_artifact
from rulka.contracts.observation import reference_normalisation
from rulka.datasets.formats.races import RaceDataset, write_races
from rulka.params import read_params
from tests.conftest import write_synthetic_frames
from tests.docs.test_pages import ROOT
from tests.recordings import forge
from tests.tasks.test_evaluate import demonstration, save_driver, short_track


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with agents of two algorithms, an encoder, frames, races and a recording."""
    folder = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        save_driver(folder / "data" / "agent", "agent", "ppo", FORWARD)
        save_driver(folder / "data" / "values", "agent", "iqn", FORWARD)
        params, agent = read_params(), load_artifact(folder / "data" / "agent", "agent")
    weights = {name: each for name, each in agent.tensors.items() if name.startswith("encoder.")}
    config = {"encoder": params.encoder.model_dump(mode="json")}
    contract, normalisation = network_input_contract(params.observation), reference_normalisation()
    encoder = Artifact("encoder", weights, config, contract, action_table(5), normalisation, {})
    save_artifact(folder / "data" / "encoder", encoder)
    (folder / "mine.Replay.Gbx").write_bytes(forge.recording_file())
    write_synthetic_frames(folder / "data" / "frames")
    (folder / "data" / "races").mkdir()
    write_races(folder / "data" / "races", RaceDataset((demonstration(0, 8.0),), short_track(), ()))
    return folder
