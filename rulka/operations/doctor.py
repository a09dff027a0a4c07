"""Checks of the machine and the folder that a run needs, each with a remedy: `rulka doctor`."""

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

from rulka.game.plugin import PLUGIN_FILE
from rulka.game.settings import GameSettings, read_game_settings
from rulka.game.supervise import launch_command
from rulka.machine.disk import existing, unwritable_paths
from rulka.machine.errors import UserError
from rulka.machine.ports import LOOPBACK, holder, is_proxy_in_the_way
from rulka.params import read_params, read_sections
from rulka.params.of_stages import READS, check_listed
from rulka.runtime.cluster import chosen_address, find_cluster
from rulka.stages.folders import DATA
from rulka.stages.graph import GRAPH_FILE, PARAMS_FILE, cache_folder, check_names, read_graph, sections_of_stage

PYTHONS = ("3.11", "3.12")
CONSTRAINTS_FILE = Path("constraints.txt")
KERNEL_MODULES = (
    *(f"rulka.simulator.{name}" for name in ("physics", "race_end", "render_kernels")),
    *("rulka.buffers.transitions", "rulka.contracts.observation", "rulka.envs.scoring", "rulka.planner.kernels"),
    *("rulka.recordings.lzo", "rulka.recordings.tick_inputs", "rulka.tracks.progress", "rulka.tracks.trigonometry"),
)
SHARED_MEMORY = Path("/dev/shm")
MIN_MEMORY_GB, MIN_DISK_GB = 6.0, 5.0
MIN_SHARED_MEMORY_MB = 256.0
"""Training as shipped takes a tenth of it; Docker gives a container 64 MB."""
PLUGINS = ("Documents/TMInterface/Plugins", "My Documents/TMInterface/Plugins")
"""Plugin folders of TMInterface, below a user's home."""
DVC = (sys.executable, "-m", "dvc")
LOCAL_CONFIG = Path(".dvc/config.local")
TIMEOUT_S = 60.0
MOST_NAMED = 5


class State(StrEnum):
    """Result of a check."""

    OK = "ok"
    NOTE = "note"
    """Stops no run, but is worth knowing."""
    WRONG = "wrong"
    """A run fails, or its results do not match these parameters and pins."""
    UNKNOWN = "unknown"
    """The check itself failed; the others are not affected."""


class Finding(NamedTuple):
    """Finding of a check.

    Attributes:
        name: of the thing checked.
        state: result of the check.
        text: the finding in words.
        to_do: the remedy; empty if there is nothing to do.
    """

    name: str
    state: State
    text: str
    to_do: str = ""

    def to_json(self) -> dict[str, str]:
        """Returns all fields but the name."""
        return {"state": self.state.value, "text": self.text, "to_do": self.to_do}

    def describe(self) -> str:
        """Returns a line for people, and a second one with any remedy."""
        label = "WRONG" if self.state is State.WRONG else self.state.value
        return f"{label:<7} {self.name}: {self.text}" + (f"\n        to do: {self.to_do}" if self.to_do else "")


Check = Callable[[], Finding | list[Finding]]


def examine() -> list[Finding]:
    """Runs every check; a failing check does not stop the rest."""
    return [finding for name, check in CHECKS.items() for finding in findings_of(name, check)]


def findings_of(name: str, check: Check) -> list[Finding]:
    """Runs a check and returns its findings.

    Args:
        name: of the finding if the check raises.
        check: its UserError says what is wrong; any other exception is the check's own failure.
    """
    try:
        found = check()
    except UserError as error:
        return [Finding(name, State.WRONG, str(error), error.hint)]
    except Exception as error:  # a broken machine may raise anything, and this is the tool to examine it
        return [Finding(name, State.UNKNOWN, f"not looked at: {type(error).__name__}: {' '.join(str(error).split())}")]
    return [found] if isinstance(found, Finding) else found


def _judged(name: str, is_right: bool, text: str, to_do: str) -> Finding:
    """Returns the finding that something is right, or else wrong with its remedy."""
    return Finding(name, State.OK, text) if is_right else Finding(name, State.WRONG, text, to_do)


# The machine ----------------------------------------------------------------------------------------------------------


def python() -> Finding:
    """Checks that the project was tested with this version of Python."""
    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    hint = f"make a new .venv with {' or '.join(PYTHONS)}"
    return _judged("python", found in PYTHONS, f"{found}, {sys.executable}", hint)


def packages() -> Finding:
    """Compares installed packages with the pins of constraints.txt.

    Another version of a direct dependency is wrong; of any other package it is a note.
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
    """Returns the package name at the start of a requirement, normalised."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def _named(words: Sequence[str]) -> str:
    """Joins the first words, with the number of any more."""
    rest = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def compute() -> Finding:
    """Checks that torch, numba and all kernels can be imported, and compiled kernels cached; repairs their cache."""
    try:
        for name in ("torch", "numba", *KERNEL_MODULES):
            importlib.import_module(name)
    except (ImportError, OSError) as error:
        return Finding("compute", State.WRONG, str(error), "run `make setup` in a new .venv")
    except RuntimeError as error:  # numba's, if it can write to no cache folder
        hint = "set NUMBA_CACHE_DIR to a folder that can be written"
        return Finding("compute", State.WRONG, f"compiled kernels cannot be kept: {error}", hint)
    if removed := importlib.import_module("rulka.machine.kernels").remove_damaged():
        text = f"damaged compiled kernels, now removed: {_named([file.name for file in removed])}"
        return Finding("compute", State.NOTE, text, "nothing: their next use compiles them")
    return Finding("compute", State.OK, f"{os.cpu_count()} cores")


