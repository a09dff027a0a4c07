"""Dataset card of `data/frames`: a README with counts, and a contact sheet of example frames."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.image import imsave
from numpy.typing import NDArray

from rulka.datasets.formats.frames import FrameDataset, FrameIndex, frames_of
from rulka.datasets.params import Backend

SHEET_COLUMNS = 10
SHEET_ROWS = 6
"""Rows of all maps together, as long as each map can have one."""
MOST_MAPS = 30
"""Maximum number of maps on the sheet, each with at least one row."""
PICTURE = f"![training frames of the maps above, one map after another, {MOST_MAPS} at most](contact_sheet.png)\n\n"
GAP_PIXELS = 2

_KEYS = ("gas", "brake", "left", "right")

_CARD = """# Frames

Grey frames of {height} x {width} pixels, one every {decision_ms} ms, of races on {num_maps}, with the 184 floats, the
action and the time of each.{rendered} The first map is that of the main track, on which agents are trained.

| map | frames | races | {split_names} |
|---|---|---|{split_rules}
{maps}

{picture}| split | races | frames |
|---|---|---|
{splits}

Shares of the actions in the training frames, by the time for which they were held:

| action | keys | share |
|---|---|---|
{shares}

The split is by race, of every map by itself: a single race is trained on, a second one validates, a third one tests.
Validation chooses an epoch, test is only measured on. Files and fields are described in
`rulka/datasets/formats/frames.py`; read with `FrameDataset`.
Whoever publishes these frames needs the consent of those whose recordings they were made from.
"""

_RENDERED: dict[Backend, str] = {
    "simulator": " Rendered by the embedded simulator's camera along the recorded poses.",
    "game": " Rendered by the game while the races were replayed in it.",
}


def write_card(folder: Path, index: FrameIndex, backend: Backend) -> None:
    """Writes `README.md` and `contact_sheet.png` into a complete frame dataset that a backend rendered."""
    (folder / "README.md").write_text(card(index, backend), encoding="utf-8")
    train = FrameDataset(folder, "train")
    sheet = contact_sheet(train.images[examples(train)][:, 0], SHEET_COLUMNS)
    imsave(folder / "contact_sheet.png", sheet, cmap="gray", vmin=0, vmax=255)


def examples(train: FrameDataset) -> NDArray[np.int64]:
    """Returns the frame numbers of the contact sheet: whole rows per map, spread evenly over its frames."""
    shown = {race.map_uid for race in train.races}
    maps = [uid for uid in maps_of(train.index) if uid in shown][:MOST_MAPS]
    num_shown = SHEET_COLUMNS * max(1, SHEET_ROWS // len(maps))
    chosen = []
    for uid in maps:
        numbers = frames_of([race for race in train.races if race.map_uid == uid])
        chosen.append(numbers[np.linspace(0, len(numbers) - 1, num_shown).astype(np.int64)])
    return np.concatenate(chosen)


def maps_of(index: FrameIndex) -> list[str]:
    """Returns the UIDs of all maps with frames: the main track, then by descending number of frames."""
    frames: Counter[str] = Counter()
    for race in index.races:
        frames[race.map_uid] += race.num_frames
    return sorted(frames, key=lambda uid: (uid != index.main_track, -frames[uid], uid))


def card(index: FrameIndex, backend: Backend | None = None) -> str:
    """Returns the dataset card as Markdown, without player names.

    Args:
        index: index of the frames.
        backend: renderer of the frames; None if unknown, since the index does not record it.
    """
    statistics = index.statistics
    splits = [f"| {s} | {statistics['num_races'][s]} | {n} |" for s, n in statistics["num_frames"].items()]
    maps = []
    for uid in maps_of(index):
        races = [race for race in index.races if race.map_uid == uid]
        counts = [sum(race.split == split for race in races) for split in index.shards]
        maps.append(_row(f"`{uid}`", sum(race.num_frames for race in races), len(races), *counts))
    shares = []
    for action, (keys, share) in enumerate(zip(index.actions["controls"], statistics["action_share"], strict=True)):
        names = " ".join(name for name, pressed in zip(_KEYS, keys, strict=True) if pressed)
        shares.append(f"| {action} | {names or 'none'} | {100 * share:.1f} % |")
    return _CARD.format(
        height=index.observation.height,
        width=index.observation.width,
        rendered=_RENDERED[backend] if backend else "",
        decision_ms=10 * index.actions["ticks_per_action"],
        num_maps="one map" if len(maps) == 1 else f"{len(maps)} maps",
        picture=PICTURE,
        split_names=" | ".join(f"of them {split}" for split in index.shards),
        split_rules="---|" * len(index.shards),
        maps="\n".join(maps),
        splits="\n".join(splits),
        shares="\n".join(shares),
    )


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def contact_sheet(images: NDArray[np.uint8], num_columns: int) -> NDArray[np.uint8]:
    """Lays images [N, H, W] out in rows of `num_columns`, with white gaps between them."""
    num_images, height, width = images.shape
    num_rows = math.ceil(num_images / num_columns)
    row_pixels, column_pixels = height + GAP_PIXELS, width + GAP_PIXELS
    sheet = np.full((num_rows * row_pixels + GAP_PIXELS, num_columns * column_pixels + GAP_PIXELS), 255, np.uint8)
    for at, image in enumerate(images):
        top, left = GAP_PIXELS + at // num_columns * row_pixels, GAP_PIXELS + at % num_columns * column_pixels
        sheet[top : top + height, left : left + width] = image
    return sheet
