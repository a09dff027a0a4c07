"""What a recording says of a ghost outside of it: the inputs of the games before United, and Turbo's race time.

It is given to the ghost when a file is read, so that nobody who holds a ghost has to ask where its inputs are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from rulka.recordings.header import xml_number
from rulka.recordings.inputs import FINISH_LINE
from rulka.recordings.model import Ghost, InputEvent, RecordingHeader

FROM_BESIDE = "its inputs are stored beside the ghosts"
FROM_HEADER = "its time is that of the header and of the finish among its inputs"


def complete_ghosts(ghosts: Sequence[Ghost], events: tuple[InputEvent, ...], header: RecordingHeader) -> None:
    """Gives inputs that are stored beside the ghosts to theirs, and a finished first ghost its time.

    Args:
        ghosts: of one recording, those of clips last; changed in place, with a note of what was added.
        events: the inputs beside them; may be empty.
        header: of the recording.
    """
    owner = _owner(ghosts, header)
    if owner is not None and events:
        owner.events, owner.num_inputs = events, len(events)
        owner.notes.append(FROM_BESIDE)
    if ghosts and ghosts[0].race_time_ms is None:
        _take_time(ghosts[0], header)


def _owner(ghosts: Sequence[Ghost], header: RecordingHeader) -> Ghost | None:
    """Returns the ghost that the inputs beside belong to: the one that drove the recording's time, else the first."""
    empty = [ghost for ghost in ghosts if not ghost.events and not ghost.is_from_clip]
    driven = (ghost for ghost in empty if ghost.race_time_ms is not None and ghost.race_time_ms == header.race_time_ms)
    return next(driven, empty[0] if empty else None)


def _take_time(ghost: Ghost, header: RecordingHeader) -> None:
    """Turbo stores no time in the ghost; where the text header and the marker among the inputs agree, it is theirs."""
    finish_ms = next((event.time_ms for event in ghost.events if event.name == FINISH_LINE and event.value), None)
    if finish_ms is None or finish_ms <= 0 or xml_number(header.xml, "times.best") != finish_ms:
        return
    ghost.race_time_ms = finish_ms
    ghost.checkpoint_times_ms = ghost.checkpoint_times_ms or (finish_ms,)
    ghost.notes.append(FROM_HEADER)
