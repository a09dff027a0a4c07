"""Every command, run to its end on small data; and every command that writes, where it cannot write.

A command without a row fails the first test. What a row writes lies in `{place}`, or in the current folder.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import av
import pytest

from rulka.agents.load import load_policy
from rulka.cli import COMMANDS
from rulka.datasets.formats.frames import FrameDataset
from rulka.params import read_params
from rulka.recordings.reader import read_recording
from tests.cli.conftest import call
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
SIZE_LIMIT_BYTES = 10
"""Smaller than any file that a command writes: what a full disk does."""
CAPABILITY_VERSION = 0x20080522


@dataclass(frozen=True)
class Row:
    """One way to call a command.

    Attributes:
        arguments: everything that is typed; `{place}` is a folder to write into.
        check: looks at what it printed, and at the file or folder that it wrote.
        writes: what it writes; `{place}` as above, empty for nothing.
        before: arguments of a call that has to come first.
    """

    arguments: str
    check: Callable[[str, Path], Any]
    writes: str = ""
    before: str = ""

    @property
    def command(self) -> str:
        """Its name."""
        return next(name for name in COMMANDS if f"{self.arguments} ".startswith(f"{name} "))


def is_video(_: str, path: Path) -> bool:
    with av.open(str(path)) as video:
        return sum(1 for _ in video.decode(video=0)) > 5


def is_fetched(_: str, path: Path) -> bool:
    return read_recording(next(path.rglob("*.Replay.Gbx"))).map_uid != "" and not list(path.rglob("*.part"))


def names_its_file(text: str, path: Path) -> bool:
    return json.loads(text)["file"] == path.as_posix()


def is_calibrated(text: str, path: Path) -> bool:
    """As `describe` tells people, see the tests of calibration."""
    found = json.loads(text)
    return found["is_written"] and found["physics"]["axle_m"] > 0.0 and (path / "report.md").is_file()


FETCH = "recordings fetch --maps 1 --requests-per-s 10"
BRIEF = "--steps 256 --set train.num_checks=1 train.check_races=2 train.final_check_races=2"

ROWS = (
    Row("new {place}/mine", lambda _, path: read_params(path / "params.yaml"), "{place}/mine"),
    Row("new {place}/mine --json", lambda text, _: "dvc.yaml" in json.loads(text)["written"], "{place}/mine"),
    Row("recordings inspect recordings --json", lambda text, _: not any(x["error"] for x in json.loads(text))),
    Row("recordings inspect recordings", lambda text, _: "main track" in text and text.endswith("about 1 min\n")),
    Row("recordings inspect recordings/0.Replay.Gbx", lambda text, _: "num_inputs" in text),
    Row("recordings inspect recordings/0.Replay.Gbx recordings --json", lambda text, _: len(json.loads(text)) > 1),
    Row("recordings quarantine", lambda text, _: text == "every recording is used\n"),
    Row("recordings quarantine --json", lambda text, _: json.loads(text) == []),
    Row(f"{FETCH} --out {{place}}/new", is_fetched, "{place}/new"),
    Row(f"{FETCH} --only-list", lambda text, _: "Map 7" in text),
    Row(f"{FETCH} --only-list --json", lambda text, _: [each["map_id"] for each in json.loads(text)] == [7]),
    Row(f"{FETCH} --out {{place}}/new --json", lambda text, _: json.loads(text)["num_new"] == 2, "{place}/new"),
    Row("recordings export race-0 {place}/b.txt --json", names_its_file, "{place}/b.txt"),
    Row("recordings export race-0 {place}/a.txt", lambda _, path: "press up" in path.read_text(), "{place}/a.txt"),
    Row("evaluate --json", lambda text, _: json.loads(text)["agent"]["finish_rate"] == 1.0),
    Row("evaluate --track tiny --races 1", lambda text, _: "1/1" in text),
    Row("evaluate --agent latest --races 1", lambda text, _: "1/1" in text),
    Row("evaluate --agent promoted --races 1", lambda text, _: "1/1" in text, before="agents promote latest"),
    Row("agents list", lambda text, _: text.splitlines()[1].endswith("latest")),
    Row("agents list --json", lambda text, _: [x["tracks"] for x in json.loads(text)] == [["tiny"]]),
    Row("agents compare latest data/agent --races 1", lambda text, _: "Nobody wins: this may be chance" in text),
    Row(
        "agents compare latest data/agent --races 1 --out {place}/pair --json",
        lambda text, path: json.loads(text)["lead"] == 0.0 and is_video(text, path / "side_by_side.mp4"),
        "{place}/pair",
    ),
    Row("agents promote latest", lambda text, _: "compared with nobody" in text),
    Row("agents promote latest --json", lambda text, _: json.loads(text)["over"] is None),
    Row("night --tracks main --races 17", lambda text, _: "the first night" in text),
    Row(
        "night --date 2026-11-23 --tracks main --races 17 --json",
        lambda text, _: [row["seed"] for row in json.loads(text)["rows"]] == [25_180_000] * 4,
    ),
    Row("agents export {place}/hub", lambda _, path: (path / "config.json").is_file(), "{place}/hub"),
    Row(
        "agents import hub --agent {place}/again",
        lambda _, path: load_policy(path).label == "PPO",
        "{place}/again",
        before="agents export hub",
    ),
    Row("agents export {place}/hub --json", lambda text, _: json.loads(text)["algorithm"] == "ppo", "{place}/hub"),
    Row("watch data/agent data/races --out {place}/race.mp4", is_video, "{place}/race.mp4"),
    Row("watch latest", lambda text, _: is_video(text, Path("runs/watch.mp4"))),
    Row("coach latest", lambda text, _: "the coach takes" in text),
    Row("coach data/races --agent latest --json", lambda text, _: len(json.loads(text)["bends"]) == 1),
    Row("track show tiny --out {place}/a.png", lambda text, _: "tiny" in text, "{place}/a.png"),
    Row("track list --json", lambda text, _: len(json.loads(text)) == 10),
    Row("track list", lambda text, _: "copper-oval" in text),
    Row("frames export {place}/hub", lambda _, path: (path / "index.json").is_file(), "{place}/hub"),
    Row("frames export {place}/hub --json", lambda text, _: json.loads(text)["num_races"] == 3, "{place}/hub"),
    Row(
        "frames import hub --frames {place}/again",
        lambda _, path: len(FrameDataset(path, "train")) > 0,
        "{place}/again",
        before="frames export hub",
    ),
    Row("calibrate two-maps --holdout 0.4 --out {place}/report --write --json", is_calibrated, "{place}/report"),
    Row("track reference tiny --budget 1 --out {place}/lap.txt --json", names_its_file, "{place}/lap.txt"),
    Row("track reference tiny --budget 1 --out {place}/a", lambda _, path: "time_ms:" in path.read_text(), "{place}/a"),
    Row(f"env train CartPole-v1 --seed 4 --json {BRIEF}", lambda text, _: json.loads(text)["seed"] == 4),
    Row(f"env train CartPole-v1 --algorithm iqn {BRIEF} iqn.start_steps=256", lambda text, _: "mean_return" in text),
    Row(
        "env evaluate trained --episodes 3 --seed 9 --json",
        lambda text, _: json.loads(text)["episodes"] == 3,
        before=f"env train CartPole-v1 --out trained {BRIEF}",
    ),
    Row("params list ppo.gamma", lambda text, _: "number or schedule, 0 to 1" in text),
    Row("params list --json", lambda text, _: len(json.loads(text)) > 300),
    Row("params schema --out {place}/a.json", lambda _, path: json.loads(path.read_text())["$defs"], "{place}/a.json"),
    Row("preset list", lambda text, _: "chunks" in text),
    Row("preset list --json", lambda text, _: "action" in json.loads(text)["chunks"]),
    Row("preset chunks --json", lambda text, _: len(json.loads(text)["changes"]) > 1, "params.yaml"),
    Row("preset undo", lambda text, _: "-> 1" in text, "params.yaml", before="preset chunks"),
    Row("preset chunks", lambda text, _: read_params().network.actions_per_decision == 5, "params.yaml"),
)
ELSEWHERE = {
    "experiment": "tests/study/test_work.py",  # with stages that take no time
    "population": "tests/study/test_population.py",  # with turns that take no time
    "up": "tests/flows/test_up.py",
    "doctor": "test_doctor_ends_with_a_verdict",
    "board enter": "tests/board/test_board.py",
    "board verify": "tests/board/test_board.py",
    "board show": "tests/board/test_board.py",
    "dashboard": "tests/dashboard/test_app.py",
    "drive": "test_the_seat_is_served_until_ctrl_c",
    "game serve": "test_games_are_served",
    "game check": "test_games_are_served",
    "game verify": "tests/game/test_judge.py",
}
"""Commands whose test is another one: a function below, or a file."""
WRITING = [row for row in ROWS if row.writes]
FIRST_WRITING = {row.command: row for row in reversed(WRITING)}
every_writing_row = pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.arguments, marks=[pytest.mark.slow] * (FIRST_WRITING[row.command] is not row))
        for row in WRITING
    ],
)
"""In the fast tier one for each command."""
ENDED: set[str] = set()
"""Arguments that came to their end in this process."""


def test_every_command_has_a_row() -> None:
    assert {row.command for row in ROWS} | set(ELSEWHERE) == set(COMMANDS)
    for test in ELSEWHERE.values():
        assert test in globals() or (ROOT / test).is_file()


WITHOUT_JSON = {"up", "dashboard", "drive", "game serve", "watch", "params schema"}
"""They run until they are stopped, or stop that: what they did is elsewhere. A schema is JSON itself."""


def test_every_command_that_reports_does_so_as_json() -> None:
    reporting = {name for name, function in COMMANDS.items() if "as_json" in inspect.signature(function).parameters}
    assert reporting == set(COMMANDS) - WITHOUT_JSON


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.arguments)
def test_it_comes_to_its_end(project: Path, capfd: pytest.CaptureFixture[str], row: Row) -> None:
    if row.before:
        assert call(row.before) == 0
        capfd.readouterr()
    assert call(row.arguments.format(place="out")) == 0
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    assert row.check(said.out, Path(row.writes.format(place="out")))
    assert not [path.name for path in project.rglob(".new-*")]
    ENDED.add(row.arguments)


def content(folder: Path) -> dict[str, bytes | None]:
    """Returns every file below a folder with what is in it, and every folder with None."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def fails_in_one_line(arguments: str, project: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must fail and change nothing; returns its error."""
    before = content(project)
    capsys.readouterr()
    assert call(arguments) == 1, arguments
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert "Traceback" not in said
    after = content(project)
    if arguments.startswith("recordings fetch"):  # the empty folder of a map is filled next time
        after = {path: data for path, data in after.items() if data is not None or path in before}
    assert after == before, "something was left, lost or changed"
    return errors[0]


