"""The driver that comes with the package: for roads that it has never seen, without any training here."""

from __future__ import annotations

import torch

from rulka.agents.load import SHIPPED
from rulka.contracts.artifacts import load_artifact
from rulka.evaluation.one_agent import evaluate_on_tracks
from rulka.library import load_agent
from rulka.operations.kept import find_agent
from rulka.params import reference_params
from rulka.tracks.campaign import campaign_track
from rulka.tracks.generate import generate_track


def test_it_fits_this_version() -> None:
    params = reference_params()
    agent = load_artifact(find_agent(SHIPPED), "policy", observation=params.observation, encoder=params.encoder)
    assert {tensor.dtype for tensor in agent.tensors.values()} == {torch.float32}, "kept in half, used in single"
    assert load_agent(SHIPPED).algorithm == "cloning"


def test_it_finishes_on_roads_that_it_has_never_seen() -> None:
    tracks = [campaign_track("copper-oval"), generate_track(90_001, 600.0, 16.0, 0.12, 150.0, "easy")]
    found = evaluate_on_tracks(find_agent(SHIPPED), tracks, params=reference_params(), num_races=2)
    assert found["finish_rate"] == 1.0
