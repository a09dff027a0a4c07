"""What agents see, and how long they act: sections `observation` and `actions`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rulka.params.base import Section

MIN_PIXELS, MAX_PIXELS = 34, 1024
"""Below 34 rows or columns nothing is left of an image after the four convolutions of `models.encoders.conv`."""


class ObservationParams(Section):
    """What the agent sees. Shared by every stage that touches images."""

    height: int = Field(ge=MIN_PIXELS, le=MAX_PIXELS, description="image height, pixels")
    width: int = Field(ge=MIN_PIXELS, le=MAX_PIXELS, description="image width, pixels")


Ticks = Annotated[int, Field(ge=1, le=100)]
"""10 ms each: a decision lasts a second at most."""


class ActionParams(Section):
    """How long one decision lasts."""

    ticks_per_action: Ticks = Field(description="10 ms ticks for which one action is held; 5 in the game")
