"""Writes MP4 files that browsers play."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.codec.codec import UnknownCodecError
from av.video.stream import VideoStream
from numpy.typing import NDArray

from rulka.errors import UserError

ENCODERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("libx264", {"crf": "24", "preset": "veryfast", "threads": "2"}),
    ("libopenh264", {"b": "2500000"}),
    ("libvpx-vp9", {"crf": "36", "b": "0", "deadline": "realtime", "cpu-used": "6"}),
)
"""Encoders by preference, with their settings; every current browser plays what they write."""


class VideoError(UserError):
    """A video cannot be written here; the message says why."""


def write_mp4(path: Path, frames: Iterable[NDArray[np.uint8]], fps: int) -> str:
    """Writes a video.

    Args:
        path: file to write.
        frames: images [H, W, 3], all of one size, H and W even.
        fps: frames a second.

    Returns:
        Name of the encoder used.

    Raises:
        VideoError: if no encoder is there or no frame came.
    """
    name, options = _encoder()
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as file:
        stream = file.add_stream(name, rate=fps, options=options)
        assert isinstance(stream, VideoStream)
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, fps)
        num_frames = 0
        for image in frames:
            if num_frames == 0:
                stream.height, stream.width = image.shape[:2]
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
            num_frames += 1
        if num_frames == 0:
            message = "a video needs at least one frame"
            raise VideoError(message)
        file.mux(stream.encode(None))
    return name


def _encoder() -> tuple[str, dict[str, str]]:
    for name, options in ENCODERS:
        try:
            av.Codec(name, "w")
        except UnknownCodecError:
            continue
        return name, options
    message = f"the installed package av has none of the encoders {', '.join(name for name, _ in ENCODERS)}"
    raise VideoError(message, hint="Install a build of av that has libx264.")
