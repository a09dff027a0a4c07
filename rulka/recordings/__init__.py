"""Reading and writing TrackMania recordings and maps (`.Gbx`). No torch."""

from rulka.recordings.controls import events_to_controls, inputs_to_controls, label_shares
from rulka.recordings.errors import (
    DamagedError,
    NoInputsError,
    NoSamplesError,
    NotGbxError,
    RecordingError,
    TruncatedError,
    UnlimiterMapError,
    UnreadableFileError,
    UnsupportedGenerationError,
    UnwritableError,
    WrongKindError,
)
from rulka.recordings.model import Block, Ghost, InputEvent, MapInfo, Recording, RecordingHeader, Samples, VehicleState
from rulka.recordings.reader import parse_map, parse_recording, read_header, read_map, read_recording, require_inputs
from rulka.recordings.summary import inspect_file
from rulka.recordings.writer import encode_recording, write_recording

__all__ = [
    "Block",
    "DamagedError",
    "Ghost",
    "InputEvent",
    "MapInfo",
    "NoInputsError",
    "NoSamplesError",
    "NotGbxError",
    "Recording",
    "RecordingError",
    "RecordingHeader",
    "Samples",
    "TruncatedError",
    "UnlimiterMapError",
    "UnreadableFileError",
    "UnsupportedGenerationError",
    "UnwritableError",
    "VehicleState",
    "WrongKindError",
    "encode_recording",
    "events_to_controls",
    "inputs_to_controls",
    "inspect_file",
    "label_shares",
    "parse_map",
    "parse_recording",
    "read_header",
    "read_map",
    "read_recording",
    "require_inputs",
    "write_recording",
]
