from __future__ import annotations

import hashlib
import io
import re
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rulka.tracks.difficulty import ASPHALT, DIRT, GRASS, TURBO
from rulka.tracks.generate import generate_track
from rulka.tracks.progress import progress_along, zone_frames
from rulka.tracks.track import DROP, SCHEMA_VERSION, VERGE, WALL, Track, TrackError, load_track

SHAPE: dict[str, Any] = {"length_m": 600.0, "width_m": 16.0, "max_slope": 0.12, "gate_spacing_m": 120.0}
MEDIUM_MM = {
    0: "b5e6a620797b025a863c41cc3d6b33e8d739e73d4ad19fa7bab8c8b30eddba53",
    3: "ea1fa1fb2f1c614d02771be88a7b76ba373b24ca1c67b8341ef55b6989d78af2",
    4: "aa1c8318796db47269a87c86bbfa1ed01414d67d12cfdd34a32f14799076f793",
    5: "a96c91d1872ccb9ffabd7731cf47e54fd355fa5abfaf4b2a5643b85833531456",
}
"""Tracks that must not change: results, reference laps and trained agents depend on them."""


def test_medium_tracks_keep_every_millimetre() -> None:
    for seed, golden in MEDIUM_MM.items():
        rounded = np.round(generate_track(seed, **SHAPE).centre_m * 1000).astype("<i8")
        assert hashlib.sha256(rounded.tobytes()).hexdigest() == golden


def test_varied_tracks_have_all_that_a_road_may_have() -> None:
    """Together: every seed alone has a part of it, the same each time."""

    def varied(seed: int) -> Track:
        return generate_track(seed, 600.0, 14.0, 0.12, 150.0, "varied")

    tracks = [varied(seed) for seed in range(24)]
    rounded = np.round(tracks[3].centre_m * 1000).astype("<i8")
    golden = "395f9aa57239d9c69453d3621e240edc3d9716b0f09a99af7e538c920886598b"
    assert hashlib.sha256(rounded.tobytes() + tracks[3].material.tobytes()).hexdigest() == golden
    assert len({track.uid for track in tracks}) == 24
    assert {int(kind) for track in tracks for kind in track.material} == {ASPHALT, GRASS, DIRT, TURBO}
    assert {int(kind) for track in tracks for kind in track.edge} == {VERGE, WALL, DROP}
    on_dirt = [float((track.material == DIRT).mean()) for track in tracks]
    assert min(on_dirt) == 0.0
    assert max(on_dirt) > 0.6
    widths = [float(np.ptp(track.width_m)) for track in tracks]
    assert min(widths) < 1.0
    assert max(widths) > 5.0
    assert max(float(np.abs(track.bank_rad).max()) for track in tracks) > np.radians(18.0)


def test_track_files_round_trip(tmp_path: Path) -> None:
    bare, path = generate_track(2, **SHAPE), tmp_path / "track.npz"
    for track in (bare, replace(bare, medals_ms=(52870, 57000, 64000, 80000))):
        track.save(path)
        again = load_track(path)
        for name in Track.__dataclass_fields__:
            assert np.array_equal(getattr(again, name), getattr(track, name)), name
        assert again.medals_ms == track.medals_ms
    with np.load(path) as stored:
        np.savez(path, allow_pickle=False, **{name: stored[name] for name in stored.files if name != "medals_ms"})
    assert load_track(path).medals_ms == ()  # as earlier versions wrote it
    with pytest.raises(TrackError, match="not a readable track file"):
        load_track(tmp_path / "none.npz")


