"""What is read for the report: training logs and demonstrations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.datasets.formats.races import Race, Source
from rulka.evaluation.dataset import demonstration_results
from rulka.machine.errors import UserError
from rulka.report.learning_plots import read_training_log
from rulka.tracks.top_view import top_view
from rulka.tracks.track import Track


def test_training_log(tmp_path: Path) -> None:
    rows = [
        {"env_steps": 10, "record_s": None, "phase": "warm-up"},
        {"env_steps": 20, "record_s": 31.5},
        {"env_steps": 30, "record_s": 30.0, "finish_rate": 0.25},
        {"env_steps": 40, "record_s": -1e308},
        {"env_steps": 1e308, "record_s": 29.0},
    ]
    path = tmp_path / "training.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    log = read_training_log(path, "PPO")
    steps, times_s = log.curve("record_s")
    assert (steps.tolist(), times_s.tolist()) == ([20, 30], [31.5, 30.0])
    assert len(log.curve("never_written")[0]) == 0
    assert log.curve("finish_rate")[1].tolist() == [0.25]
    assert len(log.curve("phase")[0]) == 0, "words are no curve"
    path = tmp_path / "training.jsonl"
    for line in ('{"env_steps": 1, "minu', '{"loss": 0.1}'):
        path.write_text(line)
        with pytest.raises(UserError, match=r"training\.jsonl is damaged"):
            read_training_log(path, "PPO")
    path.write_text("")
    assert len(read_training_log(path, "PPO").curve("loss")[0]) == 0


def race_of(source: Source, gates: tuple[int, ...], race_time_ms: int | None, end_ms: int = 6000) -> Race:
    """10 m/s along z, sampled every 100 ms, longer than the race; gas from 2 s on."""
    time_ms = np.arange(0, end_ms + 100, 100)
    state = np.zeros((len(time_ms), NUM_CAR_FIELDS), np.float32)
    state[:, CAR["position"].stop - 1] = time_ms / 100
    state[:, CAR["rotation"]] = np.eye(3).ravel()
    controls = np.zeros((end_ms // 10, 3), np.float32)
    controls[200:, 1] = 1.0
    return Race(
        "r", source, "", "p", "straight", race_time_ms, race_time_ms is not None, gates, None, controls, time_ms, state
    )


def test_demonstrations_by_hand(track: Track) -> None:
    """Finished after 5,050 ms: samples 0 to 5,100 ms are its race, with the gates' own times."""
    (result,) = demonstration_results([race_of("driver", (2000, 4000, 5050), 5050)], track)
    assert (result.time_ms, result.sample_ms[-1], result.progress_m) == (5050, 5100, 100.0)
    assert result.gate_times_ms.tolist() == [2000, 4000, 5050]
    # of the centre of mass, 0.37 m ahead of the position
    np.testing.assert_allclose(result.along_m[:3], [0.37, 1.37, 2.37], atol=1e-4)
    assert result.controls[19:22, 1].tolist() == [0.0, 1.0, 1.0]  # gas is pressed at 2,000 ms
    (result,) = demonstration_results([race_of("driver", (2000,), None)], track)
    assert (result.time_ms, result.gate_times_ms.tolist()) == (None, [2000, 0, 0])
    assert result.progress_m == pytest.approx(60.37, abs=0.01)
    # A recording with fewer checkpoints than the track has gates still finishes at the last gate.
    (result,) = demonstration_results([race_of("recording", (2000, 5050), 5050)], track)
    assert result.gate_times_ms.tolist() == [2000, 0, 5050]


def test_view_from_above_keeps_left_on_the_left() -> None:
    """Along +z with up +y, left is +x: on the page, start to finish points right and left is up."""
    centre_m = np.zeros((101, 3))
    centre_m[:, 2] = np.arange(101) * 0.5
    flat = np.zeros(101)
    view = top_view(
        Track("s", "s", centre_m, flat + 10, flat, flat.astype(np.uint8), flat.astype(np.uint8), np.array([50.0]), "x")
    )
    start, finish, left = view(np.array([[0.0, 5.0, 0.0], [0.0, 9.0, 50.0], [3.0, 0.0, 0.0]]))
    np.testing.assert_allclose(finish - start, [50.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(left - start, [0.0, 3.0], atol=1e-9)
