"""Data classes of parsed recordings, ghosts and maps."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame

NUM_WHEELS = 4
LATER_GAMES = ("ManiaPlanet", "TrackmaniaTurbo")
"""Beginnings of the program versions of games after Forever whose cars have the same names."""


class InputEvent(NamedTuple):
    """One change of one control.

    Attributes:
        time_ms: stamp relative to the start of the race; may be negative. An event stamped s is first visible in
            the car's state at s + 10.
        name: control, as the game names it: `Accelerate`, `Brake`, `SteerLeft`, `SteerRight` (0 = released),
            `Steer`, `Gas` (analog), `Respawn`, `Horn`, and the markers `_FakeIsRaceRunning`, `_FakeFinishLine`.
            In games that store steering per tick: `SteerByte` (-127 to 127, positive right).
        value: raw value. Analog values hold a negated signed number in their low 24 bits, 65536 = full lock.
    """

    time_ms: int
    name: str
    value: int


new_event = partial(tuple.__new__, InputEvent)
"""Builds an event from a tuple without a Python call, which would take most of the time of reading it."""


@dataclass(frozen=True)
class VehicleState:
    """Vehicle state of the samples, motion excluded. Wheels are front left, front right, rear right, rear left.

    Attributes:
        forward_speed_mps: [S] float32 speed along the car's own forward axis, m/s.
        rpm: [S] float32 engine revolutions per minute.
        steer: [S] float32 in [-1, 1], positive right.
        gas: [S] float32 in [0, 1].
        brake: [S] float32 in [0, 1].
        has_contact: [S, 4] bool, whether the wheel touches the ground.
        is_sliding: [S, 4] bool, whether the wheel slides.
        material: [S, 4] uint8 id of the material under the wheel.
        damper_m: [S, 4] float32 length of the damper, metres.
        side_speed_mps: [S] float32 speed along the car's own left axis, m/s; NaN if not stored.
        turbo: [S] float32 elapsed fraction of the turbo boost, 0 without one; NaN if not stored. On the pad it is
            t / (t + 0.25 s), with t the time since the car entered it.
    """

    forward_speed_mps: NDArray[np.float32]
    rpm: NDArray[np.float32]
    steer: NDArray[np.float32]
    gas: NDArray[np.float32]
    brake: NDArray[np.float32]
    has_contact: NDArray[np.bool_]
    is_sliding: NDArray[np.bool_]
    material: NDArray[np.uint8]
    damper_m: NDArray[np.float32]
    side_speed_mps: NDArray[np.float32]
    turbo: NDArray[np.float32]


@dataclass(frozen=True)
class Samples:
    """The trajectory of the car, sampled at a regular period.

    Attributes:
        version: layout version: 7 to 16 in games up to 2017, the entity record's version in the 2020 game.
        size_bytes: stored size of one sample.
        period_ms: time between samples.
        time_ms: [S] int64 race time of each sample.
        position: [S, 3] float32 world metres, y up.
        quaternion: [S, 4] float32 w, x, y, z; rotates car axes (left, up, forward) into world axes.
        velocity: [S, 3] float32 world, m/s.
        angular_velocity: [S, 3] float32 world, rad/s; zeros where not stored.
        vehicle: state of the car; None if the layout of that part is unknown.
    """

    version: int
    size_bytes: int
    period_ms: int
    time_ms: NDArray[np.int64]
    position: NDArray[np.float32]
    quaternion: NDArray[np.float32]
    velocity: NDArray[np.float32]
    angular_velocity: NDArray[np.float32]
    vehicle: VehicleState | None

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self.time_ms)

    @property
    def table(self) -> DataFrame:
        """One row per sample: time, position, velocity and the scalar fields of the vehicle state."""
        from pandas import DataFrame

        place = dict(zip(("x_m", "y_m", "z_m"), self.position.T, strict=True))
        velocity = dict(zip(("vx_mps", "vy_mps", "vz_mps"), self.velocity.T, strict=True))
        state = {} if self.vehicle is None else vars(self.vehicle)
        numbers = {name: values for name, values in state.items() if values.ndim == 1}
        return DataFrame({"time_ms": self.time_ms} | place | velocity | numbers)


@dataclass
class Ghost:
    """One driven attempt.

    Attributes:
        login: account of the driver, empty if not stored.
        nickname: display name with its colour codes.
        vehicle: name of the car, for example `StadiumCar`.
        validated_map_uid: map the run was validated on; empty in most games before 2011.
        race_time_ms: None when the race was not finished or no time is stored; Turbo's is that of the header.
        respawns: None when not stored.
        stunts: stunt score, None when not stored.
        checkpoint_times_ms: time at each checkpoint, the finish last; None for one not reached.
        events: inputs in stored order, without the constant offset of tool-made recordings. Includes inputs that
            games before United store outside the ghost.
        num_inputs: number of stored inputs; differs from the number of events if one input holds several.
        game_version: version of the program that recorded the run, empty if not stored.
        is_from_clip: True if the ghost comes from a MediaTracker clip, not from the recorded run.
        samples: None if none are stored or they cannot be read; `notes` mentions unreadable ones.
        notes: one line for each part that could not be read or was taken from elsewhere.
    """

    login: str = ""
    nickname: str = ""
    vehicle: str = ""
    validated_map_uid: str = ""
    race_time_ms: int | None = None
    respawns: int | None = None
    stunts: int | None = None
    checkpoint_times_ms: tuple[int | None, ...] = ()
    events: tuple[InputEvent, ...] = ()
    num_inputs: int = 0
    game_version: str = ""
    is_from_clip: bool = False
    samples: Samples | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> DataFrame:
        """One row per event: `time_ms`, `name` and `value`; see `InputEvent`."""
        from pandas import DataFrame

        return DataFrame(self.events, columns=list(InputEvent._fields))

    @property
    def car(self) -> str:
        """Name of the car; with the game's name for TrackMania 2 and Turbo, whose physics differ."""
        later = next((game for game in LATER_GAMES if self.game_version.startswith(game)), "")
        return f"{self.vehicle} of {later}" if later and self.vehicle else self.vehicle

    @property
    def is_finished(self) -> bool:
        """True if the race was finished."""
        return self.race_time_ms is not None


