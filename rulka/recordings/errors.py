"""Errors of recording files, one class per remedy."""

from __future__ import annotations

from collections.abc import Collection

from rulka.machine.errors import UserError


class RecordingError(UserError):
    """Base class of all errors in a `.Gbx` file."""


class UnreadableFileError(RecordingError):
    """The file cannot be opened, or it is larger than any recording."""


class NotGbxError(RecordingError):
    """The file is not a Gbx file."""


class TruncatedError(RecordingError):
    """The file ends too early."""


class DamagedError(RecordingError):
    """The contents are inconsistent: an impossible size, index or compressed block."""


class UnsupportedGenerationError(RecordingError):
    """The file is of a game generation, or holds a structure, with an unknown layout.

    Attributes:
        map_uid: UID of the recording's map if it could be read, else empty.
    """

    map_uid: str = ""


class WrongKindError(RecordingError):
    """The Gbx file is of another kind than expected, for example a map instead of a recording."""


class NoInputsError(RecordingError):
    """The recording holds no inputs, so nothing can be learned from it."""


class NoSamplesError(RecordingError):
    """The ghost holds no samples of the car's path, or none that can be read."""


class ContradictoryTimeError(RecordingError):
    """The race time is out of range, or contradicts the checkpoints or the samples."""


class MisalignedInputsError(RecordingError):
    """The inputs do not explain the steering in the samples at any possible lag, or not the pedals."""


class UnlimiterMapError(UnsupportedGenerationError):
    """A map made with TMUnlimiter: its real blocks are private, and the unmodified game cannot load it."""


def check_version(what_has: str, version: int, known: Collection[int]) -> None:
    """Raises UnsupportedGenerationError if something has another version than those whose layout is known."""
    if version not in known:
        raise UnsupportedGenerationError(f"{what_has} version {version}; known are {', '.join(map(str, known))}")


def check_count(what: str, count: int, most: int) -> None:
    """Raises DamagedError if a file states more of something than any real one has."""
    if count > most:
        raise DamagedError(f"{count} {what} are stated, {most} is the most")