@contextmanager
def a_full_disk() -> Iterator[None]:
    """Lets no file grow beyond a few bytes: writing fails after it has begun, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE_LIMIT_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@every_writing_row
def test_a_full_disk_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    if row.before:
        assert call(row.before) == 0
    if row.arguments not in ENDED:  # kernels have to be compiled and kept before nothing can be kept
        monkeypatch.chdir(shutil.copytree(project, project.with_name("warm")))
        assert call(row.arguments.format(place="out")) == 0
        monkeypatch.chdir(project)
    Path("out/kept.txt").write_text("kept")
    written = Path(row.writes.format(place="out"))
    if written.suffix in (".png", ".mp4"):
        written.write_text("an older picture")
    with a_full_disk():
        said = fails_in_one_line(row.arguments.format(place="out"), project, capsys)
    assert "cannot be written: " in said
    assert "File too large" in said


@every_writing_row
def test_a_folder_that_is_not_writable_is_one_line(project: Path, capsys: pytest.CaptureFixture[str], row: Row) -> None:
    if row.before:
        assert call(row.before) == 0
    closed = [path for path in (project, *project.rglob("*")) if path.is_dir()]
    for folder in closed:
        folder.chmod(0o555)
    try:
        arguments = row.arguments.format(place="out")
        said = as_nobody_special(lambda: fails_in_one_line(arguments, project, capsys))
    finally:
        for folder in closed:
            folder.chmod(0o755)
    assert "is not writable" in said or "Permission denied" in said


@every_writing_row
def test_a_missing_folder_is_one_line(project: Path, capsys: pytest.CaptureFixture[str], row: Row) -> None:
    if "{place}" not in row.writes:
        Path(row.writes).unlink()
    said = fails_in_one_line(row.arguments.format(place="none"), project, capsys)
    assert "there is no folder none" in said or "params.yaml" in said


def as_nobody_special(work: Callable[[], str]) -> str:
    """Runs work without the right of root to write everywhere, and returns what it returns.

    Linux gives and takes these rights for each thread, and a thread that gave them up takes them along when it ends.
    """
    if os.geteuid() != 0:
        return work()
    results: list[str | BaseException] = []

    def run() -> None:
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
        nothing = (ctypes.c_uint32 * 6)()
        try:
            assert ctypes.CDLL(None).capset(header, nothing) == 0
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@contextmanager
def start(*arguments: str, **options: Any) -> Generator[subprocess.Popen[str]]:
    """Starts a command as a process of its own, which does not outlive the block."""
    command = [sys.executable, "-m", "rulka.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], part: str) -> str:
    """Waits for a line of standard output that holds a text."""
    assert process.stdout is not None
    return next(line for line in process.stdout if part in line)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_below_standard_output_is_one_line(project: Path) -> None:
    command = [sys.executable, "-m", "rulka.cli", "track", "list"]
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
        )
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: there was no room for what had to be written: No space left on device\n")
    assert answer.stderr.count("\n") == 2, "the error and what to do"


def test_games_are_served(project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("rulka.game.check.WAIT_S", PATIENCE_S)
    monkeypatch.setattr("rulka.game.check.PATIENT_TIMEOUT_MS", round(1000 * PATIENCE_S))
    with start("game", "serve", "--port", "0", "--track", "tiny", "--speed", "100") as game:
        port = line_with(game, "a game listens on").split(":")[1].split(";")[0]
        assert call(f"game check --port {port} --decisions 5 --speed 100 --limit-s {PATIENCE_S} --json") == 0
        assert not json.loads(capfd.readouterr().out)["deviations"]
        game.send_signal(signal.SIGINT)
        said, errors = game.communicate(timeout=PATIENCE_S)
    assert (game.returncode, said) == (0, "stopped\n")
    assert "Traceback" not in errors


def test_the_live_page_is_shown_until_ctrl_c(project: Path) -> None:
    with start("watch", "runs/train", "--port", "0") as page:
        address = line_with(page, "http://").split()[0]
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            assert "<html" in answer.read().decode()
        with urllib.request.urlopen(urljoin(address, "run.json"), timeout=PATIENCE_S) as answer:
            assert json.load(answer)
        page.send_signal(signal.SIGINT)
        _, errors = page.communicate(timeout=PATIENCE_S)
    assert (page.returncode, errors) == (130, "interrupted\n")


def test_the_seat_is_served_until_ctrl_c(project: Path) -> None:
    with start("drive", "tiny", "--port", "0", "--no-browser") as seat:
        address = line_with(seat, "http://").split()[0]
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            assert "Driver" in answer.read().decode()
        seat.send_signal(signal.SIGINT)
        _, errors = seat.communicate(timeout=PATIENCE_S)
    assert (seat.returncode, errors.splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in errors
    assert Path("data/recordings").is_dir()


def test_doctor_ends_with_a_verdict(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """What it finds is the machine's matter; the exit code says whether something is wrong."""
    monkeypatch.chdir(ROOT)
    code = call("doctor --json")
    found = json.loads(capfd.readouterr().out)
    assert code == (1 if any(finding["state"] == "wrong" for finding in found.values()) else 0)
    assert found["python"]["state"] == "ok"
