"""What can be wrong with the machine and the folder that a run needs, and what to do about it: `rulka doctor`."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path
from typing import NamedTuple

import psutil

from rulka.cluster import chosen_address, find_cluster
from rulka.disk import unwritable_paths
from rulka.errors import UserError
from rulka.folders import DATA
from rulka.game.plugin import PLUGIN_FILE
from rulka.game.settings import GameSettings, read_game_settings
from rulka.game.supervise import launch_command
from rulka.graph import GRAPH_FILE, PARAMS_FILE, check_names, read_graph, sections_of_stage
from rulka.params import read_params, read_sections
from rulka.ports import LOOPBACK, holder, no_proxy_for_loopback

PYTHONS = ("3.11", "3.12")
CONSTRAINTS_FILE = Path("constraints.txt")
KERNEL_MODULES = ("rulka.simulator.physics", "rulka.simulator.render_kernels")
SHARED_MEMORY = Path("/dev/shm")
MIN_MEMORY_GB, MIN_DISK_GB = 6.0, 5.0
MIN_SHARED_MEMORY_MB = 256.0
"""Training as shipped takes a tenth of it; Docker gives a container 64 MB."""
PLUGINS = ("Documents/TMInterface/Plugins", "My Documents/TMInterface/Plugins")
"""Where TMInterface looks for plugins, below the folder of a user."""
DVC = (sys.executable, "-m", "dvc")
LOCAL_CONFIG = Path(".dvc/config.local")
TIMEOUT_S = 60.0
MOST_NAMED = 5


class State(StrEnum):
    """How something was found."""

    OK = "ok"
    NOTE = "note"
    """Nothing that a run stops at, but worth knowing."""
    WRONG = "wrong"
    """A run fails at it, or its results are not those of these parameters and pins."""
    UNKNOWN = "unknown"
    """It could not be looked at; that says nothing of the others."""


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        state: how it was found.
        text: what was found.
        to_do: what to do about it; empty where there is nothing to do.
    """

    name: str
    state: State
    text: str
    to_do: str = ""

    def to_json(self) -> dict[str, str]:
        """Returns all but the name."""
        return {"state": self.state.value, "text": self.text, "to_do": self.to_do}

    def describe(self) -> str:
        """Returns it as a line for people, and a second one where there is something to do."""
        label = "WRONG" if self.state is State.WRONG else self.state.value
        return f"{label:<7} {self.name}: {self.text}" + (f"\n        to do: {self.to_do}" if self.to_do else "")


Check = Callable[[], Finding | list[Finding]]


def examine() -> list[Finding]:
    """Runs every check; a failing check does not stop the rest."""
    return [finding for name, check in CHECKS.items() for finding in findings_of(name, check)]


def findings_of(name: str, check: Check) -> list[Finding]:
    """Returns what a check finds.

    Args:
        name: of the finding, where the check raises.
        check: a UserError of it says what is wrong; any other exception is the check's own failure.
    """
    try:
        found = check()
    except UserError as error:
        return [Finding(name, State.WRONG, str(error), error.hint)]
    except Exception as error:  # a broken machine raises whatever it likes, and this is where one looks at it
        return [Finding(name, State.UNKNOWN, f"not looked at: {type(error).__name__}: {' '.join(str(error).split())}")]
    return [found] if isinstance(found, Finding) else found


def _judged(name: str, is_right: bool, text: str, to_do: str) -> Finding:
    """Returns that something is right, or what to do because it is not."""
    return Finding(name, State.OK, text) if is_right else Finding(name, State.WRONG, text, to_do)


# The machine ----------------------------------------------------------------------------------------------------------


def python() -> Finding:
    """Checks that this is a Python that the project was tested with."""
    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    hint = f"make a new .venv with {' or '.join(PYTHONS)}"
    return _judged("python", found in PYTHONS, f"{found}, {sys.executable}", hint)


def packages() -> Finding:
    """Compares what is installed with the pins of constraints.txt.

    What the project itself asks for is wrong in another version; of anything else that is a note.
    """
    try:
        asked = {_key(line) for line in requires("rulka") or () if "extra ==" not in line}
    except PackageNotFoundError:
        return Finding("packages", State.WRONG, "rulka is not installed in this Python", "run `make setup`")
    installed = {_key(each.name): each.version.partition("+")[0] for each in distributions() if each.name}
    if missing := sorted(asked - installed.keys()):
        return Finding("packages", State.WRONG, f"not installed: {_named(missing)}", "run `make setup`")
    if not CONSTRAINTS_FILE.is_file():
        return Finding("packages", State.NOTE, f"there is no {CONSTRAINTS_FILE} here to compare versions with")
    lines = CONSTRAINTS_FILE.read_text(encoding="utf-8").splitlines()
    pins = {_key(name): pin.strip() for name, equals, pin in (line.partition("==") for line in lines) if equals}
    others = {name for name, pin in pins.items() if installed.get(name, pin) != pin}
    if not others:
        return Finding("packages", State.OK, f"{len(pins.keys() & installed.keys())} as {CONSTRAINTS_FILE} pins them")
    state = State.WRONG if asked & others else State.NOTE
    ordered = sorted(others, key=lambda name: (name not in asked, name))
    text = _named([f"{name} {installed[name]} instead of {pins[name]}" for name in ordered])
    return Finding("packages", state, text, "run `make setup` in a new .venv, or pin what you have tested")


