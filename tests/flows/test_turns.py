import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flows import turns
from flows.turns import TakenError, held, holder_of, our_turn
from tests.waiting import wait_for

HOLDER = """
import sys
from flows.turns import our_turn
with our_turn("the nightly", print):
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_second_waits_and_says_for_whom(
    toy_project: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    monkeypatch.setattr(turns, "ASK_AGAIN_S", 0.1)
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"

        def free() -> None:
            wait_for(lambda: said, "word of who is waited for")
            if is_killed:
                other.kill()
            else:
                other.communicate("\n")

        thread = threading.Thread(target=free)
        thread.start()
        with our_turn("this run", said.append):
            thread.join()
    assert len(said) == 1
    assert said[0].startswith(f"waiting for the nightly (process {other.pid}, since ")


def test_a_holder_that_is_about_to_go_has_no_name_and_is_not_told_of(
    toy_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "ASK_AGAIN_S", 0.0)
    said: list[str] = []
    holder = held("pipeline", "the nightly")
    holder.__enter__()

    def say(line: str) -> None:
        said.append(line)
        (turns.HOME / "pipeline.json").unlink()

    def named(turn: turns.Turn) -> turns.Holder:
        if said:
            holder.__exit__(None, None, None)
        return find(turn)

    find = turns._named
    monkeypatch.setattr(turns, "_named", named)
    with our_turn("this run", say):
        assert len(said) == 1


def test_a_free_turn_is_taken_without_a_word(toy_project: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with our_turn("this run", said.append):
            holder = holder_of("pipeline")
            assert holder is not None
            assert (holder.pid, holder.what) == (os.getpid(), "this run")
    assert said == []
    assert holder_of("pipeline") is None


def test_turns_are_apart(toy_project: Path) -> None:
    with held("up", "a stack"), held("pipeline", "a run"):
        with pytest.raises(TakenError, match=r"a stack \(process "), held("up", "a second one"):
            pass
        assert str(holder_of("up")).startswith(f"a stack (process {os.getpid()}, since ")
    assert holder_of("up") is None
