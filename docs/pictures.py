"""Makes the pictures of README: `python docs/pictures.py`, from the root, after `make demo`.

images/report.png    headline and two plots of `data/evaluation`, and its video in the middle of the race
images/frames.png    what a car sees in three moments of the lap that comes with a campaign track, and what people see
"""

from __future__ import annotations

import html
import re
import textwrap
from itertools import islice
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw

from rulka.actions import action_table
from rulka.evaluation.race import EvaluationRaces, reference_race
from rulka.evaluation.results import MPS_TO_KMH
from rulka.folders import EVALUATION, PLOTS, REPORT_PAGE, VIDEO_FILE
from rulka.params import read_params
from rulka.reference.lap import load_reference, shipped_lap
from rulka.simulator.render import FrameRenderer, camera_array, render_rgb
from rulka.simulator.scene import bake_scene
from rulka.tracks.campaign import campaign_track
from rulka.video.hud import font_of
from rulka.video.motion import Motion

IMAGES = Path(__file__).with_name("images")
WIDTH, MARGIN, SIDE = 760, 20, 384
INK, SOFT, PAPER = (27, 31, 36), (92, 102, 117), (255, 255, 255)
SLUG, SHARES = "long-shadow", (0.12, 0.45, 0.8)
"""Track, and the moments as shares of its lap."""


def report_picture(folder: Path) -> Image.Image:
    """Puts an evaluation on one sheet, without a browser and what it lays over a video."""
    found = re.search(r"<h1>(.*?)</h1>", (folder / REPORT_PAGE).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    title = textwrap.wrap(html.unescape(found[1]), 56)
    parts = [_middle_frame(folder / VIDEO_FILE)]
    parts += [Image.open(folder / PLOTS / f"{name}.png").convert("RGB") for name in ("splits", "times")]
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


def frames_picture() -> Image.Image:
    """Draws moments of a lap: above as people see it, below as the agent does, enlarged."""
    params, track = read_params(), campaign_track(SLUG)
    table, path = action_table(params.actions.ticks_per_action), shipped_lap(track)
    assert path is not None
    races = EvaluationRaces.of(
        track, params.observation, params.actions, params.simulator, params.evaluate, params.race_end
    )
    motion = Motion(reference_race(load_reference(path, track, params.simulator, table), races))
    scene, camera, high = bake_scene(track), camera_array(params.simulator.camera), SIDE * 9 // 16
    sheet = Image.new("RGB", (len(SHARES) * (SIDE + 8) - 8, high + SIDE + 44), PAPER)
    pen, font = ImageDraw.Draw(sheet), font_of(14)[0]
    for column, share in enumerate(SHARES):
        moment, left = motion.at(share * motion.race.duration_ms), column * (SIDE + 8)
        seen = np.zeros((1, params.observation.height, params.observation.width), np.uint8)
        FrameRenderer(moment.pose[None], np.array([moment.zone_index]), scene, camera).render(seen)
        sheet.paste(Image.fromarray(render_rgb(scene, moment.pose, moment.zone_index, SIDE, high)), (left, 0))
        size = f"{seen.shape[2]} \N{MULTIPLICATION SIGN} {seen.shape[1]} grey"
        said = f"{moment.time_ms / 1000:.1f} s, {moment.speed_mps * MPS_TO_KMH:.0f} km/h; the agent sees {size}"
        pen.text((left + SIDE / 2, high + 26), said, SOFT, font, "ms")
        sheet.paste(Image.fromarray(seen[0]).resize((SIDE, SIDE), Image.Resampling.NEAREST), (left, high + 44))
    return sheet


def main() -> None:
    """Makes both pictures."""
    for name, picture in (("frames", frames_picture()), ("report", report_picture(EVALUATION))):
        picture.save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