def _key(requirement: str) -> str:
    """Returns the name that a requirement begins with, as all spellings of it are compared."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def _named(words: Sequence[str]) -> str:
    """Returns the first words, and how many more there are."""
    rest = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def compute() -> Finding:
    """Checks that what computes can be imported, and that the simulator's machine code can be kept."""
    try:
        for name in ("torch", "numba", *KERNEL_MODULES):
            importlib.import_module(name)
    except (ImportError, OSError) as error:
        return Finding("compute", State.WRONG, str(error), "run `make setup` in a new .venv")
    except RuntimeError as error:  # numba's, where no folder of its own can be written
        hint = "set NUMBA_CACHE_DIR to a folder that can be written"
        return Finding("compute", State.WRONG, f"compiled kernels cannot be kept: {error}", hint)
    return Finding("compute", State.OK, f"{os.cpu_count()} cores")


def device() -> Finding:
    """Says where networks run; a GPU that is there and cannot be used ends no run, unless it was asked for."""
    try:
        chosen = importlib.import_module("rulka.device").choose_device()
    except (ImportError, OSError) as error:
        return Finding("device", State.UNKNOWN, f"not looked at: torch cannot be imported: {error}")
    return Finding("device", State.NOTE if chosen.problem else State.OK, f"{chosen.device}: {chosen.why}")


def memory() -> Finding:
    """Checks that a run fits into the free memory."""
    free_gb = psutil.virtual_memory().available / 1e9
    hint = f"a run takes up to {MIN_MEMORY_GB:.0f} GB: end something else first"
    return _judged("memory", free_gb >= MIN_MEMORY_GB, f"{free_gb:.0f} GB free", hint)


def shared_memory() -> list[Finding]:
    """Checks what collectors and learner share; training itself says to the byte what it needs."""
    if not SHARED_MEMORY.is_dir():
        return []
    room = shutil.disk_usage(SHARED_MEMORY)
    text = f"{room.free / 1e6:.0f} of {room.total / 1e6:.0f} MB free in {SHARED_MEMORY}"
    hint = "end other runs; start a container with --shm-size=1g, elsewhere `mount -o remount,size=1G /dev/shm`"
    return [_judged("shared memory", room.free >= MIN_SHARED_MEMORY_MB * 1e6, text, hint)]


def proxy() -> list[Finding]:
    """Checks that Prefect's own commands reach the server of `rulka up`; says nothing without a proxy."""
    if (spared := no_proxy_for_loopback()) is None:
        return []
    text = "it is asked for this machine, too, so that commands of Prefect do not reach the server of `rulka up`"
    return [Finding("proxy", State.NOTE, text, f"export no_proxy={spared}")]


def disk() -> Finding:
    """Checks that there is room on the disk."""
    free_gb = shutil.disk_usage(".").free / 1e9
    hint = f"a run wants {MIN_DISK_GB:.0f}: see `du -sh data .dvc/cache runs .prefect`;"
    hint += " `dvc gc --all-commits --dry` names what no commit needs, see docs/data.md"
    return _judged("disk", free_gb >= MIN_DISK_GB, f"{free_gb:.0f} GB free", hint)


# The folder -----------------------------------------------------------------------------------------------------------


def parameters() -> Finding:
    """Checks that params.yaml is possible, and has every section that DVC looks at."""
    read_params()
    stages, sections = read_graph().values() if GRAPH_FILE.is_file() else (), read_sections(PARAMS_FILE)
    wanted = {section for stage in stages for section in sections_of_stage(stage, sections)}
    if missing := sorted(wanted - set(sections)):
        text = f"no section {', '.join(missing)}, without which DVC runs no stage"
        return Finding("params.yaml", State.WRONG, text, f"add `{missing[0]}: {{}}`")
    return Finding("params.yaml", State.OK, "possible")


def folder() -> Finding:
    """Checks that everything that a run writes can be written."""
    if paths := unwritable_paths():
        names = ", ".join(str(path) for path in paths)
        return Finding("folder", State.WRONG, f"{names} in {Path.cwd()}: not writable", "change the owner or the mode")
    return Finding("folder", State.OK, str(Path.cwd()))


def git() -> Finding:
    """Checks that there is a repository with a commit, or that DVC was told that there is none."""
    if not Path(".git").exists():
        if LOCAL_CONFIG.is_file() and "no_scm" in LOCAL_CONFIG.read_text(encoding="utf-8"):
            return Finding("git", State.OK, "no repository, which DVC was told")
        return Finding("git", State.WRONG, "no repository", "`dvc config --local core.no_scm true`, or `git init`")
    answer = _call("git", "status", "--porcelain")
    if isinstance(answer, str):
        return Finding("git", State.UNKNOWN, f"not looked at: {answer}")
    changed = [line[3:] for line in answer.stdout.splitlines()]
    if not changed:
        return Finding("git", State.OK, "everything is committed")
    text = f"not committed: {_named(changed)}"
    return Finding("git", State.NOTE, text, "commit them, so that a result says what it was made with")


