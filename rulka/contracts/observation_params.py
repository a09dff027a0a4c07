"""Section `observation`.

Separate from the layout in `rulka.contracts.observation`, whose kernels take a second to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from rulka.contracts.section import Section, key

MAX_PIXELS = 1024
MIN_PIXELS = 34
"""Smallest side that leaves at least one pixel after `models.encoders.convolutions.ConvEncoder`."""
FramesAs = Literal["channels", "features"]
"""How a network takes several frames: as channels of one image, or encoded separately and concatenated as features."""
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
"""Parts of an observation: the image, and the float parts as named in `rulka.contracts.observation`."""


class ObservationParams(Section):
    """Observations of agents. Shared by every stage that uses images."""

    height: int = key(64, "Image height in pixels.", ge=MIN_PIXELS, le=MAX_PIXELS)
    width: int = key(64, "Image width in pixels.", ge=MIN_PIXELS, le=MAX_PIXELS)
    frames: int = key(1, "Frames per observation: the newest, and older ones a decision apart.", ge=1, le=16)
    frames_as: FramesAs = key("channels", "Input of several frames: channels of one image, or features side by side.")
    withheld: tuple[Part, ...] = key((), "Parts of the observation hidden from agents.", strict=False)

    def _check_combinations(self) -> Iterator[str]:
        repeated = sorted({part for part in self.withheld if self.withheld.count(part) > 1})
        if repeated:
            yield f"withheld needs each part once, but names {', '.join(repeated)} twice: remove one"
        if len(self.withheld) == len(get_args(Part)):
            yield "withheld needs to leave a part to see, but names all: remove one"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[L, H, W] of a car's image: L frames, oldest first."""
        return self.frames, self.height, self.width

    @property
    def channels(self) -> int:
        """Number of input channels of the encoder, one per frame."""
        return self.frames if self.frames_as == "channels" else 1

    @property
    def shows_image(self) -> bool:
        """Whether the observation includes the image."""
        return "image" not in self.withheld
