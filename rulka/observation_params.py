"""Section `observation`: what agents see.

Apart from the layout in `rulka.observation`, whose kernels take a second to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from rulka.section import Section, key

MAX_PIXELS = 1024
MIN_PIXELS = 34
"""Below it nothing is left of an image after `models.encoders.convolutions.ConvEncoder`."""
FramesAs = Literal["channels", "features"]
"""How several frames reach a network: as channels of one image, or one after another, their features side by side."""
Part = Literal[
    "image",
    "clock",
    "previous_actions",
    "is_sliding",
    "has_contact",
    "damper",
    "gearbox_state",
    "gear",
    "rpm",
    "gearbox_counter",
    "material",
    "angular_velocity",
    "velocity",
    "up",
    "waypoints",
    "margin",
    "is_free_wheeling",
]
"""What an observation has: the image, and the parts of the floats by their names in `rulka.observation`."""


class ObservationParams(Section):
    """What the agent sees. Shared by every stage that touches images."""

    height: int = key(64, "image height, pixels", ge=MIN_PIXELS, le=MAX_PIXELS)
    width: int = key(64, "image width, pixels", ge=MIN_PIXELS, le=MAX_PIXELS)
    frames: int = key(1, "frames seen at once: the newest, and older ones a decision apart", ge=1, le=16)
    frames_as: FramesAs = key("channels", "of several: channels of one image, or features side by side")
    withheld: tuple[Part, ...] = key((), "parts of the observation that agents are not shown", strict=False)

    def _impossible(self) -> Iterator[str]:
        repeated = sorted({part for part in self.withheld if self.withheld.count(part) > 1})
        if repeated:
            yield f"withheld names {', '.join(repeated)} twice"
        if len(self.withheld) == len(get_args(Part)):
            yield "withheld leaves nothing to see"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[L, H, W] of what a car sees: L frames, oldest first."""
        return self.frames, self.height, self.width

    @property
    def channels(self) -> int:
        """Frames that an encoder takes at once."""
        return self.frames if self.frames_as == "channels" else 1

    @property
    def shows_image(self) -> bool:
        """Whether agents are shown frames at all."""
        return "image" not in self.withheld