def device() -> Finding:
    """Reports the device of networks; a GPU that cannot be used stops no run unless it was requested."""
    try:
        chosen = importlib.import_module("rulka.machine.device").choose_device()
    except (ImportError, OSError) as error:
        return Finding("device", State.UNKNOWN, f"not looked at: torch cannot be imported: {error}")
    return Finding("device", State.NOTE if chosen.problem else State.OK, f"{chosen.device}: {chosen.why}")


def memory() -> Finding:
    """Checks that there is enough free memory for a run."""
    free_gb = psutil.virtual_memory().available / 1e9
    hint = f"a run takes up to {MIN_MEMORY_GB:.0f} GB: end something else first"
    return _judged("memory", free_gb >= MIN_MEMORY_GB, f"{free_gb:.0f} GB free", hint)


def shared_memory() -> list[Finding]:
    """Checks the shared memory of collectors and learner; training itself checks the exact size."""
    if not SHARED_MEMORY.is_dir():
        return []
    room = shutil.disk_usage(SHARED_MEMORY)
    text = f"{room.free / 1e6:.0f} of {room.total / 1e6:.0f} MB free in {SHARED_MEMORY}"
    hint = "end other runs; start a container with --shm-size=1g, elsewhere `mount -o remount,size=1G /dev/shm`"
    return [_judged("shared memory", room.free >= MIN_SHARED_MEMORY_MB * 1e6, text, hint)]


def proxy() -> list[Finding]:
    """Checks that Prefect's own commands reach the server of `rulka up`; returns nothing without a proxy."""
    if not is_proxy_in_the_way():
        return []
    text = "as it is set, commands of Prefect do not reach the server of `rulka up`"
    return [Finding("proxy", State.NOTE, text, "put no_proxy='*' before them: `no_proxy='*' prefect deployment ls`")]


def disk() -> Finding:
    """Checks that there is room on the disks of the project and of DVC's cache."""
    places = {"here": Path(), "for DVC's cache": existing(cache_folder())}
    free_gb = {name: shutil.disk_usage(place).free / 1e9 for name, place in places.items()}
    hint = f"a run wants {MIN_DISK_GB:.0f}: see `du -sh data .dvc/cache runs .prefect`;"
    hint += " `dvc gc --all-commits --dry` names what no commit needs, see docs/data.md"
    text = ", ".join(f"{free:.0f} GB free {name}" for name, free in free_gb.items())
    return _judged("disk", min(free_gb.values()) >= MIN_DISK_GB, text, hint)


# The folder -----------------------------------------------------------------------------------------------------------


def parameters() -> Finding:
    """Checks that params.yaml is valid and has every section that DVC reads, and DVC compares all that stages read."""
    params = read_params()
    for stage in READS:
        check_listed(stage, params)
    stages, sections = read_graph().values() if GRAPH_FILE.is_file() else (), read_sections(PARAMS_FILE)
    wanted = {section for stage in stages for section in sections_of_stage(stage, sections)}
    if missing := sorted(wanted - set(sections)):
        text = f"no section {', '.join(missing)}, without which DVC runs no stage"
        return Finding("params.yaml", State.WRONG, text, f"add `{missing[0]}: {{}}`")
    return Finding("params.yaml", State.OK, "possible")


def folder() -> Finding:
    """Checks that every path that a run writes is writable."""
    if paths := unwritable_paths():
        names = ", ".join(str(path) for path in paths)
        return Finding("folder", State.WRONG, f"{names} in {Path.cwd()}: not writable", "change the owner or the mode")
    return Finding("folder", State.OK, str(Path.cwd()))


def git() -> Finding:
    """Checks that all files are committed; without a repository, that DVC was told so."""
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
    """Runs a program; returns its result, or the reason for its failure."""
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


# Optional parts -------------------------------------------------------------------------------------------------------


def cluster() -> list[Finding]:
    """Checks the needs of cluster training, without joining; returns nothing if no cluster is configured."""
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
    """Checks the game's program, plugin and link; returns nothing if this machine has no game settings."""
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
    """Looks for our plugin in the Wine prefix, or below the user's home."""
    homes = sorted((settings.prefix / "drive_c" / "users").glob("*")) if settings.prefix else [Path.home()]
    folders = [home / name for home in homes for name in PLUGINS if (home / name).is_dir()]
    if not folders:
        # A custom command may start a game in an unknown folder.
        return []
    lying = [folder / PLUGIN_FILE.name for folder in folders if (folder / PLUGIN_FILE.name).is_file()]
    copy = f"copy {PLUGIN_FILE} there, see docs/game.md"
    if not lying:
        return [Finding("game plugin", State.WRONG, f"{PLUGIN_FILE.name} is not in {folders[0]}", copy)]
    if any(file.read_bytes() != PLUGIN_FILE.read_bytes() for file in lying):
        return [Finding("game plugin", State.NOTE, f"{lying[0]} is not that of this version", copy)]
    return [Finding("game plugin", State.OK, str(lying[0]))]


def _link(settings: GameSettings) -> Finding:
    """Looks for a listener, and sends nothing: a plugin serves one program, which may be a training."""
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
