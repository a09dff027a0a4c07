"""Named difficulties: the features that the generator may put on a track. The pipeline was tuned on "medium"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rulka.machine.errors import UserError
from rulka.tracks.track import DROP, VERGE, WALL

ASPHALT, GRASS, DIRT, TURBO = 16, 2, 6, 7
"""Contact material ids that the generator uses; `rulka.contracts.observation` groups the ids."""

Range = tuple[float, float]
Shape = Literal["bend", "hairpin", "chicane", "sweeper", "jump"]


@dataclass(frozen=True)
class Arc:
    """Ranges from which a circular arc is drawn.

    Attributes:
        radius_m: smallest and largest radius.
        angle_deg: smallest and largest turn.
    """

    radius_m: Range
    angle_deg: Range


@dataclass(frozen=True)
class Difficulty:
    """All properties of a generated track except seed, length, width, slope and gates. The defaults are "medium".

    Attributes:
        name: identifier.
        shapes: drawn without replacement: each comes once, in random order, before any repeats.
        bend, hairpin, sweeper: radius and turn of these shapes.
        chicane: first of its three arcs; the second turns back twice as far, the third is like the first.
        straight_m: smallest and largest length of the straights between shapes.
        turn_back: probability that a shape turns the opposite way to the one before.
        wander_deg: a shape is mirrored if the heading would stray further than this from the general direction and
            mirroring helps; None for no limit.
        sweep_deg: total left turn of the general direction from start to finish.
        clearance_widths: minimum horizontal distance of distant parts of the line, in road widths.
        crossings: smallest and largest number of places where the line crosses itself on a bridge.
        bridge_edge: edge kind on bridges.
        kicker_slope: slope of the ramp of a jump.
        width_change: largest variation of the width, as a share of it.
        max_bank_deg: roll of the tightest bends toward their inside.
        surface: default material id of the road.
        patches: material ids of patches of other surfaces, used in turn; empty for one surface throughout.
        patch_share: share of the road that patches cover.
        turbos_per_km: turbo pads per km, on straights.
        edges: edge kinds of stretches of road, drawn at random.
    """

    name: str = "medium"
    shapes: tuple[Shape, ...] = ("bend", "hairpin", "chicane", "sweeper")
    bend: Arc = Arc((35.0, 60.0), (50.0, 110.0))
    hairpin: Arc = Arc((19.0, 25.0), (130.0, 175.0))
    chicane: Arc = Arc((26.0, 38.0), (32.0, 48.0))
    sweeper: Arc = Arc((80.0, 130.0), (30.0, 60.0))
    straight_m: Range = (15.0, 70.0)
    turn_back: float = 0.7
    wander_deg: float | None = None
    sweep_deg: float = 0.0
    clearance_widths: float = 2.5
    crossings: tuple[int, int] = (0, 0)
    bridge_edge: int = WALL
    kicker_slope: float = 0.16
    width_change: float = 0.0
    max_bank_deg: float = 0.0
    surface: int = ASPHALT
    patches: tuple[int, ...] = ()
    patch_share: float = 0.0
    turbos_per_km: float = 0.0
    edges: tuple[int, ...] = (VERGE,)


MEDIUM = Difficulty()
EASY = Difficulty(
    name="easy",
    shapes=("bend", "sweeper", "sweeper"),
    bend=Arc((50.0, 80.0), (40.0, 90.0)),
    sweeper=Arc((90.0, 150.0), (30.0, 60.0)),
    straight_m=(40.0, 90.0),
    wander_deg=130.0,
)
HARD = Difficulty(
    name="hard",
    shapes=("bend", "hairpin", "chicane", "sweeper", "jump"),
    wander_deg=150.0,
    clearance_widths=2.0,
    width_change=0.2,
    max_bank_deg=12.0,
    patches=(DIRT,),
    patch_share=0.2,
    turbos_per_km=1.5,
    edges=(VERGE, VERGE, WALL),
)
EXPERT = replace(
    HARD,
    name="expert",
    shapes=("bend", "hairpin", "chicane", "sweeper", "jump", "hairpin", "chicane"),
    hairpin=Arc((15.0, 20.0), (140.0, 180.0)),
    chicane=Arc((20.0, 30.0), (35.0, 55.0)),
    clearance_widths=1.7,
    crossings=(0, 3),
    width_change=0.3,
    max_bank_deg=18.0,
    patches=(DIRT, GRASS),
    patch_share=0.3,
    turbos_per_km=2.0,
    edges=(VERGE, WALL, DROP),
)
DIFFICULTIES = {difficulty.name: difficulty for difficulty in (EASY, MEDIUM, HARD, EXPERT)}
VARIED = "varied"
"""Name of `varied_difficulty`, which differs from seed to seed."""


def difficulty_named(name: str, seed: int) -> Difficulty:
    """Returns a difficulty by its name; a seed decides what "varied" is.

    Raises:
        UserError: if the name is unknown.
    """
    if name == VARIED:
        return varied_difficulty(seed)
    if name not in DIFFICULTIES:
        raise UserError(f"there is no difficulty {name!r}; there are {', '.join([*DIFFICULTIES, VARIED])}")
    return DIFFICULTIES[name]


def varied_difficulty(seed: int) -> Difficulty:
    """Returns a difficulty drawn from a seed, from a gentle road to beyond "expert".

    A set of such tracks varies in everything that a generated road may have, as agents for unseen roads need (Cobbe et
    al. 2020, arXiv:1912.01588).
    """
    rng = np.random.default_rng([seed, 1])  # as a second try of the layout; they need not be independent
    shapes: tuple[Shape, ...] = ("bend", "hairpin", "chicane", "sweeper", "jump")
    some = sorted(rng.choice(len(shapes), rng.integers(2, 5), replace=False))
    surface = DIRT if rng.random() < 0.3 else ASPHALT
    others = [material for material in (ASPHALT, DIRT, GRASS) if material != surface]
    patches = tuple(int(each) for each in rng.permutation(others)[: rng.integers(0, 3)])
    return Difficulty(
        name=VARIED,
        shapes=tuple(shapes[number] for number in some),
        bend=Arc((35.0, 80.0), (40.0, 180.0)),
        hairpin=Arc((15.0, 28.0), (120.0, 180.0)),
        chicane=Arc((22.0, 46.0), (26.0, 50.0)),
        sweeper=Arc((70.0, 150.0), (30.0, 120.0)),
        straight_m=(15.0, 100.0),
        turn_back=rng.uniform(0.3, 1.0),
        wander_deg=150.0,
        clearance_widths=1.8,
        crossings=(0, 3),
        width_change=rng.uniform(0.0, 0.3),
        max_bank_deg=rng.uniform(0.0, 25.0),
        surface=surface,
        patches=patches,
        patch_share=rng.uniform(0.1, 0.45),
        turbos_per_km=rng.uniform(0.0, 2.5),
        edges=((VERGE,), (WALL,), (VERGE, WALL, DROP))[rng.integers(3)],
    )
