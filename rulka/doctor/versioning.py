"""Git and DVC: whether they work, what has changed, and where data is pushed to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from rulka.doctor.finding import Finding, State, named
from rulka.graph import LOCK_FILE, read_graph

DVC = (sys.executable, "-m", "dvc")
LOCAL_CONFIG = Path(".dvc/config.local")
TIMEOUT_S = 60.0


def git() -> Finding:
    """Looks whether there is a repository, or DVC was told that there is none, and what is not committed."""
    if not Path(".git").exists():
        if LOCAL_CONFIG.is_file() and "no_scm" in LOCAL_CONFIG.read_text(encoding="utf-8"):
            return Finding("git", State.OK, "no repository, which DVC was told")
        return Finding("git", State.WRONG, "no repository", "`dvc config --local core.no_scm true`, or `git init`")
    answer = _call("git", "status", "--porcelain")
    if isinstance(answer, str):
        return Finding("git", State.UNKNOWN, f"not looked at: {answer}")
    if isinstance(_call("git", "rev-parse", "--quiet", "--verify", "HEAD"), str):
        return Finding("git", State.WRONG, "no commit yet: no stage runs", "`git add --all && git commit -m start`")
    changed = [line[3:] for line in answer.stdout.splitlines()]
    if not changed:
        return Finding("git", State.OK, "everything is committed")
    text = f"{len(changed)} {'file is' if len(changed) == 1 else 'files are'} not committed: {named(changed)}"
    return Finding("git", State.NOTE, text, "commit them, so that a result says what it was made with")


def dvc() -> list[Finding]:
    """Looks at DVC's settings, at dvc.lock, and at where data is pushed to."""
    config = _call(*DVC, "config", "--list")
    if isinstance(config, str):
        hint = "run `make setup` in a new .venv; `dvc doctor` says more"
        return [Finding("dvc", State.WRONG, f"DVC cannot be used: {config}", hint)]
    lines = [line.partition("=") for line in config.stdout.splitlines()]
    return [_results(), _remote({key: value for key, _, value in lines})]


def _results() -> Finding:
    stages = list(read_graph())
    if not LOCK_FILE.exists():
        return Finding("dvc", State.NOTE, f"no {LOCK_FILE}: nothing has run yet", "run `rulka run`")
    try:
        recorded = yaml.safe_load(LOCK_FILE.read_text(encoding="utf-8"))["stages"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        text = f"{LOCK_FILE} cannot be read: {' '.join(str(error).split())[:200]}"
        return Finding("dvc", State.WRONG, text, f"`git checkout {LOCK_FILE}`, or remove it and run `rulka run`")
    answer = _call(*DVC, "status", "--json")
    if isinstance(answer, str):
        is_busy = "Unable to acquire lock" in answer or "is being blocked by" in answer
        text = "another DVC is at work here" if is_busy else answer
        return Finding("dvc", State.UNKNOWN, f"not looked at what has changed: {text}")
    changed = json.loads(answer.stdout or "{}")
    stale = [stage for stage in stages if stage in changed]
    others = sorted(changed.keys() - set(stages))
    if not changed:
        text = f"{len(recorded)} of {len(stages)} stages have run, and nothing has changed since"
        return Finding("dvc", State.OK, text)
    said = [f"out of date: {', '.join(stale)}"] if stale else []
    said += [f"changed: {named(others)}"] if others else []
    hint = "`dvc status` says why; `rulka run` runs what is out of date"
    further = "; `dvc commit` records what lies there, `dvc checkout` brings back what was" if others else ""
    return Finding("dvc", State.NOTE, "; ".join(said), hint + further)


def _remote(config: dict[str, str]) -> Finding:
    urls = {found[1]: url for key, url in config.items() if (found := re.fullmatch(r"remote\.(.+)\.url", key))}
    name = config.get("core.remote", "")
    if not urls:
        hint = "`dvc remote add --default storage PLACE`, then `dvc push`"
        return Finding("dvc remote", State.NOTE, "none: what was made lies on this disk alone", hint)
    if name not in urls:
        text = f"the default remote is {name!r}, and there is none of that name" if name else "none is the default"
        return Finding("dvc remote", State.WRONG, text, f"`dvc remote default NAME`; there are {named(sorted(urls))}")
    url = urls[name]
    if len(urlsplit(url).scheme) > 1:  # one letter is a drive of Windows
        return Finding("dvc remote", State.OK, f"{name}, elsewhere; not asked, `dvc status --cloud` does")
    folder = Path(os.path.expanduser(url))
    if not folder.is_dir():
        return Finding("dvc remote", State.WRONG, f"{name}: there is no folder {folder}", "mount or make it")
    if not os.access(folder, os.W_OK):
        return Finding("dvc remote", State.WRONG, f"{name}: {folder} is not writable", "change the owner or the mode")
    return Finding("dvc remote", State.OK, f"{name}, {folder}")


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
        return " ".join(lines[-3:]) or f"`{' '.join(command)}` ended with exit code {answer.returncode}"
    return answer
