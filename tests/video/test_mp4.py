"""Videos can be read back and hold what was put in."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from rulka.machine.errors import UserError
from rulka.video import race_video
from rulka.video.race_video import write_mp4


def test_video_holds_its_frames_and_missing_encoders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greys = (20, 90, 160, 230)
    path = tmp_path / "video.mp4"
    write_mp4(path, (np.full((48, 64, 3), grey, np.uint8) for grey in greys), fps=25)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 25)
        means = [float(frame.to_ndarray(format="rgb24").mean()) for frame in file.decode(stream)]
    assert stream.codec_context.pix_fmt == "yuv420p"  # the only format that every browser plays
    np.testing.assert_allclose(means, greys, atol=4)
    content = path.read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat"), "so that a page can start it"
    with pytest.raises(UserError, match="at least one frame"):
        write_mp4(path, [], fps=25)
    monkeypatch.setattr(race_video, "ENCODERS", {"no_such_encoder": {}})
    with pytest.raises(UserError, match="no_such_encoder"):
        write_mp4(tmp_path / "video.mp4", [np.zeros((48, 64, 3), np.uint8)], fps=25)
