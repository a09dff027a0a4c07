"""Text from files never reaches a terminal unescaped."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest

from rulka.cli import main
from rulka.cli.options import say_json
from rulka.machine.progress import Progress
from rulka.machine.terminal import escape_logs, shown

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b]0;title\x07\x9b2J\u202ename\udcff\r"
HARMLESS = r"\u001b]0;title\u0007\u009b2J\u202ename\udcff\r"


def test_what_a_terminal_obeys_is_escaped_and_words_are_not() -> None:
    assert shown(HOSTILE) == HARMLESS
    for words in ("plain", "Überholspur, 「日本」 é\u0301\t🏁\nnext line", ""):
        assert shown(words) == words


def test_every_way_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"\x1b[2J\xff.Gbx")
    for file in (name, "b.Gbx"):
        (tmp_path / file).write_bytes(b"no recording")
    for command in ("recordings inspect", f"recordings export driver {name}.txt --races"):
        monkeypatch.setattr(sys, "argv", ["rulka", *command.split(), str(tmp_path)])
        with pytest.raises(SystemExit):
            main()
    said, errors = capsys.readouterr()
    assert r"\u001b[2J\xff.Gbx" in said
    say_json({"player": HOSTILE})
    as_json = capsys.readouterr().out
    assert json.loads(as_json) == {"player": HOSTILE}
    with Progress(HOSTILE, 1, "files", stream=(shows := StringIO())) as bar:
        bar.advance(1, track=HOSTILE)
    assert logging.lastResort is not None
    escape_logs()
    logged = logging.lastResort.format(logging.LogRecord("x", logging.WARNING, "", 0, "%s", (HOSTILE,), None))
    for text in (said, errors, as_json, shows.getvalue(), logged):
        assert not set(text) & {"\x1b", "\x9b", "\u202e", "\udcff", "\x07"}, text


def test_somebody_at_a_terminal_is_told_that_it_is_at_work_and_nobody_else() -> None:
    code = (
        "from rulka.machine import terminal; import time; terminal.FIRST_S, terminal.AGAIN_S = 0.3, 0.9\n"
        "terminal.keep_telling('train'); time.sleep(0.6); terminal.say('begun'); time.sleep(3.0)"
    )
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr) == ("begun\n", "")
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs):
        os.close(theirs)
        said = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 1000):
                said += part
    os.close(ours)
    lines = said.decode().splitlines()
    assert lines.count("begun") == 1
    assert sum(re.fullmatch(r"train: at work, \d+ s", line) is not None for line in lines) == len(lines) - 1 > 1
