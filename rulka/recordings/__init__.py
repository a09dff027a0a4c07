"""Reading TrackMania recordings and maps (`.Gbx`). No torch."""

from rulka.recordings.alignment import Lag, device_of, inputs_to_controls, measure_lag, require_inputs
from rulka.recordings.controls import events_to_controls, label_decisions
from rulka.recordings.errors import (
    ContradictoryTimeError,
    DamagedError,
    MisalignedInputsError,
    NoInputsError,
    NoSamplesError,
    NotGbxError,
    RecordingError,
    TruncatedError,
    UnlimiterMapError,
    UnreadableFileError,
    UnsupportedGenerationError,
    WrongKindError,
)
from rulka.recordings.model import Block, Ghost, InputEvent, MapInfo, Recording, RecordingHeader, Samples, VehicleState
from rulka.recordings.reader import parse_map, parse_recording, read_header, read_map, read_recording
from rulka.recordings.summary import inspect_file

__all__ = [
    "Block",
    "ContradictoryTimeError",
    "DamagedError",
    "Ghost",
    "InputEvent",
    "Lag",
    "MapInfo",
    "MisalignedInputsError",
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
    "VehicleState",
    "WrongKindError",
    "device_of",
    "events_to_controls",
    "inputs_to_controls",
    "inspect_file",
    "label_decisions",
    "measure_lag",
    "parse_map",
    "parse_recording",
    "read_header",
    "read_map",
    "read_recording",
    "require_inputs",
]
