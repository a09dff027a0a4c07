import pytest

from rulka.recordings.errors import ContradictoryTimeError
from rulka.recordings.model import Ghost, InputEvent, RecordingHeader
from rulka.recordings.reader import complete_ghosts, parse_recording
from rulka.recordings.times import MAX_PERIOD_MS, check_times


def ghost_of(forge, race_time_ms: int | None, checkpoints: tuple[int | None, ...]) -> Ghost:
    """A ghost with samples from 0 to 400 ms."""
    ghost = parse_recording(forge.recording_file()).ghosts[0]
    ghost.race_time_ms, ghost.checkpoint_times_ms = race_time_ms, checkpoints
    return ghost


def test_times_that_can_be(forge) -> None:
    rows = (300, (150, 300)), (300, ()), (None, (150, None)), (300, (None, 300)), (400 + MAX_PERIOD_MS, ())
    for race_time_ms, checkpoints in rows:
        check_times(ghost_of(forge, race_time_ms, checkpoints))


def test_times_that_contradict_each_other(forge) -> None:
    rows = (
        (2**31 - 1, (150, 2**31 - 1), "races last from 1 ms to 3 hours"),
        (0, (), "races last"),
        (300, (150, 290), "the last checkpoint was at 290 ms"),
        (300, (150, None), "no last checkpoint"),
        (300, (310, 300), "a checkpoint was at 310 ms"),
        (300, (0, 300), "a checkpoint was at 0 ms"),
        (300, (200, 100, 300), "a checkpoint at 200 ms was followed by one at 100 ms"),
        (300, (100, None, 100, 300), "a checkpoint at 100 ms was followed by one at 100 ms"),
        (401 + MAX_PERIOD_MS, (), "the last sample was at 400 ms"),
    )
    for race_time_ms, checkpoints, reason in rows:
        message = f"the race time {race_time_ms} ms cannot be: .*{reason}"
        with pytest.raises(ContradictoryTimeError, match=message) as caught:
            check_times(ghost_of(forge, race_time_ms, checkpoints))
        assert caught.value.hint


@pytest.mark.parametrize(("period_ms", "can_be"), [(100, True), (50, True), (33, True), (0, False), (2**32 - 1, False)])
def test_samples_lie_as_far_apart_as_a_game_or_a_tool_writes_them(forge, period_ms: int, can_be: bool) -> None:
    ghost = parse_recording(forge.recording_file(race_time=130, period_ms=period_ms)).ghosts[0]
    if can_be:
        check_times(ghost)
        return
    with pytest.raises(ContradictoryTimeError, match=f"two samples lie {period_ms} ms apart, 10 to 200 can be"):
        check_times(ghost)


def turbo(xml_best: str, finish_ms: int | None) -> Ghost:
    events = [InputEvent(0, "Accelerate", 1)]
    events += [] if finish_ms is None else [InputEvent(finish_ms, "_FakeFinishLine", 128)]
    ghost = Ghost(events=tuple(events))
    complete_ghosts([ghost], (), RecordingHeader("recording", xml={"times.best": xml_best}))
    return ghost


def test_the_time_that_turbo_stores_elsewhere() -> None:
    ghost = turbo("32433", 32433)
    assert (ghost.race_time_ms, ghost.checkpoint_times_ms, ghost.is_finished) == (32433, (32433,), True)


def test_a_time_that_only_one_place_says_is_none() -> None:
    for xml_best, finish_ms in (("32433", None), ("-1", 32433), ("", 32433), ("32433", 32430)):
        assert turbo(xml_best, finish_ms).race_time_ms is None
