"""What can be wrong with a recording, one class for each thing a person can do about it."""

from __future__ import annotations

from rulka.errors import UserError


class RecordingError(UserError):
    """Base of everything that can be wrong with a `.Gbx` file."""


class UnreadableFileError(RecordingError):
    """The file cannot be opened, or it is larger than any recording is."""


class NotGbxError(RecordingError):
    """The file is no Gbx file at all."""


class TruncatedError(RecordingError):
    """The file ends before its contents do."""


class DamagedError(RecordingError):
    """The contents contradict themselves: a size, an index or a compressed block that cannot be."""


class UnsupportedGenerationError(RecordingError):
    """The file is of a game generation, or holds a structure, whose layout is not known here.

    Attributes:
        map_uid: the map of the recording where at least that could be read, else empty.
    """

    map_uid: str = ""


class WrongKindError(RecordingError):
    """A Gbx file of another kind than asked for, for example a map where a recording was expected."""


class NoInputsError(RecordingError):
    """The recording holds no inputs, so that nothing can be learned from it."""


class NoSamplesError(RecordingError):
    """The ghost holds no samples of the car's path, or none that can be read."""


class ContradictoryTimeError(RecordingError):
    """The time of the race is not that of its last checkpoint, or not one at which the samples end."""


class MisalignedInputsError(RecordingError):
    """The inputs do not cause the steering that the samples hold, whatever the lag between them."""


class UnlimiterMapError(UnsupportedGenerationError):
    """A map made with TMUnlimiter: its real blocks are private, the plain game cannot load it."""
