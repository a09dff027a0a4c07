"""Ports that Rulka wants, and who holds them; asks neither Prefect nor the game."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from rulka.doctor.finding import Finding, State
from rulka.env_file import ENV_FILE, read_env_file
from rulka.game.settings import read_game_settings
from rulka.ports import LOOPBACK, holder

ADDRESS = "PREFECT_API_URL"
PREFECT_FILE = Path("prefect.toml")
DEFAULT_PORTS = {"http": 80, "https": 443}


def ports() -> Finding:
    """Says who holds the port of Prefect's server and that of the first game; whether they may is said elsewhere."""
    found: dict[str, tuple[str, int]] = {}
    if url := api_address():
        parts = urlsplit(url)
        found["Prefect's server"] = (parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 0))
    settings = read_game_settings()
    found["game"] = (settings.host, settings.port)
    said = [f"{port} ({what}): {_holder(host, port)}" for what, (host, port) in found.items()]
    return Finding("ports", State.OK, "; ".join(said))


def api_address() -> str | None:
    """Returns what Prefect is told of the address of its API, without asking Prefect; None where nothing is said."""
    if ADDRESS in os.environ:
        return os.environ[ADDRESS]
    if address := read_env_file(ENV_FILE, ADDRESS).get(ADDRESS):
        return address
    if PREFECT_FILE.is_file():
        return tomllib.loads(PREFECT_FILE.read_text(encoding="utf-8")).get("api", {}).get("url")
    return None


def _holder(host: str, port: int) -> str:
    if host not in LOOPBACK:
        return f"on {host}, not looked at"
    return holder(host, port) or "free"
