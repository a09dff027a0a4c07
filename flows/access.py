"""The password of this project's Prefect server: made once for each machine, asked of everybody who speaks to it.

A web page that is open on this machine can send requests to any loopback port. It cannot read a file of ours, so
whoever knows what stands in `.prefect/profiles.toml` is a program of the same user. `prefect.toml` names that file as
the one with Prefect's profiles, so `prefect ...` typed in this folder finds the password by itself.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import tomllib
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from prefect.settings import Settings, get_current_settings, temporary_settings

from flows.project import HOME
from rulka.errors import UserError

PROFILES_FILE = HOME / "profiles.toml"
PROFILE = "rulka"
CLIENT_KEY, SERVER_KEY = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"


class PasswordError(UserError):
    """The file with the password cannot be used."""


def password() -> str:
    """Returns `user:password` of the server: the environment's or that of `.env`, else this folder's, made if need be.

    Raises:
        PasswordError: if the folder's file cannot be read or holds none.
    """
    # Prefect has read its settings when it was imported, maybe before there was a file.
    if configured := get_current_settings().api.auth_string:
        return configured.get_secret_value()
    if not PROFILES_FILE.exists():
        _make()
    PROFILES_FILE.chmod(0o600)
    return _stored()


def password_of_elsewhere() -> str | None:
    """Returns `user:password` that the environment or `.env` sets; None where there is none but this folder's own.

    Raises:
        PasswordError: if the folder's file cannot be read or holds none.
    """
    configured = get_current_settings().api.auth_string
    if configured is None or (PROFILES_FILE.exists() and configured.get_secret_value() == _stored()):
        return None
    return configured.get_secret_value()


def _stored() -> str:
    try:
        stored = tomllib.loads(PROFILES_FILE.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        message = f"{PROFILES_FILE} is damaged: {error}"
        raise PasswordError(message, hint="Remove it; a new one is made.") from error
    settings: dict[str, Any] = stored.get("profiles", {}).get(stored.get("active"), {})
    if CLIENT_KEY not in settings:
        message = f"the active profile of {PROFILES_FILE} has no {CLIENT_KEY}"
        raise PasswordError(
            message, hint=f"Set {CLIENT_KEY} and {SERVER_KEY} there to one user:password, or remove the file."
        )
    return settings[CLIENT_KEY]


def client_settings(secret: str, url: str) -> AbstractContextManager[Settings]:
    """Returns a context in which Prefect's clients in this process speak to one server.

    Args:
        secret: `user:password` of the server.
        url: address of its API.
    """
    settings: dict[Any, Any] = {CLIENT_KEY: secret, "PREFECT_API_URL": url}
    return temporary_settings(settings)


def _make() -> None:
    """Writes the file whole and under its name only if there is none: two commands may start at once."""
    HOME.mkdir(exist_ok=True)
    value = f"{PROFILE}:{secrets.token_urlsafe(24)}"
    # Both keys: a `prefect server start` typed here must ask for the password too.
    text = f'active = "{PROFILE}"\n\n[profiles.{PROFILE}]\n{CLIENT_KEY} = "{value}"\n{SERVER_KEY} = "{value}"\n'
    # mkstemp makes it readable for its owner alone.
    handle, name = tempfile.mkstemp(prefix=f".{PROFILES_FILE.name}-", dir=HOME)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with suppress(FileExistsError):
            os.link(name, PROFILES_FILE)
    finally:
        Path(name).unlink()
