"""Makes the pictures of README: `python docs/pictures.py`, from the root, after `make demo`.

images/report.png    headline and two plots of `data/evaluation`, and its video in the middle of the race
images/race.webp     that video, smaller
"""

from __future__ import annotations

import html
import re
import textwrap
from itertools import islice
from pathlib import Path

import av
from PIL import Image, ImageDraw

from rulka.stages.folders import EVALUATION, PLOTS, REPORT_PAGE, VIDEO_FILE
from rulka.video.hud import font_of

IMAGES = Path(__file__).with_name("images")
WIDTH, MARGIN, MOVING = 760, 20, (448, 252)
INK, PAPER = (27, 31, 36), (255, 255, 255)


def report_picture(folder: Path) -> Image.Image:
    """Puts an evaluation on one sheet, without a browser and what it lays over a video."""
    found = re.search(r"<h1>(.*?)</h1>", (folder / REPORT_PAGE).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    title = textwrap.wrap(html.unescape(found[1]), 56)
    parts = [_middle_frame(folder / VIDEO_FILE)]
    parts += [Image.open(folder / PLOTS / f"{name}.png").convert("RGB") for name in ("splits", "training")]
    parts = [part.resize((WIDTH, round(part.height * WIDTH / part.width)), Image.Resampling.LANCZOS) for part in parts]
    top = MARGIN + 32 * len(title) + 12
    sheet = Image.new("RGB", (WIDTH + 2 * MARGIN, top + sum(part.height + MARGIN for part in parts)), PAPER)
    ImageDraw.Draw(sheet).multiline_text((MARGIN, MARGIN), "\n".join(title), INK, font_of(22, True)[0], spacing=8)
    for part in parts:
        sheet.paste(part, (MARGIN, top))
        top += part.height + MARGIN
    return sheet


def _middle_frame(video: Path) -> Image.Image:
    with av.open(str(video)) as file:
        return next(islice(file.decode(video=0), file.streams.video[0].frames // 2, None)).to_image()


def save_moving_picture(video: Path, path: Path) -> None:
    """Saves every third frame of a video, small enough for the first screen of README (400 kB)."""
    with av.open(str(video)) as file:
        frames = [frame.to_image().resize(MOVING, Image.Resampling.LANCZOS) for frame in file.decode(video=0)][2::3]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=120, loop=0, quality=32, method=6)


def main() -> None:
    """Makes both pictures."""
    report_picture(EVALUATION).save(IMAGES / "report.png", optimize=True)
    save_moving_picture(EVALUATION / VIDEO_FILE, IMAGES / "race.webp")


if __name__ == "__main__":
    main()
