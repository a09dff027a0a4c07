"""Entries, forgeries and the table, on a board of one track."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from rulka.board import enter as entering
from rulka.board import entry as entries
from rulka.board import table
from rulka.board.enter import STEPS, enter
from rulka.board.entry import Card, Entry, EntryError, ResultError, verify, write_entry
from rulka.board.rules import NUM_STARTS, Rules, rules, rules_on
from rulka.board.table import format_board, read_board, rows_of
from rulka.contracts.actions import Held, action_table
from rulka.datasets.drives import Recorder, save_drive
from rulka.evaluation.external_policy import find_guest
from rulka.evaluation.race import race
from rulka.machine.errors import UserError
from rulka.params import reference_params
from rulka.reference.lap import LAPS_DIR, load_reference, shipped_lap
from rulka.tracks.campaign import campaign_track
from tests.cli.conftest import call

DRIVERS = "tests.board.drivers"


@pytest.fixture(scope="module")
def board() -> Iterator[Rules]:
    """A board of Copper Oval alone."""
    small = rules_on([campaign_track("copper-oval")])
    with pytest.MonkeyPatch.context() as patch:
        for module in (entering, entries, table):
            patch.setattr(module, "rules", lambda: small)
        yield small


@pytest.fixture(scope="module")
def entry(board: Rules) -> Entry:
    return enter(f"{DRIVERS}:follow", {"who": "a test"})


@pytest.fixture
def file(entry: Entry, tmp_path: Path) -> Path:
    path = tmp_path / "follow-0.board.npz"
    write_entry(entry, path)
    return path


def rewrite(path: Path, **changes: Any) -> None:
    """Changes arrays of a file; those of its head by `head`, a function of its JSON."""
    with np.load(path) as stored:
        fields = dict(stored)
    if change := changes.pop("head", None):
        head = json.loads(fields["head"].tobytes())
        fields["head"] = np.frombuffer(json.dumps(change(head) or head).encode(), np.uint8)
    for name, value in changes.items():
        fields[name] = value(fields[name]) if callable(value) else value
    np.savez_compressed(path, allow_pickle=False, **fields)


def changed(at: Any, value: Any) -> Callable[[NDArray], NDArray]:
    """Returns a function that changes a copy of an array at a place."""

    def change(array: NDArray) -> NDArray:
        array = array.copy()
        array[at] = value
        return array

    return change


# Entering -------------------------------------------------------------------------------------------------------------


def test_a_file_drives_what_the_driver_drove(board: Rules, entry: Entry, file: Path) -> None:
    raced = race(find_guest(f"{DRIVERS}:follow"), board.races[0])
    assert entry.times_ms.tolist() == [[each.time_ms or 0 for each in raced]]
    assert (entry.times_ms > 0).any()
    assert entry.card == Card(name=f"{DRIVERS}.follow", who="a test")
    again = verify(file)
    for name, value in vars(entry).items():
        assert np.array_equal(getattr(again, name), value), name
    assert file.stat().st_size < 20_000


@pytest.mark.parametrize(("name", "ticks", "chunk"), [("glide", 5, 1), ("chunks", 1, 5), ("uneven", (2, 3), 2)])
def test_sticks_are_rounded_and_chunks_are_kept(
    board: Rules, tmp_path: Path, name: str, ticks: Held, chunk: int
) -> None:
    entry, path = enter(f"{DRIVERS}:{name}", {}), tmp_path / "a.board.npz"
    assert (entry.ticks_per_action, entry.actions.shape[1]) == (ticks, chunk)
    steps = entry.controls * STEPS
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-5)
    write_entry(entry, path)
    assert np.array_equal(verify(path).times_ms, entry.times_ms)


def test_a_model_and_an_onnx_file_drive_as_the_function(board: Rules, entry: Entry, tmp_path: Path) -> None:
    assert np.array_equal(enter(f"{DRIVERS}:model", {}).ends, entry.ends)
    path = tmp_path / "forward.onnx"
    onnx.save(forward_graph(), path)
    found = enter(path.as_posix(), {"seed": 7})
    assert (found.card.name, found.card.seed, found.card.sees) == ("forward", 7, "no waypoints")
    assert found.controls.tolist() == [[0.0, 1.0, 0.0]]
    path.write_bytes(b"no graph")
    with pytest.raises(UserError, match=r"forward\.onnx cannot drive: it is no readable ONNX file"):
        enter(path.as_posix(), {})


def forward_graph() -> onnx.ModelProto:
    """A graph that decides 0, full throttle, for every car."""
    floats = helper.make_tensor_value_info("floats", TensorProto.FLOAT, ["N", 184])
    decision = helper.make_tensor_value_info("decision", TensorProto.INT64, ["N"])
    clock = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    nodes = [
        helper.make_node("Constant", [], ["axis"], value=clock),
        helper.make_node("Gather", ["floats", "axis"], ["clock"], axis=1),
        helper.make_node("Cast", ["clock"], ["decision"], to=TensorProto.INT64),
    ]
    graph = helper.make_graph(nodes, "forward", [floats], [decision])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {"keywords": json.dumps({"observation": {"withheld": ["image", "waypoints"]}})})
    return model


def test_inputs_of_laps_and_drives_are_played(board: Rules, tmp_path: Path) -> None:
    """The faster of two files counts; a drive brings its own track, which is compared by its UID."""
    lap = LAPS_DIR / "copper-oval.txt"
    (tmp_path / "copper-oval.txt").write_bytes(lap.read_bytes())
    found = enter(tmp_path.as_posix(), {"name": "lap"})
    assert (found.ticks_per_action, found.actions.shape[1], found.card.algorithm) == (1, 1, "list of inputs")
    track, simulator = campaign_track("copper-oval"), reference_params().simulator
    keys = action_table(5).analog()[load_reference(lap, track, simulator, action_table(5)).actions]
    recorder = Recorder(track, simulator)
    for controls in keys[:100].repeat(5, axis=0):
        recorder.tick(controls)
    save_drive(tmp_path, recorder.race("somebody"), track, simulator)
    assert enter(tmp_path.as_posix(), {}).decisions.max() == 500
    (tmp_path / "copper-oval.txt").write_text(lap.read_text().replace("track: campaign-copper", "track: another"))
    next(tmp_path.glob("*.drive.npz")).unlink()
    with pytest.raises(UserError, match=r"no file in .* is of a track of the board: campaign-copper-oval"):
        enter(tmp_path.as_posix(), {})


def test_a_driver_sees_what_its_class_may_see(board: Rules) -> None:
    assert enter(f"{DRIVERS}:blind", {}).card.sees == "no waypoints"
    with pytest.raises(UserError, match="seed"):
        enter(f"{DRIVERS}:follow", {"seed": -1})


# Forgeries ------------------------------------------------------------------------------------------------------------


def swapped(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Returns a function that changes a field of a head."""
    return lambda head: head.__setitem__(name, value)


FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "time": (
        {"times_ms": changed((0, 3), 1)},
        "race 3 on campaign-copper-oval ends .*, the file says after 1 ms",
    ),
    "end": ({"ends": changed((0, 3), 1)}, "race 3 on campaign-copper-oval ends .*, not where the file says"),
    "input": ({"actions": changed(5, 0)}, "not what its inputs drive: race 0 on"),
    "start": ({"starts": changed((0, 0, 0), 0.0)}, "its starts, or hashes of tracks, are not"),
    "physics": ({"head": swapped("physics", "0" * 16)}, "its physics is '0000"),
    "code": ({"head": swapped("code", "0" * 16)}, "its code is '0000"),
    "schema": ({"head": swapped("schema_version", 2)}, "its schema_version is 2, here it is 1"),
    "another track": ({"head": swapped("shapes", ["0" * 16])}, "its campaign-copper-oval is another track under the"),
    "another name": ({"head": swapped("uids", ["mine"])}, "its tracks are not those of the board: 'mine'"),
    "a track twice": ({"head": swapped("uids", 2 * ["campaign-copper-oval"])}, "not those of the board: 'campaign"),
    "no track": ({"head": swapped("uids", [])}, "not those of the board: 'the order', or 0 instead of 1"),
    "a race left out": ({"decisions": changed((0, 3), 0)}, "race 3 on campaign-copper-oval has 0 decisions, of 1 to"),
    "races left out": (
        {"times_ms": lambda times: times[:, :19]},
        r"its times_ms have the shape \(1, 19\)",
    ),
    "a longer race": ({"decisions": changed((0, 3), 9999)}, "race 3 on campaign-copper-oval has 9999 decisions"),
    "more inputs": ({"actions": lambda actions: np.repeat(actions, 2, axis=0)}, "decisions, and it holds"),
    "clock": ({"head": swapped("ticks_per_action", 6)}, "not what its inputs drive"),
    "clock of another decision": ({"head": swapped("ticks_per_action", [2, 3])}, "2 numbers for decisions of 1 action"),
    "clock stands": ({"head": swapped("ticks_per_action", 0)}, "ticks_per_action"),
    "chunks": ({"actions": lambda actions: np.zeros((len(actions), 0), np.uint16)}, "are not 1 to 100 rows of its"),
    "NaN": ({"controls": changed((0, 0), np.nan)}, "its controls are not 1 to 65,536 rows of steer"),
    "too much gas": ({"controls": changed((0, 1), 1.01)}, "its controls are not 1 to 65,536 rows of steer"),
    "no such input": ({"actions": changed(5, 99)}, "are not 1 to 100 rows of its controls"),
    "NaN on the card": ({"head": lambda head: head["card"].update(cpu_seconds=float("nan"))}, "is damaged"),
    "bar in a name": ({"head": lambda head: head["card"].update(name="a | b")}, "card.name"),
    "more": ({"more": np.zeros(3)}, r"does not hold the fields of an entry: \['more'\]"),
    "another type": ({"starts": np.zeros(3)}, "its starts is float64"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forgeries_are_refused_by_name(file: Path, forgery: str) -> None:
    changes, says = FORGERIES[forgery]
    rewrite(file, **changes)
    with pytest.raises(EntryError, match=says):
        verify(file)


def test_a_race_twice_is_refused(entry: Entry, file: Path) -> None:
    """Race 0 in the place of race 1, with its time and end."""
    first, second = entry.decisions[0, :2]
    actions = np.concatenate([entry.actions[:first], entry.actions[:first], entry.actions[first + second :]])
    twice = {name: changed((0, 1), getattr(entry, name)[0, 0]) for name in ("decisions", "times_ms", "ends")}
    rewrite(file, actions=actions, **twice)
    with pytest.raises(ResultError, match="race 1 on campaign-copper-oval ends"):
        verify(file)


def test_bombs_are_refused_before_they_are_unpacked(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb, bomb.open("actions.npy", "w") as member:
        for _ in range(40):
            member.write(bytes(2**20))
    with pytest.raises(EntryError, match="is not a readable entry: another kind of file, or damaged"):
        verify(file)
    file.write_bytes(bytes(300_001))
    with pytest.raises(EntryError, match="has 300,001 bytes, an entry has at most 300,000"):
        verify(file)
    with pytest.raises(EntryError, match="is not a readable entry: No such file"):
        verify(file.with_name("none"))


@pytest.mark.parametrize("flag", [0x01, 0x20, 0x40], ids=["encrypted", "patched", "strongly encrypted"])
def test_archives_that_only_others_can_unpack_are_refused(file: Path, flag: int) -> None:
    """Bits of a member's flags, 8 bytes into its entry in the directory and 6 into its own header."""
    data = bytearray(file.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= flag
    data[6] |= flag
    file.write_bytes(data)
    with pytest.raises(EntryError, match="is not a readable entry: another kind of file, or damaged"):
        verify(file)


def mutate(path: Path, rng: np.random.Generator) -> None:
    """Changes bytes of a file, or some of its numbers, or moves races."""
    if rng.random() < 0.3:
        data = bytearray(path.read_bytes())
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        path.write_bytes(bytes(data))
        return
    with np.load(path) as stored:
        fields = dict(stored)
    name = str(rng.choice(list(fields)))
    array = fields[name].copy()
    flat = array.reshape(-1)
    at = rng.integers(len(flat), size=rng.integers(1, 4))
    kind = rng.integers(4)
    if kind == 0:
        flat[at] = flat[rng.permutation(at)] if len(at) > 1 else flat[at - 1]
    elif kind == 1 and array.dtype.kind == "f":
        flat[at] = rng.choice([np.nan, np.inf, -1.0, 0.0, 1e-30], len(at))
    elif kind == 2:
        axis = int(rng.integers(array.ndim))
        array = np.delete(array, at % array.shape[axis], axis=axis)
    else:
        flat[at] = flat[at] + rng.integers(1, 100, len(at)).astype(array.dtype)
    np.savez_compressed(path, allow_pickle=False, **(fields | {name: array}))


@pytest.mark.parametrize("number", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_mutant_with_another_result_is_accepted(entry: Entry, file: Path, number: int) -> None:
    original, rng, num_refused = file.read_bytes(), np.random.default_rng(1), 0
    for _ in range(number):
        file.write_bytes(original)
        mutate(file, rng)
        try:
            found = verify(file)
        except EntryError:
            num_refused += 1
        else:
            assert np.array_equal(found.times_ms, entry.times_ms)
    assert num_refused > 0.5 * number


# The table ------------------------------------------------------------------------------------------------------------


def timed(times_ms: list[int], **facts: Any) -> Entry:
    """An entry with these times, as many races each as make twenty."""
    times = np.repeat(times_ms, NUM_STARTS // len(times_ms))[None]
    none = np.zeros((0, 1), np.uint16)
    return Entry(Card(name="a", **facts), 5, np.zeros((1, 3), np.float32), times, none, times, times.astype(np.uint32))


def test_scores_by_hand(board: Rules) -> None:
    """Of the shares 0, 1/2, 1/2 and 1, the middle half is 1/2. Two runs of 0.5 and 1: t of one degree is 12.706."""
    lap_ms = int(board.reference_ms[0])
    first, second = timed([0, 2 * lap_ms, 2 * lap_ms, lap_ms]), timed([lap_ms], seed=1)
    (row,) = rows_of([first])
    assert row["all"] == {"score": 0.5, "interval": None, "finish_rate": 0.75}
    assert row["campaign"] == row["never seen"] == row["tracks"]["campaign-copper-oval"] == row["all"]
    assert row["held out"] is row["trained on"] is row["budget"] is None
    (row,) = rows_of([first, second])
    assert (row["runs"], row["all"]["score"], row["all"]["finish_rate"]) == (2, 0.75, 0.875)
    assert row["all"]["interval"] == pytest.approx([0.75 - 12.7062 * 0.25, 0.75 + 12.7062 * 0.25], abs=1e-4)
    own = [timed([lap_ms], trained_on=("campaign-copper-oval",), decisions=900_000, sees="images alone")]
    rows = rows_of([*own, first])
    assert [each["sees"] for each in rows] == ["everything", "images alone"]
    assert rows[1]["trained on"]["score"] == 1.0
    assert (rows[1]["never seen"], rows[1]["budget"]) == (None, 1_000_000)
    text = format_board(rows)
    assert "| a | unknown | unknown | images alone | 900,000 | - | 1 | 1.000, 100% |" in text
    assert "| campaign-copper-oval | 0.500, 75% | 1.000, 100% |" in text


def test_a_folder_is_the_board(entry: Entry, file: Path, tmp_path: Path) -> None:
    write_entry(replace(entry, card=entry.card.model_copy(update={"seed": 1})), tmp_path / "follow-1.board.npz")
    (row,) = rows_of(read_board(tmp_path))
    assert (row["runs"], row["all"]["interval"]) == (2, None)
    write_entry(entry, tmp_path / "again.board.npz")
    with pytest.raises(EntryError, match=r"holds two entries of 'tests\.board\.drivers\.follow' with seed 0"):
        read_board(tmp_path)
    with pytest.raises(EntryError, match="holds no entry"):
        read_board(tmp_path / "none")


# The command ----------------------------------------------------------------------------------------------------------


def test_the_commands(
    board: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.chdir(tmp_path)
    assert call(f"board enter {DRIVERS}:follow --seed 4 --trained-on campaign-copper-oval --json") == 0
    row = json.loads(capsys.readouterr().out)
    assert row["file"] == f"{DRIVERS}.follow-4.board.npz"
    assert row["trained on"]["finish_rate"] == row["all"]["finish_rate"] > 0.0
    assert call(f"board verify {row['file']}") == 0
    assert f"{row['file']}: all 20 races end as it says" in capsys.readouterr().out
    assert call("board show . --page table.md") == 0
    assert capsys.readouterr().out.strip() in Path("table.md").read_text()
    rewrite(Path(row["file"]), times_ms=changed((0, 0), 5))
    assert call(f"board verify {row['file']}") == 1
    assert "error: " in capsys.readouterr().err


def test_verifying_needs_no_torch(file: Path) -> None:
    code = (
        "import sys; from rulka.board import entry, table, rules; from rulka.tracks.campaign import campaign_track;"
        "small = rules.rules_on([campaign_track('copper-oval')]); entry.rules = table.rules = lambda: small;"
        f"from rulka.cli import board; board.verify((entry.Path({str(file)!r}),)); assert 'torch' not in sys.modules"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "all 20 races end as it says" in answer.stdout, answer.stderr


def test_the_tracks_of_the_board_never_change_silently() -> None:
    """Whoever changes a track, the physics or their code makes all entries of others void."""
    found = rules()
    assert len(found.uids) == len(set(found.uids)) == 20
    assert found.starts.shape == (20, 20, 2)
    assert (found.physics, found.code) == ("34f5564f5041e4ff", "0275dce182622325")
    for races, time_ms in zip(found.races, found.reference_ms, strict=True):
        path = shipped_lap(races.track)
        assert path is not None
        lap = load_reference(path, races.track, races.settings.simulator, races.settings.table)
        assert lap.time_ms == time_ms


def test_every_entry_in_the_repository_verifies() -> None:
    files = sorted((Path(__file__).parents[2] / "board").glob("*.board.npz"))
    if not files:
        pytest.skip("the board of the repository has no entry yet")
    for path in files:
        verify(path)
