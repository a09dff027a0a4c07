"""Implements `rulka watch` for races: shows them together in a video."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rulka.agents.load import SHIPPED_AGENT
from rulka.machine.errors import counted
from rulka.params import Params
from rulka.stages.outputs import new_file
from rulka.video.race_video import write_video
from rulka.video.sources import LEFT_TO_RIGHT, gather, sort_sources


def show_races(
    sources: Sequence[Path],
    params: Params,
    *,
    track: str | None,
    num_races: int,
    out: Path,
    device: str | None = None,
) -> str:
    """Shows races together in a video; without an agent among them, the shipped driver races along.

    Args:
        sources: Gbx files or folders of them, folders of agents or cloned policies, race datasets, files of reference
            laps, or slugs of campaign tracks for their bundled laps.
        params: race settings, and size and frame rate of the video.
        track: uid or file of the track on which agents race, see `rulka.video.sources.gather`.
        num_races: races of each agent and of each dataset.
        out: MP4 file to write.
        device: device of the agents' networks; see `rulka.machine.device.choose_device`.

    Returns:
        One line that describes what was shown.

    Raises:
        UserError: if there is no source, one is of no known kind, or sources are of different tracks.
    """
    found = sort_sources(sources)
    if not found.agents:
        found.agents.append(SHIPPED_AGENT)
    shown = gather(found, params, track, num_races, device)
    title, ghosts = shown.texts.title.replace(LEFT_TO_RIGHT, ""), counted(len(shown.ghosts), "ghost")
    with new_file(out) as beside:
        write_video(beside, shown, params.simulator.camera, params.observation, params.evaluate, sys.stderr)
    return f"{title} on {shown.race.track.name}, {ghosts}: {out.as_posix()}"
