"""An outside judge, for which a small program stands in: it agrees, disagrees, crashes, hangs or lacks its files."""

import json
import shlex
import sys
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rulka.cli import main
from rulka.contracts.actions import FORWARD
from rulka.datasets.formats.races import RaceDataset, write_races
from rulka.game import judge
from rulka.game.judge import Judgement, Verdict, judge_replay
from rulka.machine.errors import UserError
from rulka.recordings.reader import read_recording
from tests.conftest import ROOT
from tests.recordings import forge
from tests.tasks.test_evaluate import demonstration, save_driver, short_track
from tests.waiting import wait_for

STAND_IN = """
import json, os, pathlib, subprocess, sys, time
how, replay = sys.argv[1:]
assert pathlib.Path(replay).is_absolute() and pathlib.Path(replay).read_bytes()[:3] == b"GBX"
print("a line before the verdict", flush=True)
if how == "crashes":
    os.abort()
if how == "hangs":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    time.sleep(600)
if how == "lacks files":
    print("Stadium.pak is missing reason=required_asset_missing", file=sys.stderr)
    sys.exit(69)
if how != "is silent":
    print(how)
sys.exit(0 if '"valid": true' in how else 1)
"""
TIMES_MS = (150, 300)
"""Checkpoints of the hand-made recording."""


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    path = tmp_path / "a race.Replay.Gbx"
    path.write_bytes(forge.recording_file())
    return path


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    path = tmp_path / "stand in.py"
    path.write_text(STAND_IN)
    return path


def words(stand_in: Path, how: str) -> list[str]:
    return [sys.executable, str(stand_in), how, "{replay}"]


def verdict(valid: bool = True, finish_ms: int | None = 300, **more: object) -> dict[str, object]:
    """Returns a verdict as ForeverValidator gives it: with more than is read."""
    outcome = {"race_completed": finish_ms is not None, "race_time_ms": finish_ms, "respawn_count": 0}
    path = {"max_deviation": 0.02, "max_deviation_time_ms": 200, "measured_sample_count": 4, "expected_sample_count": 4}
    schema = {"schema": "forevervalidator-result-v1", "first_divergence": None}
    return {"valid": valid, "status": "valid", "message": None, "simulation_outcome": outcome, **path, **schema, **more}


JUDGED = (
    (verdict(), True, "finish: 0.300 s, judge 0.300 s (+0 ms)"),
    (verdict(), True, "path: at most 0.020 m apart, at 0.200 s, in the first 4 of 4 samples"),
    (verdict(), True, "checkpoints: the judge gives none"),
    (verdict(finish_ms=310), True, "judge 0.310 s (+10 ms)"),
    (verdict(finish_ms=320), False, "judge 0.320 s (+20 ms)"),
    (verdict(finish_ms=None), False, "judge no time"),
    (
        verdict(valid=False, status="wrong_simulation", message="Deviates"),
        False,
        "disagrees: the judge says wrong_simulation: Deviates",
    ),
    (verdict(checkpoint_times_ms=[150, 300]), True, "checkpoint 1: 0.150 s, judge 0.150 s (+0 ms)"),
    (verdict(checkpoint_times_ms=[190, 300]), False, "checkpoint 1: 0.150 s, judge 0.190 s (+40 ms)"),
    (verdict(checkpoint_times_ms=[150]), False, "checkpoint 2: 0.300 s, judge no time"),
    (verdict(checkpoint_times_ms=[]), False, "checkpoint 1: 0.150 s, judge no time"),
    ({"valid": True}, True, "finish: the judge gives none"),
    ({"valid": True}, True, "path: the judge gives none"),
    ({"valid": False}, False, "disagrees: the judge says invalid"),
)
"""What the judge says, whether both agree, and a part of the report."""


def test_what_agrees_and_what_is_reported() -> None:
    for said, agrees, part in JUDGED:
        found = Judgement(Path("a.Replay.Gbx"), TIMES_MS, Verdict.model_validate(said))
        assert found.agrees is agrees, said
        assert part in found.to_text()
        assert json.loads(json.dumps(found.to_json()))["agrees"] is agrees


def test_a_judge_is_run_and_read(replay: Path, stand_in: Path) -> None:
    """Its last line that is an object counts; names with spaces reach it whole, without a shell."""
    for said in (verdict(), verdict(valid=False)):
        found = judge_replay(words(stand_in, '{"old": 1}\n' + json.dumps(said) + "\nbye; $(exit 3)"), replay)
        assert (found.times_ms, found.verdict) == (TIMES_MS, Verdict.model_validate(said))


FAILURES = {
    "crashes": r"was ended by signal 6:\n  a line before",
    "lacks files": r"ended with exit code 69:\n  a line before the verdict\n  Stadium.pak is missing",
    "is silent": r"printed no verdict:\n  a line before",
    '{"valid": ': "the judge's verdict is damaged",
    '{"valid": true, "checkpoint_times_ms": "no"}': "checkpoint_times_ms",
    '{"status": "valid"}': "valid",
}