def test_impossible_tracks_are_refused() -> None:
    good = generate_track(2, **SHAPE)
    fields = {name: getattr(good, name) for name in Track.__dataclass_fields__}
    twice = good.centre_m.copy()
    twice[7] = twice[6]
    for field, value, says in (
        ("centre_m", np.zeros((1, 3)), "at least two points"),
        ("centre_m", np.full((1201, 3), np.nan), "not finite"),
        ("centre_m", twice, "zones 6 and 7 are in one place"),
        ("width_m", np.full(1201, 1.0), "m wide somewhere"),
        ("width_m", np.full(3, 9.0), "one value for each"),
        ("gate_m", np.array([300.0]), "not at the finish"),
        ("gate_m", np.array([300.0, 200.0, 600.0]), "one after another"),
        ("centre_m", good.centre_m * 1e300, "centre_m holds a value that is not finite, or beyond 100,000"),
        ("width_m", np.full(1201, 1001.0), "width_m holds a value"),
        ("bank_rad", np.full(1201, -4.0), "bank_rad holds a value"),
        ("name", "a" * 1001, r"track 'a{79}: uid, name and source have at most 1,000 characters"),
        ("medals_ms", (35770, 0, 3, 10), "four times in ms, author to bronze"),
        ("medals_ms", (1, 2, 3), "four times in ms, author to bronze"),
        ("medals_ms", (1.0, 2.0, 3.0, 4.0), "four times in ms, author to bronze"),
    ):
        with pytest.raises(TrackError, match=says):
            Track(**{**fields, field: value})


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    """The arrays of a track file."""
    with io.BytesIO() as file:
        np.savez(file, allow_pickle=False, schema=np.int64(SCHEMA_VERSION), **vars(generate_track(2, **SHAPE)))
        file.seek(0)
        with np.load(file) as arrays:
            return dict(arrays)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("schema", np.array("two"), "its schema is <U3 of shape ()"),
        ("schema", np.array([2, 2]), "its schema is int64 of shape (2,)"),
        ("schema", np.float64(2.5), "its schema is float64"),
        ("schema", np.int64(99), "has track schema 99"),
        ("centre_m", np.full((1201, 3), "x"), "its centre_m is <U1 of shape (1201, 3)"),
        ("centre_m", np.zeros((1201, 3), complex), "its centre_m is complex128"),
        ("material", np.full(1201, 300), "its material is int64"),
        ("gate_m", np.full((2, 2), 600.0), "its gate_m is float64 of shape (2, 2)"),
        ("gate_m", np.float64(600.0), "its gate_m is float64 of shape ()"),
        ("medals_ms", np.array(["a", "b", "c", "d"]), "four times in ms"),
    ],
)
def test_arrays_of_another_type_are_named(
    tmp_path: Path, stored: dict[str, np.ndarray], field: str, value: np.ndarray, says: str
) -> None:
    np.savez(tmp_path / "track.npz", allow_pickle=False, **(stored | {field: value}))
    with pytest.raises(TrackError, match=re.escape(says)):
        load_track(tmp_path / "track.npz")


def test_what_is_larger_than_any_track_is_refused_before_it_is_unpacked(
    tmp_path: Path, stored: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "track.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("centre_m.npy", "w") as member:
        for _ in range(40):
            member.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(TrackError, match="not a readable track file"):
        load_track(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    with zipfile.ZipFile(path, "w") as file, file.open("centre_m.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (10**13, 3)})
    with pytest.raises(TrackError, match="not a readable track file"):  # 240 TB are claimed
        load_track(path)
    np.save(tmp_path / "track.npy", stored["centre_m"])
    with pytest.raises(TrackError, match="another kind of file"):
        load_track(tmp_path / "track.npy")
    long = {name: values.repeat(100, axis=0) for name, values in stored.items() if values.ndim and name != "gate_m"}
    long["centre_m"] = np.arange(120_100)[:, None] * (0.5, 0.0, 0.0)
    np.savez(path, allow_pickle=False, **(stored | long | {"gate_m": np.array([60_049.5])}))
    with pytest.raises(TrackError, match="it is 60,050 m long, 20,000 m is the most"):
        load_track(path)


def test_a_changed_byte_of_a_track_file_is_named_or_means_nothing(tmp_path: Path) -> None:
    """Every 17th byte: zip has a checksum of its contents, but not of all that it says about them."""
    track, path = generate_track(2, **SHAPE), tmp_path / "track.npz"
    track.save(path)
    whole = path.read_bytes()
    num_refused = 0
    for place in range(0, len(whole), 17):
        content = bytearray(whole)
        content[place] ^= 0x10
        path.write_bytes(content)
        try:
            again = load_track(path)
        except TrackError:
            num_refused += 1
        else:
            assert np.array_equal(again.centre_m, track.centre_m)
    assert num_refused > 0.8 * len(whole) / 17


def test_progress_in_a_bend_never_jumps_or_falls() -> None:
    """Driving on beside the line, inside or outside a hairpin, always means progress, by a bounded factor.

    On a bend of radius R the path `offset` left of a line that turns left is shorter by (R - offset) / R; the tightest
    hairpin has about 19 m, so 6 m inside a metre driven is at most 19 / 13 of a metre along, and outside 19 / 25.
    """
    track = generate_track(5, **SHAPE)
    frames = zone_frames(track)[: track.num_zones]
    for offset in (-6.0, -2.0, 3.0, 6.0):
        edge = track.centre_m + offset * frames[:, 3:6]
        distance = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(edge, axis=0), axis=1))])
        fine = np.arange(0, distance[-1], 0.05)
        path = np.stack([np.interp(fine, distance, edge[:, k]) for k in range(3)], axis=1)
        _index, along, lateral = progress_along(track, path)
        gain = np.diff(along) / 0.05
        assert gain.min() > 0.6
        assert gain.max() < 1.6
        assert lateral == pytest.approx(offset, abs=0.05)
        there_and_back = progress_along(track, np.concatenate([path, path[::-1]]))[1]
        assert there_and_back[::-1] == pytest.approx(there_and_back)
