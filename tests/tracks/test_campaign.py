from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from rulka.machine.errors import UserError
from rulka.params import read_params
from rulka.planner.demonstrations import record_demonstrations
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.facts import difficulty_of, track_facts
from rulka.tracks.find import find_track
from rulka.tracks.generate import generate_track
from rulka.tracks.track import WALL, Track, TrackError

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = {
    "copper-oval": "85425ae67bdddcd5",
    "long-shadow": "6a7770740555d695",
    "sidewinder": "cbdcf8013b7286fb",
    "rust-and-dust": "1d0248cbd2e6c4eb",
    "thunder-bowl": "455d064298fcb8ee",
    "grasshopper": "0212618d7ddc73af",
    "patchwork": "5373c50b8394718a",
    "figure-eight": "1a9ee394e8011af3",
    "needles-eye": "6f044e11e086263b",
    "last-light": "38b4808ed5650fd7",
}
"""Whoever changes one of these changes what results and reference laps on that track mean.

What each shows (banks, bridges with room below, jumps that fly) was looked at once, at these very hashes.
"""


def geometry_hash(track: Track) -> str:
    """Hash of everything a car can feel, to 1 mm or 1 mrad."""
    digest = hashlib.sha256()
    for name in ("centre_m", "width_m", "bank_rad", "gate_m"):
        digest.update(np.round(getattr(track, name) * 1000).astype("<i8").tobytes())
    for name in ("material", "edge"):
        digest.update(getattr(track, name).tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("slug", [entry.slug for entry in CAMPAIGN])
def test_the_campaign_never_changes_silently_and_the_built_in_driver_finishes(slug: str) -> None:
    track, params = campaign_track(slug), read_params(ROOT / "params.yaml")
    assert geometry_hash(track) == GOLDEN[slug]
    driver = params.races.driver.model_copy(update={"num_plans": 16, "horizon_s": 4.5, "pace_low": 0.8})
    end = params.race_end.model_copy(update={"max_race_s": 200.0})
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, end)
    races = record_demonstrations(track, settings, driver, num_races=1, seed=1)
    assert races[0].is_finished, races[0].progress_m


def test_tracks_are_found_by_slug_and_by_file(tmp_path: Path) -> None:
    """One track for all who ask, and nobody writes to it."""
    assert find_track("sidewinder") is campaign_track("sidewinder")
    with pytest.raises(ValueError, match="read-only"):
        campaign_track("sidewinder").centre_m[0] = 0.0
    path = tmp_path / "sub" / "mine.npz"
    campaign_track("sidewinder").save(path)
    assert geometry_hash(find_track(str(path))) == geometry_hash(find_track(path)) == GOLDEN["sidewinder"]
    with pytest.raises(TrackError, match=r"no track 'sidewindr'; did you mean sidewinder\?"):
        find_track("sidewindr")
    with pytest.raises(TrackError, match=r"no track 'x': it is neither a file nor one of copper-oval, long-s"):
        find_track("x")
    path.write_bytes(b"")
    with pytest.raises(TrackError, match="not a readable track file"):
        find_track(path)
    with pytest.raises(UserError, match="has no track 'x'"):
        campaign_track("x")


def test_facts_by_hand() -> None:
    facts = track_facts(campaign_track("copper-oval"))
    assert facts["uid"] == "campaign-copper-oval"
    assert (facts["length_m"], facts["climb_m"], facts["steepest"]) == (400.0, 0.0, 0.0)
    assert (facts["width_m"], facts["gates_m"]) == ([20.0, 20.0], [100.0, 200.0, 300.0, 400.0])
    assert (facts["difficulty"], facts["edges"]) == ("easy", [WALL])
    made = generate_track(1, 300.0, 14.0, 0.1, 100.0, "expert")
    assert difficulty_of(made) == "expert"
    assert difficulty_of(generate_track(1, 300.0, 14.0, 0.1, 100.0, "varied")) == "varied"
    assert difficulty_of(generate_track(1, 300.0, 14.0, 0.1, 100.0)) == "medium"
    assert difficulty_of(Track(**{**vars(made), "uid": "mine"})) is None
    with pytest.raises(UserError, match="no difficulty 'brutal'; there are easy, medium, hard, expert"):
        generate_track(1, 300.0, 14.0, 0.1, 100.0, "brutal")
