"""Frames of a simulated race in the form in which the game sends them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rulka.game.frames import bgra_from_grey, bgra_from_rgb
from rulka.game.protocol import MessageId
from rulka.params import SimulatorParams
from rulka.simulator.camera import camera_array
from rulka.simulator.render import POSE_SIZE, render_frames, render_rgb
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

FrameKind = Literal["grey", "colour"]


class Painter:
    """Draws what the car of a simulator sees.

    Args:
        track: where it is.
        params: its camera.
        kind: `grey` is the agents' image with three equal colours: a program that turns it to grey has the simulator's
            own observation, to the bit. `colour` shows the car and colours, for people; it takes many times longer.
    """

    def __init__(self, track: Track, params: SimulatorParams, kind: FrameKind) -> None:
        self._scene, self._camera = bake_scene(track), camera_array(params.camera)
        self._kind = kind
        self._grey = np.empty((1, 0, 0), np.uint8)
        self._message = np.empty(0, np.uint32)

    def warm_up(self, simulator: Simulator) -> None:
        """Draws once, so that nothing is left to compile while a program waits; that takes seconds the first time."""
        self.draw(simulator, 8, 8)

    def draw(self, simulator: Simulator, width: int, height: int) -> memoryview:
        """Returns a whole frame message, its id included; the next call overwrites it."""
        if self._grey.shape[1:] != (height, width):
            self._grey = np.empty((1, height, width), np.uint8)
            self._message = np.empty(1 + height * width, "<u4")
            self._message[0] = MessageId.FRAME
        if self._kind == "grey":
            render_frames(simulator.cars, simulator.zone_index, self._scene, self._camera, self._grey)
            bgra_from_grey(self._grey[0], self._message[1:])
        else:
            pose, zone = simulator.cars[0, :POSE_SIZE], int(simulator.zone_index[0])
            bgra_from_rgb(render_rgb(self._scene, pose, zone, width, height), self._message[1:])
        return self._message.data.cast("B")