def test_a_judge_that_fails_is_an_error_with_its_output(replay: Path, stand_in: Path) -> None:
    for how, message in FAILURES.items():
        with pytest.raises(UserError, match=message) as caught:
            judge_replay(words(stand_in, how), replay)
        assert "a race.Replay.log" in caught.value.hint


def test_a_judge_that_is_not_there(replay: Path) -> None:
    for command, message in {
        (): "nothing says which program",
        ("/none/validator", "{replay}"): "cannot be started with '/none/validator': No such file",
        (str(replay), "{replay}"): "Permission denied",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            judge_replay(command, replay)
        assert "RULKA_GAME_JUDGE" in caught.value.hint


def test_a_judge_that_hangs_ends_with_all_that_it_started(
    replay: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "LIMIT_S", 3.0)
    with pytest.raises(UserError, match="did not end within 3 s:\n  a line before the verdict\n  child") as caught:
        judge_replay(words(stand_in, "hangs"), replay)
    child = int(str(caught.value).split()[-1])
    wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, "the end")


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Races and an agent on a track whose map is in a recording."""
    for folder in ("data/races", "data/recordings"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    write_races(tmp_path / "data/races", RaceDataset((demonstration(0, 6.0), demonstration(1, 8.0)), short_track(), ()))
    (tmp_path / "data/recordings/0 damaged.Replay.Gbx").write_bytes(b"GBX")
    (tmp_path / "data/recordings/1 another.Replay.Gbx").write_bytes(forge.recording_file())
    (tmp_path / "data/recordings/2.Replay.Gbx").write_bytes(forge.recording_file(uid="tiny"))
    with chdir(ROOT):
        save_driver(tmp_path / "data" / "agent", "agent", "ppo", FORWARD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rulka", "game", "verify", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command(
    project: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a race, with the map of a recording or of its own file, and of an agent; by option and by setting."""
    command = shlex.join(words(stand_in, json.dumps(verdict(finish_ms=10_000))))
    assert call(monkeypatch, "race-0", "--with", command, "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["agrees"], said["replay"]) == (True, "runs/judge/race-0.Replay.Gbx")
    assert said["times"] == {"finish": {"replay_ms": 10_000, "judge_ms": 10_000}}
    assert call(monkeypatch, "race-1", "--with", command) == 1, "it took 7.5 s"
    assert "finish: 7.500 s, judge 10.000 s (+2500 ms)" in capfd.readouterr().out
    (project / ".env").write_text(f"RULKA_GAME_JUDGE={command!r}\n")
    (project / "tiny.Challenge.Gbx").write_bytes(forge.map_file(uid="tiny"))
    assert call(monkeypatch, "latest", "--map", "tiny.Challenge.Gbx") == 1
    found = read_recording(project / "runs/judge/latest.Replay.Gbx")
    (ghost,) = found.ghosts
    assert (found.map_uid, found.map_data, ghost.nickname) == ("tiny", forge.map_file(uid="tiny"), "Agent (PPO)")
    assert ghost.samples is not None
    assert ghost.race_time_ms is not None
    assert ghost.race_time_ms % 10 == 0
    assert ghost.samples.position[0, 0] == 0.0, "it begins in the middle of the line"
    assert [event.name for event in ghost.events] == ["_FakeIsRaceRunning", "Accelerate", "_FakeFinishLine"]


REFUSED = {
    ("race-0", "--with", "judge"): "RULKA_GAME_JUDGE does not say where the replay goes: write {replay}",
    ("race-0", "--with", "judge '{replay}"): "RULKA_GAME_JUDGE No closing quotation",
    ("race-0",): "nothing says which program is the judge",
    ("race-0", "--map", "none.Gbx"): "none.Gbx cannot be read",
    ("race-0", "--map", "data/recordings/1 another.Replay.Gbx"): "no such Stadium map is in data/recordings/1 another",
    ("race-0", "--map", "island.Challenge.Gbx"): "no such Stadium map is in island.Challenge.Gbx",
    ("ppo-none",): "there is no agent 'ppo-none'",
    ("race",): "in data/races more than one race begins with 'race'",
    ("latest", "--track", "copper-oval"): "no such Stadium map is in a file in data/recordings",
    ("latest", "--track", "tiny-too"): "there is no track 'tiny-too'",
    ("unfinished",): "the race was not finished",
}


def test_bad_input_is_one_message(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "island.Challenge.Gbx").write_bytes(forge.map_file(uid="tiny").replace(b"Stadium", b"Islands"))
    cut = replace(demonstration(0, 6.0), race_id="unfinished", race_time_ms=None)
    races = (demonstration(0, 6.0), demonstration(1, 8.0), cut)
    write_races(project / "data/races", RaceDataset(races, short_track(), ()))
    for arguments, message in REFUSED.items():
        assert call(monkeypatch, *arguments) == 1, arguments
        error = capfd.readouterr().err
        assert "error: " in error
        assert message in error
        assert "Traceback" not in error
