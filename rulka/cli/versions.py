"""Commands about versions of data and results."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rulka.cli.options import AsJson, Flag, OneName, Paths, say, say_json
from rulka.errors import UserError
from rulka.stage import EXIT_USER_ERROR


def remote(
    action: Annotated[Literal["init", "push", "pull"], tyro.conf.Positional],
    place: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    local: Flag = False,
    as_json: AsJson = False,
) -> None:
    """Set the remote that holds the data of every version, send data there, or bring those of this version here.

    Args:
        action: set the remote, send the data of this folder and of every commit, or bring those of this version here.
        place: with init: a folder, or an address that DVC knows; a folder beside this one when left out.
        local: with init: for this machine alone, in .dvc/config.local, which is not committed.
        as_json: print one JSON object.
    """
    from rulka.versions.remote import pull, push, set_remote

    if action != "init" and (place is not None or local):
        message = "PLACE and --local are for `rulka remote init`"
        raise UserError(message)
    if action == "init":
        found, is_new = set_remote(place, is_local=local)
        if as_json:
            say_json({"name": found.name, "place": found.place, "is_new": is_new})
        elif not is_new:
            say(f"the remote is {found.place} already")
        else:
            say(f"the remote is {found.place}")
            commit = "" if local else "`git add .dvc/config && git commit` tells clones of it; "
            say(f"now: {commit}`rulka remote push` sends data there")
        return
    if action == "push":
        pushed = push()
        lines = [f"{pushed.num_files} files sent to {pushed.place}: data in use, and of {pushed.num_commits} commits"]
        say_json(asdict(pushed)) if as_json else say("\n".join([*lines, *(f"note: {text}" for text in pushed.remarks)]))
        return
    pulled = pull()
    if as_json:
        say_json(asdict(pulled))
        return
    new = f"new here: {', '.join(pulled.changed)}" if pulled.changed else "everything was here"
    say(f"{pulled.num_files} files fetched; {new}")
    if pulled.unknown:
        say(f"note: not made in this version: {', '.join(pulled.unknown)}. `rulka run` makes them")


def reproduce(revision: OneName, /, out: Path | None = None, as_json: AsJson = False) -> None:
    """Bring an old agent back with its data, code and parameters in a folder of its own, and check their hashes.

    Args:
        revision: a commit, branch or tag in which dvc.lock was committed.
        out: folder to make; beside this one and named after the revision when left out.
        as_json: print one JSON object.
    """
    from rulka.versions.reproduce import reproduce as bring_back

    def tell(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    found = bring_back(revision, out, tell)
    if as_json:
        say_json({**asdict(found), "is_same": found.is_same})
    else:
        say(f"{found.folder}: revision {found.commit[:8]}, {found.subject!r}")
        for check in found.checks:
            say(f"{'ok     ' if check.is_fine else 'DIFFERS'} {check.name}: {check.text}")
        say(f"now: cd {found.folder} && python -m rulka.cli evaluate   # `python -m`, so that its own code races")
        say(f"when you are done: git worktree remove {found.folder}")
    if not found.is_same:
        sys.exit(EXIT_USER_ERROR)


def gc(keep: Literal["commits", "promoted"] = "commits", yes: Flag = False, as_json: AsJson = False) -> None:
    """Make room in DVC's cache: says what nothing needs any more, and asks before it removes that.

    Data in use, here and in worktrees, stay, and so do promoted agents.

    Args:
        keep: besides: data of every commit; or of tags, ends of branches, and commits that recorded a promoted agent.
        yes: remove without asking.
        as_json: print one JSON object, and ask nothing: without --yes nothing is removed.
    """
    from rulka.versions.collect import collect

    found = collect(keep, remove=False)
    asks = not yes and not as_json and found.num_files > 0 and sys.stdin.isatty()
    if not as_json:
        say(f"kept: data in use, and of {found.num_commits} commits; the remote is not touched")
        for commit in found.given_up:
            say(f"given up here: {commit}")
        say(f"not needed: {found.num_files} files, {found.num_bytes / 1e6:.1f} MB of DVC's cache")
    if found.num_files and (yes or (asks and input("Remove them? [y/N] ").strip().lower() in ("y", "yes"))):
        found = collect(keep, remove=True)
    if as_json:
        say_json(asdict(found))
    elif found.num_files:
        again = f"nothing is removed; `rulka gc --keep {keep} --yes` removes without asking"
        say("removed" if found.is_removed else again)


def recordings(
    action: Annotated[Literal["add"], tyro.conf.Positional], paths: Paths = (), /, as_json: AsJson = False
) -> None:
    """Put recordings under DVC, so that clones can have them: copied into data/recordings, nothing is overwritten.

    Args:
        action: add recordings.
        paths: Gbx files, and folders of them; those that lie in data/recordings already when left out.
        as_json: print one JSON object.
    """
    from rulka.versions.recordings import add_recordings

    del action
    added = add_recordings(paths)
    if as_json:
        say_json(asdict(added))
        return
    say(f"{added.num_files} recordings are under DVC, {added.num_new} of them new in data/recordings")
    for line in added.unreadable:
        say(f"note: cannot be used: {line}")
    say(f"now: `git add {' '.join(added.to_commit)} && git commit`, then `rulka remote push`")
