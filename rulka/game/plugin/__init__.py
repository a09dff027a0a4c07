"""The game's side of the link, as text: `Rulka.as`, a plugin for TMInterface 2."""

from __future__ import annotations

from pathlib import Path

PLUGIN_FILE = Path(__file__).parent / "Rulka.as"
"""To be copied into the folder `Plugins` of TMInterface; see docs/game.md."""