@dataclass(frozen=True)
class RecordingHeader:
    """The uncompressed header of a file.

    Attributes:
        kind: `recording`, `ghost`, `map` or `unknown`.
        map_uid: UID of the map, empty if not stored.
        environment: name of the environment, or a number if the game stores one.
        map_author: login of the map's author.
        map_name: display name of a map file, empty for recordings.
        race_time_ms: stored time, None if there is none.
        nickname: display name of the driver.
        login: account of the driver.
        respawns: None if not stored.
        stunts: None if not stored.
        medals_ms: bronze, silver, gold and author time of a map file, each None if not stored.
        xml: attributes of the XML header, `element.attribute` to text.
    """

    kind: str
    map_uid: str = ""
    environment: str = ""
    map_author: str = ""
    map_name: str = ""
    race_time_ms: int | None = None
    nickname: str = ""
    login: str = ""
    respawns: int | None = None
    stunts: int | None = None
    medals_ms: tuple[int | None, ...] = (None,) * 4
    xml: dict[str, str] = field(default_factory=dict)


class Block(NamedTuple):
    """One block of a map.

    Attributes:
        name: block model.
        coordinates: x, y, z in blocks.
        quarter_turns: rotation about the vertical, 0 to 3.
        flags: the game's flags.
        position_m: world position of the centre of its floor; for a free block, of its own origin.
        pitch_yaw_roll: rotation of an off-grid (free) block of the 2020 game, radians; None on the grid.
    """

    name: str
    coordinates: tuple[int, int, int]
    quarter_turns: int
    flags: int
    position_m: tuple[float, float, float]
    pitch_yaw_roll: tuple[float, ...] | None = None


@dataclass(frozen=True)
class MapInfo:
    """A map.

    Attributes:
        header: the uncompressed header; its UID, name, author and environment come from the body if stored there, its
            medals only if the header has none, as in embedded maps.
        blocks: the placed blocks.
    """

    header: RecordingHeader
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Recording:
    """A recording file.

    Attributes:
        kind: `recording` (`.Replay.Gbx`) or `ghost` (`.Ghost.Gbx`).
        header: the uncompressed header.
        map_uid: UID of the map, from the header, the embedded map or the ghost; empty if not stored.
        environment: name of the environment, from the header or the embedded map; empty if not stored.
        map_author: likewise.
        ghosts: the attempts, the driver's own first, those in a MediaTracker clip last.
        map_data: the embedded map file, empty for ghost files.
        notes: one line for each part that could not be read.
    """

    kind: str
    header: RecordingHeader
    map_uid: str
    environment: str = ""
    map_author: str = ""
    ghosts: tuple[Ghost, ...] = ()
    map_data: bytes = b""
    notes: tuple[str, ...] = ()
