"""Summary facts of a track."""

from __future__ import annotations

from typing import Any

import numpy as np

from rulka.tracks.campaign import CAMPAIGN, UID_PREFIX
from rulka.tracks.difficulty import DIFFICULTIES, VARIED
from rulka.tracks.track import Track


def climb_m(track: Track) -> float:
    """Returns the total ascent of a track in metres, ignoring descents."""
    return float(np.diff(track.centre_m[:, 1]).clip(min=0.0).sum())


def difficulty_of(track: Track) -> str | None:
    """Returns the name of the difficulty of a campaign track or a generated one; None for other tracks."""
    entry = next((entry for entry in CAMPAIGN if track.uid == UID_PREFIX + entry.slug), None)
    if entry is not None:
        return entry.style.name
    if not track.uid.startswith("generated-"):
        return None
    kind = track.uid.rpartition("-")[2]
    return kind if kind in (*DIFFICULTIES, VARIED) else "medium"


def track_facts(track: Track) -> dict[str, Any]:
    """Returns the facts of a track as plain values: lengths in metres, angles in degrees."""
    slope = np.diff(track.centre_m[:, 1]) / np.linalg.norm(np.diff(track.centre_m[:, [0, 2]], axis=0), axis=1).clip(
        1e-9
    )
    return {
        "uid": track.uid,
        "name": track.name,
        "source": track.source,
        "difficulty": difficulty_of(track),
        "length_m": track.length_m,
        "climb_m": round(climb_m(track), 1),
        "height_m": round(float(np.ptp(track.centre_m[:, 1])), 1),
        "steepest": round(float(np.abs(slope).max()), 3),
        "width_m": [round(float(track.width_m.min()), 2), round(float(track.width_m.max()), 2)],
        "max_bank_deg": round(float(np.degrees(np.abs(track.bank_rad)).max()), 1),
        "materials": sorted(set(track.material.tolist())),
        "edges": sorted(set(track.edge.tolist())),
        "gates_m": [round(float(at), 1) for at in track.gate_m],
    }
