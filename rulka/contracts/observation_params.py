"""Section `observation`.

Separate from the layout in `rulka.contracts.observation`, whose kernels take a second to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import Field

from rulka.contracts.section import MOST, Positive, Section, key

MAX_PIXELS = 1024
MIN_PIXELS = 34
"""Smallest side that leaves at least one pixel after `models.encoders.convolutions.ConvEncoder`."""
FramesAs = Literal["channels", "features"]
"""How a network takes several frames: as channels of one image, or encoded separately and concatenated as features."""
FloatPart = Literal[
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
"""Parts of the float vector, in its order; see `rulka.contracts.observation`."""
Part = Literal["image", FloatPart]
"""Parts of an observation."""
NUM_WHEELS, NUM_MATERIAL_GROUPS = 4, 4
NUM_PREVIOUS_ACTIONS, NUM_WAYPOINTS = 5, 40
PART_SIZES: dict[FloatPart, int] = {
    "clock": 1,
    "previous_actions": NUM_PREVIOUS_ACTIONS * 4,
    "is_sliding": NUM_WHEELS,
    "has_contact": NUM_WHEELS,
    "damper": NUM_WHEELS,
    "gearbox_state": 1,
    "gear": 1,
    "rpm": 1,
    "gearbox_counter": 1,
    "material": NUM_WHEELS * NUM_MATERIAL_GROUPS,
    "angular_velocity": 3,
    "velocity": 3,
    "up": 3,
    "waypoints": NUM_WAYPOINTS * 3,
    "margin": 1,
    "is_free_wheeling": 1,
}
"""Numbers of each part, for decisions of one action."""


class ObservationParams(Section):
    """Observations of agents. Shared by every stage that uses images."""

    height: int = key(64, "Image height in pixels.", ge=MIN_PIXELS, le=MAX_PIXELS)
    width: int = key(64, "Image width in pixels.", ge=MIN_PIXELS, le=MAX_PIXELS)
    frames: int = key(1, "Frames per observation: the newest, and older ones a decision apart.", ge=1, le=16)
    frames_as: FramesAs = key("channels", "Input of several frames: channels of one image, or features side by side.")
    withheld: tuple[Part, ...] = key((), "Parts of the observation hidden from agents.", strict=False)
    waypoints: int = key(NUM_WAYPOINTS, "Waypoints that agents see, 10 m apart, the nearest.", ge=1, le=NUM_WAYPOINTS)
    previous_actions: int = key(
        NUM_PREVIOUS_ACTIONS, "Previous decisions that agents see, the newest.", ge=1, le=NUM_PREVIOUS_ACTIONS
    )

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


Mean = Annotated[float, Field(ge=-MOST, le=MOST)]


class PartNormalisationParams(Section):
    """Normalisation of one part of the floats."""

    part: FloatPart = Field(description="Part of the floats.")
    mean: tuple[Mean, ...] = Field(strict=False, description="Means: one for all numbers of the part, or one for each.")
    std: tuple[Positive, ...] = Field(strict=False, description="Standard deviations, likewise.")

    def _check_combinations(self) -> Iterator[str]:
        size = PART_SIZES[self.part]
        for name in ("mean", "std"):
            if (count := len(getattr(self, name))) not in {1, size}:
                yield f"{name} of {self.part} needs 1 number or {size}, but has {count}: change it"
