"""The benchmark of the dip after cloning, to its end, on a run that is over at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import value_warmup
from rulka.actions import action_table
from rulka.agents.algorithms import ALGORITHMS
from rulka.agents.waiting import keep_block
from rulka.artifacts import Artifact, sight_contract
from rulka.buffers.experience import BlockSpec, new_block
from rulka.observation import reference_normalisation
from rulka.params import Params, read_params
from rulka.race_settings import RaceSettings
from rulka.tracks.generate import generate_track
from rulka.tracks.track import load_track
from rulka.training.races import Races

ROOT = Path(__file__).parents[2]


def small_params() -> Params:
    params = read_params(ROOT / "params.yaml").model_dump()
    params["network"] |= {"float_hidden": 16, "dense_hidden": 32}
    params["train"] |= {"cars_per_collector": 4, "block_steps": 8}
    params["race_end"] |= {"max_race_s": 2.0}
    params["ppo"] |= {"steps_per_update": 32, "batch_size": 16, "epochs": 1, "value_warmup_steps": 64}
    return Params.model_validate(params)


@pytest.fixture
def setting(tmp_path: Path) -> value_warmup.Setting:
    params, track = small_params(), tmp_path / "track.npz"
    generate_track(**params.track.model_dump() | {"length_m": 150.0}).save(track)
    table, normalisation = action_table(params.actions.ticks_per_action), reference_normalisation()
    torch.manual_seed(0)
    sizes = (params.observation, params.encoder, params.network)
    network = ALGORITHMS["ppo"].build_network(*sizes, normalisation, table.num_actions)
    initial = Artifact(
        "agent_init",
        network.state_dict(),
        {},
        sight_contract(params.observation),
        table,
        normalisation,
        {},
    )
    settings = RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, params.rewards, params.train, 1
    )
    return value_warmup.Setting(params, initial, Races(settings, [load_track(track)]).make_cars)


def test_rows_of_a_run(setting: value_warmup.Setting) -> None:
    """64 decisions of warm-up, in which the clone stays as it is, then an update every 32; looked at every 64."""
    rows = value_warmup.train(setting, 1, value_warmup.Budget(env_steps=128, check_every=64, num_races=2))
    assert [row["env_steps"] for row in rows] == [0, 64, 128]
    assert rows[1]["mean_progress_m"] == rows[0]["mean_progress_m"]
    assert "update_kl" in rows[2]
    summary = value_warmup.summarise(rows)
    assert (summary["clone"], summary["lowest"], summary["lowest_at"]) == (0.0, 0.0, 64)


def test_returns_of_whole_races_by_hand() -> None:
    """gamma 0.5, two blocks of two decisions: rewards 1, 2 and the end; a reset; a last race whose end is not seen."""
    blocks = [new_block(BlockSpec(2, 1, 1, 1, 1)) for _ in range(2)]
    blocks[0].reward[:, 0], blocks[0].terminated[1] = [1.0, 2.0], True
    blocks[1].reward[:, 0], blocks[1].is_reset[0] = [0.0, 4.0], True
    returns, is_known = value_warmup.whole_returns([keep_block(block) for block in blocks], 0.5)
    assert is_known[:, 0].tolist() == [True, True, False, False]
    assert returns[:2, 0].tolist() == [2.0, 2.0]


def test_fits_to_their_end(
    setting: value_warmup.Setting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(value_warmup, "read_setting", lambda _: setting)
    monkeypatch.setattr("sys.argv", ["value_warmup", "--fits"])
    value_warmup.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert len(head.split()) == 1 + 2 * len(value_warmup.FIT_RIDGES)
    assert [row.split()[0] for row in rows] == ["64", "128", "256"]


@pytest.mark.parametrize("is_json", [False, True])
def test_command_to_its_end(
    setting: value_warmup.Setting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    monkeypatch.setattr(value_warmup, "read_setting", lambda _: setting)
    arguments = ["--seeds", "1,2", "--env-steps", "64", "--check-every", "64", "--races", "2"]
    monkeypatch.setattr("sys.argv", ["value_warmup", *arguments, *(["--json"] if is_json else [])])
    value_warmup.main()
    printed = capsys.readouterr().out
    if is_json:
        assert [[check["seed"] for check in run] for run in json.loads(printed)["checks"]] == [[1, 1], [2, 2]]
    else:
        assert len(printed.splitlines()) == 3
