"""What a run measures of itself, and its log, also where a full disk or a kill left it half written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rulka.buffers.experience import BlockSpec
from rulka.runtime import metrics
from rulka.runtime.live import METRICS_FILE
from rulka.runtime.messages import BlockFilled, CollectorTimes, RaceEnd
from rulka.runtime.metrics import LearningMeans, RaceCounts, TimeShares
from rulka.runtime.metrics_log import MetricsLog, read_metrics

BLOCK = BlockSpec(num_steps=25, num_cars=2, height=3, width=5, num_floats=6)


class Clock:
    """A clock that stands still until it is moved on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    process_time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def filled(version: int, spent: CollectorTimes) -> BlockFilled:
    return BlockFilled(0, version, (), np.zeros((1, 2), np.float32), spent)


def test_time_shares_of_learner_and_collectors(clock: Clock) -> None:
    shares = TimeShares(allowed_lag=1)
    with shares.spending("waiting"):
        clock.now_s += 2.0
    for activity, seconds in (("inserting", 1.0), ("updating", 4.0), ("checking", 3.0)):
        with shares.spending(activity):  # pyright: ignore[reportArgumentType]
            clock.now_s += seconds
    shares.add_deliveries(3)
    shares.add_deliveries(0)
    shares.add_block(0, filled(4, CollectorTimes(1.0, 0.0, 2.0, 1.0)), BLOCK, version=6)
    shares.add_block(1, filled(5, CollectorTimes(0.0, 1.0, 3.0, 0.0)), BLOCK, version=6)
    shares.add_update(250.0, 3000)
    values, each = shares.take()
    assert values["env_steps_per_s"] == 10.0
    assert values["samples_learned_per_s"] == 25.0
    assert values["learner_waiting_share"] == 0.2
    assert values["learner_updating_share"] == 0.4
    assert values["learner_checking_share"] == 0.3
    assert values["learner_busy_share"] == 0.5
    assert values["learner_saving_share"] == 0.0
    assert values["blocks_ready"] == 1.5
    assert (values["versions_behind"], values["most_versions_behind"]) == (1.5, 2)
    assert (values["freshness"], values["fresh_samples_per_s"]) == (0.5, 12.5), "one of two lags by more than 1"
    assert values["blocks_mb_per_s"] == pytest.approx(2 * BLOCK.num_bytes / 1e7)
    assert values["weights_mb_per_s"] == pytest.approx(3000 / 1e7)
    assert values["collectors_acting_share"] == 5.0 / 8.0
    assert values["collectors_waiting_share"] == 1.0 / 8.0
    assert each["Collectors/0/acting_share"] == 0.5
    assert each["Collectors/1/loading_share"] == 0.25


def test_a_report_covers_only_its_own_time(clock: Clock) -> None:
    shares = TimeShares(None)
    shares.add_block(0, filled(0, CollectorTimes(1.0, 1.0, 1.0, 1.0)), BLOCK, version=3)
    clock.now_s += 1.0
    shares.take()
    clock.now_s += 1.0
    values, each = shares.take()
    assert values["env_steps_per_s"] == 0.0
    assert values["collectors_acting_share"] is None
    assert values["versions_behind"] is None
    assert "freshness" not in values, "any age will do"
    assert each == {}


def test_learning_means_and_spread_of_gradient_norms() -> None:
    means = LearningMeans()
    for norm in (1.0, 2.0, 9.0):
        means.add({"loss": norm, "grad_norm": norm})
    resumed = LearningMeans()
    resumed.load_state_dict(means.state_dict())
    taken = resumed.take()
    assert taken["loss"] == taken["grad_norm"] == 4.0
    # The 0.9 quantile of three lies 0.8 of the way from the second to the third.
    assert (taken["grad_norm_median"], taken["grad_norm_d9"], taken["grad_norm_max"]) == (2.0, pytest.approx(7.6), 9.0)
    assert "loss_max" not in taken
    assert resumed.take() == {}


def race(
    time_ms: int, progress_m: float, *, is_finished: bool = True, is_full_race: bool = True, reward: float = 1.0
) -> RaceEnd:
    return RaceEnd(0, 0, is_finished, is_full_race, time_ms, progress_m, reward)


def test_races_begun_down_the_track_count_neither_as_finished_nor_as_far_nor_as_fast() -> None:
    """The mean return is that of all races; a car that never moves from 580 of 600 m makes 0 m of progress, not 580."""
    statistics = RaceCounts()
    assert set(statistics.values().values()) == {None, 0}
    statistics.add([race(2_000, 580.0, is_finished=False, is_full_race=False), race(200, 600.0, is_full_race=False)])
    values = statistics.values()
    assert (values["finish_rate"], values["mean_progress_m"], values["mean_return"]) == (None, None, 1.0)
    statistics.add(
        [
            race(20_000, 100.0),
            race(30_000, 100.0),
            race(1_000, 10.0, is_finished=False),
            race(9, 9.0, is_full_race=False),
        ]
    )
    values = statistics.values()
    assert (values["finish_rate"], values["mean_progress_m"], values["num_races"]) == (pytest.approx(2 / 3), 70.0, 6)
    assert (values["mean_training_time_s"], values["best_training_time_s"]) == (25.0, 20.0)
    restored = RaceCounts()
    restored.load_state_dict(statistics.state_dict())
    assert restored.values() == values


FIRST = {"env_steps": 10, "loss": 10.0}


def write(folder: Path, env_steps: int, num_bytes: int, *steps: int) -> int:
    """Opens the log where a run goes on, writes reports at some steps, and returns its length before the last one."""
    log, length = MetricsLog(folder, env_steps=env_steps, num_bytes=num_bytes), 0
    for step in steps:
        length = log.num_bytes
        log.write(step, {"Training": {"loss": float(step) if step < 30 else float("nan"), "text": "x"}}, {})
    log.close()
    return length


def test_what_came_after_the_checkpoint_is_forgotten_and_a_new_run_inherits_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        num_bytes = write(tmp_path, 0, 0, 10, 20)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
    write(tmp_path, 10, num_bytes, 30)
    expected = [FIRST | {"text": "x"}, {"env_steps": 30, "loss": None, "text": "x"}]
    assert list(read_metrics(tmp_path / METRICS_FILE)) == expected
    assert caplog.text == "", "nothing was damaged"


@pytest.mark.parametrize("end", [b"", b'{"env_st', b"\0" * 20, b"7\n", b"\xff\xfe\n"])
def test_a_run_goes_on_with_what_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture, end: bytes) -> None:
    """The file may also be shorter than the checkpoint remembers."""
    write(tmp_path, 0, 0, 10)
    path = tmp_path / METRICS_FILE
    path.write_bytes(path.read_bytes() + end)
    write(tmp_path, 20, 1000, 25)
    assert [line["env_steps"] for line in read_metrics(path)] == [10, 25]
    assert (f"{METRICS_FILE}: 1 damaged lines are left out" in caplog.text) == bool(end)
