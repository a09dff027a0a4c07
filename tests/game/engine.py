"""The plugin in AngelScript's engine: builds `host/host.cpp`, once for each process of tests, and runs it."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from rulka.game.plugin import PLUGIN_FILE
from tests.game.processes import free_ports
from tests.waiting import PATIENCE_S, wait_for

SOURCE = Path(__file__).parent / "host" / "host.cpp"
WRONG = ("error", "warning", "exception", "short read", "cannot register")
TICK_S = 0.01


@cache
def built() -> Path:
    """The host's program; skips the test where compiler or engine are missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the game's host needs g++: apt-get install g++ angelscript-dev")
    included, look = "#include <angelscript.h>\n", [compiler, "-x", "c++", "-E", "-"]
    if subprocess.run(look, input=included, text=True, capture_output=True, check=False).returncode:
        pytest.skip("the game's host needs AngelScript's header: apt-get install g++ angelscript-dev")
    folder = Path(tempfile.mkdtemp(prefix="rulka-host-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [compiler, "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", SOURCE.as_posix()]
    subprocess.run([*command, "-o", (folder / "host").as_posix(), "-langelscript", "-lpthread"], check=True)
    return folder / "host"


class Host:
    """A game that runs the plugin; options are those of `host.cpp`, with underscores for dashes.

    Attributes:
        port: where the plugin is told to listen.
        lines: what the host has said.
    """

    def __init__(self, plugin: Path, **options: object) -> None:
        self.port = int(str(options["port"]))
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self.process = subprocess.Popen(
            [built(), plugin, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in iter(self.process.stdout.readline, ""))

    def enter(self, command: str) -> None:
        """Enters a command on the game's console."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")

    def wait_for(self, text: str, number: int = 1) -> None:
        """Waits until so many lines hold a text."""
        wait_for(lambda: sum(text in line for line in self.lines) >= number, f"{text!r} among {self.lines}")

    def end(self) -> None:
        """Ends it, and makes sure that nothing went wrong in the plugin."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        assert not [line for line in self.lines if line.startswith(WRONG)], self.lines
        assert code == 0, self.lines


@contextmanager
def hosted(plugin: Path = PLUGIN_FILE, **options: object) -> Iterator[Host]:
    """Yields a game in which the plugin listens."""
    host = Host(plugin, **{"port": options.pop("port", None) or free_ports(1), "speed": 100, **options})
    try:
        host.wait_for(f"listening on port {host.port}")
        yield host
        host.end()
    finally:
        host.process.kill()
        host.process.wait()


def metres_after(num_ticks: int) -> float:
    """How far the host's car comes on full gas, computed as `host.cpp` does."""
    speed = along = 0.0
    for _ in range(num_ticks):
        speed += TICK_S * (15.0 - 0.02 * speed)
        along += TICK_S * speed
    return along
