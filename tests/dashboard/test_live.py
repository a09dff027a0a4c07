"""What pages read of a run while it writes."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.dashboard.live import MAX_POINTS, MetricsReader, cars_on_page, read_live, track_outline
from rulka.dashboard.runs import Runs
from rulka.machine.errors import UserError
from rulka.runtime import live
from rulka.runtime.live import LIVE_FILE, METRICS_FILE, LiveCars
from rulka.tracks.track import Track
from tests.waiting import PATIENCE_S


def snapshot(folder: Path) -> dict[str, Any]:
    return Runs(folder).snapshot(folder.as_posix())


def test_snapshot_by_hand(run: Path) -> None:
    shown = snapshot(run)
    assert shown["latest"] == {"env_steps": 128, "minutes": 1.5, "loss": 1.0, "best_time_s": 13.5}
    curves = {"best_time_s": [[128, 13.5]], "loss": [[64, 2.0], [128, 1.0]], "minutes": [[64, 0.5], [128, 1.5]]}
    assert shown["curves"] == curves
    assert shown["is_running"]
    assert [car[2] for car in shown["cars"]] == [40.0, 30.0, 5.0]  # collector 0 first; who is nowhere is not shown
    assert shown["num_damaged"] == 0
    lines = [json.dumps({"env_steps": k, "loss": k}) + "\n" for k in range(1001)]
    (run / METRICS_FILE).write_text("".join(lines))
    curve = snapshot(run)["curves"]["loss"]
    assert len(curve) <= MAX_POINTS
    assert curve[-1] == [1000, 1000]


def test_cars_and_road_lie_on_one_page(track: Track) -> None:
    """A car in the middle of the road is halfway between its edges there; one to the left is nearer to the left one."""
    outline = track_outline(track)
    zone = round(100.0 / ZONE_SPACING_M)
    ahead = track.centre_m[zone + 1] - track.centre_m[zone]
    left = np.array([ahead[2], 0.0, -ahead[0]]) / np.hypot(ahead[0], ahead[2])  # x to the left of z, y up
    places = np.stack([track.centre_m[zone], track.centre_m[zone] + 0.25 * track.width_m[zone] * left])
    cars = np.column_stack([places, [1.0, 2.0]])
    middle, aside = (np.array(car[:2]) for car in cars_on_page(track, cars))
    edges = [np.array(outline[side][zone // 4][:2]) for side in ("left", "right")]
    np.testing.assert_allclose(middle, (edges[0] + edges[1]) / 2, atol=0.02)
    np.testing.assert_allclose(aside, 0.75 * edges[0] + 0.25 * edges[1], atol=0.1)
    outline = track_outline(track)
    assert len(outline["left"]) == len(outline["right"])
    assert len(outline["gates"]) == 1 + len(track.gate_m)
    assert outline["gates"][0] == [outline["left"][0], outline["right"][0]]
    assert outline["gates"][-1] == [outline["left"][-1], outline["right"][-1]]
    assert track_outline(None)["left"] == []


def test_damage_is_left_out_and_counted(tmp_path: Path, run: Path) -> None:
    wrong = ["", "{", '{"cars": [[[1, 2]]], "written_s": 1}', '{"cars": 1}', "[]", '{"cars": [["a"]]}', "[" * 100_000]
    numbers = ("NaN", "1e999", "1e308", "9" * 400, "null")
    wrong += [f'{{"cars": [[1, 2, 3, {number}]], "written_s": 1}}' for number in numbers]
    for text in wrong:
        (tmp_path / LIVE_FILE).write_text(text)
        assert len(read_live(tmp_path).cars) == 0
    (run / METRICS_FILE).write_bytes(
        b'{"env_steps": 1, "loss": 3}\n\xff\xfe\n[]\n{"loss": 2}\n{"env_steps": 2, "loss": 4}\n'
        b'{"env_steps": 3, "loss": NaN}\n{"env_steps": 1e999}\n{"env_steps": 3, "minutes": "x"}\n'
        b'{"env_steps": 3, "loss": 1e308}\n{"env_steps": 3, "minutes": -1e308}\n{"env_steps": 1e308, "loss": 5}\n'
        + b"[" * 100_000
        + b"\n"
        + b'{"env_steps": 3, "loss": %s}\n' % (b"9" * 400)
    )
    shown = snapshot(run)
    assert shown["curves"]["loss"] == [[1, 3], [2, 4]]
    assert shown["num_damaged"] == 11


def test_cars_are_written_at_most_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now_s[0])
    cars = LiveCars(tmp_path)
    written = []
    for now_s[0] in (100.0, 100.5, 100.9, 101.0, 101.5):
        (tmp_path / LIVE_FILE).unlink(missing_ok=True)
        cars.write_when_due()
        written.append((tmp_path / LIVE_FILE).exists())
    assert written == [True, False, False, True, False]


def test_a_folder_that_is_gone_is_named(run: Path) -> None:
    cars = LiveCars(run)
    shutil.rmtree(run.parent)
    with pytest.raises(UserError, match=rf"{run.as_posix()} was removed, or moved, while the training in it ran"):
        cars.write_when_due()


def test_a_run_that_says_nothing_is_not_at_work(run: Path) -> None:
    """Nor one of a time to come: the clock was set back."""
    content = json.loads((run / LIVE_FILE).read_text())
    for ago_s in (2 * PATIENCE_S, -3600.0):
        (run / LIVE_FILE).write_text(json.dumps(content | {"written_s": time.time() - ago_s}))
        assert not snapshot(run)["is_running"]


def lines_of(*numbers: int) -> str:
    return "".join(json.dumps({"env_steps": number, "loss": float(number)}) + "\n" for number in numbers)


def test_only_what_is_new_is_parsed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line waits until it is whole."""
    parsed: list[float] = []
    monkeypatch.setattr(MetricsReader, "_add", lambda _, values: parsed.append(values["env_steps"]))
    (run / METRICS_FILE).write_text("")
    reader = MetricsReader(run / METRICS_FILE)
    for part in (line[half] for line in map(lines_of, (1, 2, 3)) for half in (slice(9), slice(9, None))):
        with (run / METRICS_FILE).open("a") as file:
            file.write(part)
        reader.read_on()
    assert parsed == [1, 2, 3]


def test_a_run_that_went_on_from_an_earlier_checkpoint_is_read_anew(run: Path) -> None:
    """It cuts its metrics off behind the checkpoint, and may have written more than before until the next look."""
    path = run / METRICS_FILE
    for after in ((1, 2), (1, 2, 7), (1, 2, 7, 8, 9, 10), ()):
        path.write_text(lines_of(1, 2, 3, 4))
        runs, key = Runs(run), run.as_posix()
        assert runs.snapshot(key)["curves"]["loss"][-1] == [4, 4.0]
        path.write_text(lines_of(*after))
        assert [point[0] for point in runs.snapshot(key)["curves"].get("loss", [])] == list(after)
