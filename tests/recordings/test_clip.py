"""Ghosts inside MediaTracker clips."""

from pathlib import Path

from rulka.recordings.reader import parse_recording, read_recording

CLIP, TRACK = 0x03079000, 0x03078000


def clip_chunk(forge, *blocks: bytes) -> bytes:
    """A clip of one track as Forever writes it; nodes 50 and 51 are the clip and the track."""
    track = forge.u32(51, TRACK, TRACK | 1) + forge.text("track") + forge.u32(10, len(blocks)) + b"".join(blocks)
    track += forge.u32(0xFFFFFFFF, TRACK | 4, 0, 0, forge.END)
    clip = forge.u32(50, CLIP, CLIP | 5, 10, 1) + track + forge.text("clip")
    clip += forge.u32(CLIP | 4, 0xFFFFFFFF, CLIP | 7, 0xFFFFFFFF, forge.END)
    return forge.chunk(0x03093015, clip) + forge.u32(forge.END)


def ghost_block(forge, index: int, ghost: bytes, *, versioned: bool = False) -> bytes:
    start = forge.u32(index, 0x030E5000) + (forge.u32(0x030E5002, 3, 1) if versioned else forge.u32(0x030E5001))
    return start + bytes(8) + ghost + bytes(16 if versioned else 4) + forge.u32(forge.END)


def new_ghost(forge, index: int) -> bytes:
    return forge.u32(index, 0x03092000) + forge.chunk(0x0309200F, forge.text("other")) + forge.u32(forge.END)


def test_a_ghost_in_a_clip_comes_last_and_the_recorded_one_is_no_second(forge) -> None:
    for versioned in (False, True):
        block = ghost_block(forge, 60, new_ghost(forge, 61), versioned=versioned)
        recording = parse_recording(forge.recording_file(tail=clip_chunk(forge, block)))
        found = [(ghost.login, ghost.is_from_clip) for ghost in recording.ghosts]
        assert found == [("driver", False), ("other", True)]
        assert recording.notes == ()
    block = ghost_block(forge, 60, forge.u32(1))
    assert len(parse_recording(forge.recording_file(tail=clip_chunk(forge, block))).ghosts) == 1


def test_other_blocks_are_passed_over(forge) -> None:
    """Sizes by hand: a time key has 12 bytes, one of the custom camera 96, of an effect 32, a game camera one id."""
    end = forge.u32(forge.END)
    time = forge.u32(70, 0x03085000, 0x03085000, 2) + bytes(24) + end
    camera = forge.u32(71, 0x030A2000, 0x030A2005, 1) + bytes(96) + end
    effect = forge.u32(73, 0x07010000, 0x07010002, 1) + bytes(32 + 4) + end
    text = (
        forge.u32(72, 0x030A8000, 0x030A8001) + forge.text("words") + effect + forge.u32(0x030A8002) + bytes(12) + end
    )
    follow = forge.u32(74, 0x03084000, 0x03084003) + bytes(8) + forge.u32(0xFFFFFFFF) + bytes(4) + end
    ghost = ghost_block(forge, 75, new_ghost(forge, 76))
    recording = parse_recording(forge.recording_file(tail=clip_chunk(forge, time, camera, text, follow, ghost)))
    assert [ghost.login for ghost in recording.ghosts] == ["driver", "other"]
    assert recording.notes == ()


def test_an_unknown_block_ends_the_clip_but_not_the_recording(forge) -> None:
    strange = forge.u32(80, 0x03081000, 0x03081001)
    blocks = ghost_block(forge, 60, new_ghost(forge, 61)), strange
    recording = parse_recording(forge.recording_file(tail=clip_chunk(forge, *blocks)))
    assert len(recording.ghosts) == 2
    assert "class 0x03081000" in recording.notes[0]


def test_a_real_clip_with_three_further_ghosts(corpus: Path) -> None:
    recording = read_recording(corpus / "TMNF_Bruno_B13_Obstacle.Replay.Gbx")
    assert [ghost.is_from_clip for ghost in recording.ghosts] == [False, True, True, True]
    assert all(ghost.samples is not None and ghost.race_time_ms for ghost in recording.ghosts)
    assert len({ghost.login for ghost in recording.ghosts}) == 4
    assert recording.notes == ()
