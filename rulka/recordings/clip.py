"""Reads the ghosts in MediaTracker clips.

A clip holds tracks, a track holds blocks, and one kind of block holds a ghost. The other kinds are skipped by their
layouts, since nothing in a clip states its size. An unlisted kind ends the reading of the clip.
"""

from __future__ import annotations

from collections.abc import Mapping

from rulka.recordings.container import GHOST
from rulka.recordings.errors import check_version
from rulka.recordings.ghost import read_ghost
from rulka.recordings.model import Ghost
from rulka.recordings.nodes import ChunkReader, Nodes, discard, node, skip, skip_list
from rulka.recordings.stream import Cursor

CLIP, TRACK, GHOST_BLOCK, EFFECT = 0x03079000, 0x03078000, 0x030E5000, 0x07010000
CAMERA_GAME, CAMERA_CUSTOM, TIME, FADE = 0x03084000, 0x030A2000, 0x03085000, 0x030AB000
IMAGE, MUSIC, SOUND, TEXT, TRAILS = 0x030A5000, 0x030A6000, 0x030A7000, 0x030A8000, 0x030A9000
CUSTOM_KEY_BYTES = {6: 144, 7: 156, 8: 164, 9: 156, 10: 168}
"""Size of a key of the custom camera, by version (since 2011)."""

_Found = list[Ghost]


def read_clip(cursor: Cursor, nodes: Nodes, ghosts: _Found) -> None:
    """Reads a reference to a clip and appends its ghosts, also if an error stops reading.

    Raises:
        UnsupportedGenerationError: at an unknown structure; `ghosts` then holds those before it.
        DamagedError: if the clip is inconsistent.
    """
    nodes.reference(cursor, {CLIP: node(ghosts, _CLIP_CHUNKS, "a clip")})


