"""The game's side of the link, as text: `Rulka.as`, a plugin for TMInterface 2."""

from __future__ import annotations

from pathlib import Path

PLUGIN_FILE = Path(__file__).parent / "Rulka.as"
"""Copy it into TMInterface's folder `Plugins`; see docs/game.md."""