def dvc() -> Finding:
    """Checks that DVC and its files can be used."""
    read_graph()
    check_names(DATA)
    answer = _call(*DVC, "status")
    if isinstance(answer, str) and "being blocked by" in answer:
        return Finding("dvc", State.NOTE, f"not looked at, as DVC runs: {answer}")
    if isinstance(answer, str):
        hint = "`dvc status` says more; where DVC is broken, run `make setup` in a new .venv"
        return Finding("dvc", State.WRONG, f"`dvc status` fails: {answer}", hint)
    return Finding("dvc", State.OK, "`dvc status` says what has changed, and works")


def _call(*command: str) -> subprocess.CompletedProcess[str] | str:
    """Returns what a program answers, or why it does not."""
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if answer.returncode != 0:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        return " ".join(lines[-4:]) or f"`{' '.join(command)}` ended with exit code {answer.returncode}"
    return answer


# What not every machine has -------------------------------------------------------------------------------------------


def cluster() -> list[Finding]:
    """Checks what training on a cluster needs, without joining it; says nothing where there is no talk of one."""
    try:
        is_asked_for = read_params().train.cluster == "ray"
    except UserError:  # the check of params.yaml says what is wrong with it
        is_asked_for = False
    if chosen_address() is None and not is_asked_for:
        return []
    try:
        address = find_cluster()
    except UserError as error:
        return [Finding("cluster", State.WRONG if is_asked_for else State.NOTE, str(error), error.hint)]
    return [Finding("cluster", State.OK, f"somebody listens at {address}; `ray status` says what it has")]


def game() -> list[Finding]:
    """Checks the game's program, plugin and link; says nothing where this machine has no settings of a game."""
    settings = read_game_settings()
    if settings == GameSettings(judge=settings.judge):
        return []
    return [_program(settings), *_plugin(settings), _link(settings)]


def _program(settings: GameSettings) -> Finding:
    where = f"{settings.host}:{settings.port}"
    if not settings.starts_games:
        return Finding("game", State.OK, f"expected at {where}, started by you")
    program = launch_command(settings, settings.port)[0]
    needed = [Path(program), *(path for path in (settings.exe, settings.prefix) if path is not None)]
    if missing := [path for path in needed if shutil.which(str(path)) is None and not path.exists()]:
        hint = "look at RULKA_GAME_* in the environment and in .env"
        return Finding("game", State.WRONG, f"{missing[0]} is not there", hint)
    return Finding("game", State.OK, f"started by Rulka at {where} with {program}")


def _plugin(settings: GameSettings) -> list[Finding]:
    """Looks for our plugin in the prefix of Wine, or below the home of the user."""
    homes = sorted((settings.prefix / "drive_c" / "users").glob("*")) if settings.prefix else [Path.home()]
    folders = [home / name for home in homes for name in PLUGINS if (home / name).is_dir()]
    if not folders:
        # A command of one's own may start a game whose folder cannot be known.
        return []
    lying = [folder / PLUGIN_FILE.name for folder in folders if (folder / PLUGIN_FILE.name).is_file()]
    copy = f"copy {PLUGIN_FILE} there, see docs/game.md"
    if not lying:
        return [Finding("game plugin", State.WRONG, f"{PLUGIN_FILE.name} is not in {folders[0]}", copy)]
    if any(file.read_bytes() != PLUGIN_FILE.read_bytes() for file in lying):
        return [Finding("game plugin", State.NOTE, f"{lying[0]} is not that of this version", copy)]
    return [Finding("game plugin", State.OK, str(lying[0]))]


def _link(settings: GameSettings) -> Finding:
    """Looks whether somebody listens, and asks nothing: a plugin serves one program, which may be a training."""
    where = f"{settings.host}:{settings.port}"
    if settings.host not in LOOPBACK:
        return Finding("game link", State.UNKNOWN, f"not looked at: {where} is on another machine")
    if found := holder(settings.host, settings.port):
        return Finding("game link", State.OK, f"{found} listens at {where}")
    hint = "start the game with TMInterface and the plugin, see docs/game.md"
    state = State.OK if settings.starts_games else State.NOTE  # Rulka starts the game when it is needed
    return Finding("game link", state, f"nobody listens at {where} yet", "" if settings.starts_games else hint)


CHECKS: dict[str, Check] = {
    "python": python,
    "packages": packages,
    "compute": compute,
    "device": device,
    "memory": memory,
    "shared memory": shared_memory,
    "disk": disk,
    "proxy": proxy,
    "params.yaml": parameters,
    "folder": folder,
    "git": git,
    "dvc": dvc,
    "cluster": cluster,
    "game": game,
}
