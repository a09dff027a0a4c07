"""Export captured frames in the layout of the Hugging Face Hub, and import them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rulka.cli.options import AsJson, report
from rulka.machine.errors import counted
from rulka.stages.folders import FRAMES, RACES
from rulka.stages.outputs import check_folder

if TYPE_CHECKING:
    from rulka.datasets.formats.frames import FrameIndex


def export(
    folder: Path, /, frames: Path = FRAMES, licence: str = "other", players: bool = False, as_json: AsJson = False
) -> None:
    """Write captured frames in the layout of the Hub.

    Example: `rulka frames export hub --licence cc-by-4.0`

    Args:
        folder: to write, empty or missing.
        frames: the frame dataset.
        licence: the Hub's name of the licence, for example cc-by-4.0.
        players: include the players' names from data/races.
        as_json: print one JSON object.
    """
    from rulka.datasets.formats.races import load_races
    from rulka.datasets.hugging_face import export_frames

    check_folder(folder)
    names = {race.race_id: race.player for race in load_races(RACES).races} if players else None
    _report(folder, export_frames(frames, folder, licence=licence, players=names), as_json)


def import_(folder: Path, /, frames: Path = FRAMES, as_json: AsJson = False) -> None:
    """Import a folder in the layout of the Hub as the frame dataset.

    Stages read data/frames. Frames imported there are used until the stage `capture` runs again, which
    `dvc freeze capture` prevents.

    Example: `rulka frames import hub`

    Args:
        folder: in the layout of the Hub.
        frames: the frame dataset, which must not exist yet.
        as_json: print one JSON object.
    """
    from rulka.datasets.hugging_face import import_frames

    check_folder(frames)
    _report(frames, import_frames(folder, frames), as_json)


def _report(written: Path, index: FrameIndex, as_json: bool) -> None:
    """Reports the written frames, and the stage, if any, that writes to the same folder."""
    from rulka.datasets.hugging_face import stage_writing

    stage, num_frames = stage_writing(written), sum(race.num_frames for race in index.races)
    facts = {"folder": written.as_posix(), "num_frames": num_frames, "num_races": len(index.races)}
    text = f"{counted(num_frames, 'frame')} of {counted(len(index.races), 'race')}: {written.as_posix()}"
    if stage:
        text += f"\nstage {stage} writes there too: `dvc freeze {stage}` keeps these, `dvc unfreeze {stage}` ends that"
    report(facts | {"written_by_stage": stage}, lambda: text, as_json)