def _tracks(*, has_name: bool, num_bytes: int = 0) -> ChunkReader[_Found]:
    def chunk(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
        cursor.skip(4)
        for _ in range(cursor.count(4)):
            nodes.reference(cursor, {TRACK: node(ghosts, _TRACK_CHUNKS, "a track of a clip")})
        if has_name:
            cursor.string()
        cursor.skip(num_bytes)

    return chunk


def _versioned_tracks(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    cursor.skip(4)
    _tracks(has_name=True, num_bytes=12)(cursor, ghosts, nodes)
    cursor.string()
    cursor.skip(8)


def _blocks(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    readers = {kind: node(ghosts, chunks, "a block of a clip") for kind, chunks in _BLOCKS.items()}
    cursor.string()
    cursor.skip(4)
    for _ in range(cursor.count(4)):
        nodes.reference(cursor, readers)
    cursor.skip(4)


def _cycling(cursor: Cursor, _: _Found, __: Nodes) -> None:
    cursor.skip(20 if cursor.u32() >= 1 else 12)


def _take_ghost(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    """Reads a reference to a ghost and appends it, unless the recording itself already holds it."""
    ghost = nodes.reference(cursor, {GHOST: read_ghost})
    if isinstance(ghost, Ghost) and all(ghost is not other for other in ghosts):
        ghosts.append(ghost)


def _old_ghost(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    cursor.skip(8)
    _take_ghost(cursor, ghosts, nodes)
    cursor.skip(4)


def _versioned_ghost(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    if cursor.u32() >= 3:
        cursor.skip(8 * cursor.count(8))
    else:
        cursor.skip(8)
    _take_ghost(cursor, ghosts, nodes)
    cursor.skip(16)


def _custom_keys(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    version = 6 + cursor.u32()
    check_version("the keys of a camera are stored in", version, CUSTOM_KEY_BYTES)
    skip_list(CUSTOM_KEY_BYTES[version])(cursor, ghosts, nodes)


def _named_camera(num_ids: int, num_bytes: int) -> ChunkReader[_Found]:
    def chunk(cursor: Cursor, _: _Found, __: Nodes) -> None:
        cursor.skip(8)
        last = [cursor.id() for _ in range(num_ids)][-1]
        cursor.skip(num_bytes if num_ids == 1 or last else 0)

    return chunk


def _versioned_camera(cursor: Cursor, _: _Found, __: Nodes) -> None:
    version = cursor.u32()
    cursor.skip(8)
    if version <= 1:
        cursor.id()
    else:
        cursor.skip(4)
    cursor.skip(60 + 4 * (version >= 1) + 4 * (version >= 3))


def _effect(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    nodes.reference(cursor, {EFFECT: node(ghosts, _EFFECT_CHUNKS, "an effect")})


def _text(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    cursor.string()
    _effect(cursor, ghosts, nodes)


def _image(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    _effect(cursor, ghosts, nodes)
    cursor.file_reference()


def _sound(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    cursor.file_reference()
    skip_list(12)(cursor, ghosts, nodes)


def _played_sound(cursor: Cursor, _: _Found, __: Nodes) -> None:
    version = cursor.u32()
    cursor.skip(12 + 4 * (version >= 1) + 8 * (version >= 2))


def _placed_sound(cursor: Cursor, ghosts: _Found, nodes: Nodes) -> None:
    cursor.file_reference()
    skip_list(24 if cursor.u32() >= 1 else 12)(cursor, ghosts, nodes)


def _no_scene(cursor: Cursor, _: _Found, nodes: Nodes) -> None:
    nodes.reference(cursor, {})


_CLIP_CHUNKS: Mapping[int, ChunkReader[_Found]] = {
    CLIP: _tracks(has_name=False),
    CLIP | 0x1: _tracks(has_name=True),
    CLIP | 0x2: _tracks(has_name=True, num_bytes=4),
    CLIP | 0x3: _tracks(has_name=True),
    CLIP | 0x4: _no_scene,
    CLIP | 0x5: _tracks(has_name=True),
    CLIP | 0x6: discard(Cursor.id),
    CLIP | 0x9: discard(Cursor.string),
    CLIP | 0xD: _versioned_tracks,
} | {CLIP | number: skip(4) for number in (0x7, 0x8, 0xA, 0xB, 0xC)}
_TRACK_CHUNKS: dict[int, ChunkReader[_Found]] = {
    TRACK | 1: _blocks,
    TRACK | 2: skip(4),
    TRACK | 3: skip(4),
    TRACK | 4: skip(8),
    TRACK | 5: _cycling,
}
_EFFECT_CHUNKS: dict[int, ChunkReader[_Found]] = {
    EFFECT | 1: skip_list(28, 4),
    EFFECT | 2: skip_list(32, 4),
    EFFECT | 4: skip_list(48, 12),
    EFFECT | 5: skip_list(48, 16),
}
_BLOCKS: dict[int, dict[int, ChunkReader[_Found]]] = {
    GHOST_BLOCK: {GHOST_BLOCK | 1: _old_ghost, GHOST_BLOCK | 2: _versioned_ghost},
    TIME: {TIME: skip_list(12)},
    FADE: {FADE: skip_list(8, 16)},
    TRAILS: {TRAILS: skip(8)},
    MUSIC: {MUSIC: skip_list(8), MUSIC | 1: skip_list(12)},
    SOUND: {SOUND | 1: _sound, SOUND | 2: skip(8), SOUND | 3: _played_sound, SOUND | 4: _placed_sound},
    TEXT: {TEXT | 1: _text, TEXT | 2: skip(12), TEXT | 3: skip(4)},
    IMAGE: {IMAGE: _image, IMAGE | 1: skip(4)},
    CAMERA_CUSTOM: {
        CAMERA_CUSTOM | 1: skip_list(80),
        CAMERA_CUSTOM | 2: skip_list(96),
        CAMERA_CUSTOM | 5: skip_list(96),
        CAMERA_CUSTOM | 6: _custom_keys,
    },
    CAMERA_GAME: {
        CAMERA_GAME: skip(12),
        CAMERA_GAME | 1: skip(16),
        CAMERA_GAME | 2: _named_camera(2, 4),
        CAMERA_GAME | 3: _named_camera(1, 4),
        CAMERA_GAME | 4: _named_camera(1, 48),
        CAMERA_GAME | 5: _named_camera(1, 52),
        CAMERA_GAME | 6: _named_camera(1, 56),
        CAMERA_GAME | 7: _versioned_camera,
    },
}
