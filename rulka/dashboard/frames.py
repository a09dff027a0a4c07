"""What the frame dataset holds. It imports torch, which takes seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rulka.datasets.card import maps_of
from rulka.datasets.frames import INDEX_FILE, read_index
from rulka.folders import FRAMES

KEYS = ("gas", "brake", "left", "right")


def frames() -> dict[str, Any] | None:
    """Returns what the frame dataset holds; None where there is none.

    Returns:
        `splits`, `sources` and `maps`, rows of name, races and frames, the main track's map first; `shares`, of each
        action its keys and its share of the time; `height` and `width` in pixels, `decision_ms`.

    Raises:
        FrameDataError: if it is damaged, or of another version.
    """
    if not (FRAMES / INDEX_FILE).exists():
        return None
    index = read_index(FRAMES)
    counts: Counter[tuple[str, str]] = Counter()
    races: Counter[tuple[str, str]] = Counter()
    for race in index.races:
        for key in (("split", race.split), ("source", race.source), ("map", race.map_uid)):
            counts[key] += race.num_frames
            races[key] += 1

    def rows(kind: str, names: Iterable[str]) -> list[tuple[str, int, int]]:
        return [(name, races[kind, name], counts[kind, name]) for name in names]

    controls = zip(index.actions["controls"], index.statistics["action_share"], strict=True)
    held = [
        (" ".join(key for key, is_down in zip(KEYS, keys, strict=True) if is_down), share) for keys, share in controls
    ]
    return {
        "splits": rows("split", index.shards),
        "sources": rows("source", sorted({race.source for race in index.races})),
        "maps": rows("map", maps_of(index)),
        "shares": sorted(((keys or "none", share) for keys, share in held), key=lambda each: -each[1]),
        "height": index.observation.height,
        "width": index.observation.width,
        "decision_ms": 10 * index.actions["ticks_per_action"],
    }
