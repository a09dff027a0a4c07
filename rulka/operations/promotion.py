"""Promotion: an agent is promoted only if it beats the promoted one in paired races."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rulka.machine.errors import UserError
from rulka.operations.kept import Promotion, keep_promoted, name_of, promoted_name
from rulka.operations.pairs import Comparison, verdict


def promote(folder: Path, compare: Callable[[str], Comparison]) -> Promotion:
    """Promotes an agent if it beats the promoted one; the first agent needs no race.

    Args:
        folder: folder of the agent.
        compare: races it against the promoted agent, given by name.

    Raises:
        UserError: if it is promoted already, or does not win.
        ArtifactError: if it is damaged.
    """
    name, before = name_of(folder), promoted_name()
    if name == before:
        raise UserError(f"{name} is the promoted agent already")
    found = None
    if before is not None:
        found = compare(before).to_json()
        if found["winner"] != name:
            message = f"{name} is not promoted, {before} stays. {verdict(found)}"
            raise UserError(message, hint="More races narrow the interval: `--races N`, `--tracks main campaign`.")
    promotion = Promotion(name, datetime.now(UTC).isoformat(timespec="seconds"), before, found)
    keep_promoted(folder, promotion)
    return promotion


def describe(promotion: Promotion) -> str:
    """Describes a promotion and the comparison behind it."""
    if promotion.compared is None:
        return f"{promotion.name} is promoted. It is the first, and was compared with nobody."
    return f"{promotion.name} is promoted over {promotion.over}. {verdict(promotion.compared)}"
