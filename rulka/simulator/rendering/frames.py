"""The kernel of frames: camera, background, everything on the road sorted by distance and drawn far to near.

Road is cut into strips between sections whose spacing grows with distance. Strips, gates and cars are sorted by
distance and drawn as convex polygons. Near ground therefore hides what lies behind a crest, and roll, banking,
crossings and bridges need no special case.

Dimensions: N frames, H x W pixels, M cars.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.compiling import cached_kernel, inlined_kernel
from rulka.simulator.layout import Scene
from rulka.simulator.palette import INK
from rulka.simulator.rendering.kernels import (
    ABOVE,
    AHEAD,
    CENTRE_X,
    CENTRE_Y,
    EYE,
    FOCAL,
    GATE,
    HALF,
    HAZE,
    ONE,
    RIGHT,
    STRIP,
    ZERO,
    Bytes,
    Floats,
    Indices,
    Int,
    Real,
    Scratch,
    Vector,
    cross,
    dot,
)
from rulka.simulator.rendering.objects import collect_objects, draw_car, draw_gate
from rulka.simulator.rendering.road import draw_strip
from rulka.simulator.rendering.sections import collect_road

SKY_ZENITH, SKY_HORIZON = INK["sky_zenith"], INK["sky_horizon"]
GROUND_HORIZON, GROUND_NEAR = INK["ground_horizon"], INK["ground_near"]
HIGHEST = np.float32(0.83)
"""Rise of a ray above the horizon from which on the sky keeps its shade."""
LEVEL = np.float32(0.01)
"""Grey levels that a row may change by to be drawn as one: of a camera without roll, rounding leaves that much."""
LOWEST = np.float32(0.4)
"""Fall from which on far ground keeps its shade."""
GROUND_SLOPE = ONE / LOWEST
LOWEST_EYE_M = np.float32(0.5)
"""The eye is at least so far above the ground that it stands over."""
EYE_SECTIONS = 128
"""The ground under the eye is sought this many sections (64 m) along the road from the car: far more than the camera's
arm is long."""


@inlined_kernel
def is_finite(poses: Floats, n: Int) -> bool:
    """Whether all of a pose is numbers."""
    total = ZERO
    for k in range(12):
        total += poses[n, k] * ZERO
    return total == ZERO


@inlined_kernel
def place_camera(poses: Floats, n: Int, camera: Floats, height: Int, width: Int, lens: Floats) -> None:
    """Fills the lens from a car's pose: behind and above it, pitched down, rolled with it."""
    back, lift, sine, cosine, focal = camera[0], camera[1], camera[2], camera[3], camera[4]
    for axis in range(3):
        left, up, forward = poses[n, 3 + 3 * axis], poses[n, 4 + 3 * axis], poses[n, 5 + 3 * axis]
        lens[EYE + axis] = poses[n, axis] + up * lift - forward * back
        lens[RIGHT + axis] = -left
        lens[ABOVE + axis] = up * cosine + forward * sine
        lens[AHEAD + axis] = forward * cosine - up * sine
    lens[FOCAL] = focal * np.float32(width) * HALF
    lens[CENTRE_X] = np.float32(width) * HALF
    lens[CENTRE_Y] = np.float32(height) * HALF


@inlined_kernel
def lift_eye(scene: Scene, zone: Int, lens: Floats) -> None:
    """Lifts an eye that would look from below the road, or its terrain, to just above it.

    The arm turns with the car. In a jump the nose may point far above the course: the end of the arm is then below the
    road that a recorded flight is the line of, and the picture would show little else than its underside.
    """
    sections = scene.sections
    index = section_at_eye(sections, zone + scene.num_before, lens)
    if index < 0:
        return
    ahead = course_at(sections, index)
    left = sections[index, 3], sections[index, 4], sections[index, 5]
    upright, away = cross(ahead, left), eye_from(sections, index, lens)
    length, aside = np.sqrt(dot(upright, upright)), dot(away, left)
    on_left, on_right = sections[index, 6] + sections[index, 7], sections[index, 6] + sections[index, 8]
    if length == ZERO or aside > on_left or aside < -on_right:
        return
    per_length = ONE / length
    missing = LOWEST_EYE_M - dot(away, upright) * per_length
    if missing > ZERO:
        for axis in range(3):
            lens[EYE + axis] += upright[axis] * per_length * missing


@inlined_kernel
def section_at_eye(sections: Floats, start: Int, lens: Floats) -> Int:
    """The section that the eye has last passed, sought from the car's; -1 where it is not near along the road."""
    last = sections.shape[0] - 2
    index = np.int64(min(max(start, 1), last))
    for _ in range(EYE_SECTIONS):
        if index > 1 and dot(eye_from(sections, index, lens), course_at(sections, index)) < ZERO:
            index -= 1
        elif index < last and dot(eye_from(sections, index + 1, lens), course_at(sections, index + 1)) >= ZERO:
            index += 1
        else:
            return index
    return np.int64(-1)


@inlined_kernel
def course_at(sections: Floats, index: Int) -> Vector:
    """Direction of the road at a section that is not at an end; not of unit length."""
    a, b = sections[index - 1], sections[index + 1]
    return b[0] - a[0], b[1] - a[1], b[2] - a[2]


@inlined_kernel
def eye_from(sections: Floats, index: Int, lens: Floats) -> Vector:
    """The way from the middle of a section to the eye."""
    middle = sections[index]
    return lens[EYE] - middle[0], lens[EYE + 1] - middle[1], lens[EYE + 2] - middle[2]


@inlined_kernel
def draw_background(frame: Bytes, lens: Floats, ink: Floats) -> None:
    """Draws sky and far ground, by the height of each ray above the horizon."""
    focal = lens[FOCAL]
    per_x, per_y = lens[RIGHT + 1] / focal, lens[ABOVE + 1] / focal
    sky, sky_slope = ink[SKY_HORIZON], (ink[SKY_ZENITH] - ink[SKY_HORIZON]) * np.float32(1.2)
    ground_slope = (ink[GROUND_NEAR] - ink[GROUND_HORIZON]) * GROUND_SLOPE
    width = frame.shape[1]
    at_row = lens[AHEAD + 1] + (lens[CENTRE_Y] - HALF) * per_y + (HALF - lens[CENTRE_X]) * per_x
    is_level = abs(per_x) * np.float32(width) * max(abs(sky_slope), abs(ground_slope)) < LEVEL
    for y in range(np.uint32(frame.shape[0])):
        num = np.uint32(1 if is_level else width)
        at_end = at_row + np.float32(width) * per_x
        if min(at_row, at_end) * focal >= HALF:
            for x in range(num):
                rise = at_row + np.float32(np.int32(x)) * per_x
                frame[y, x] = np.uint8(np.int32(sky + sky_slope * min(rise, HIGHEST)))
        elif max(at_row, at_end) * focal <= -HALF:
            for x in range(num):
                rise = at_row + np.float32(np.int32(x)) * per_x
                frame[y, x] = np.uint8(np.int32(far_ground(ink, -rise)))
        else:
            for x in range(num):
                rise = at_row + np.float32(np.int32(x)) * per_x
                above = min(max(rise * focal + HALF, ZERO), ONE)
                high = sky + sky_slope * min(max(rise, ZERO), HIGHEST)
                low = far_ground(ink, max(-rise, ZERO))
                frame[y, x] = np.uint8(np.int32(low + above * (high - low)))
        if is_level:
            shade = frame[y, 0]
            for x in range(np.uint32(1), np.uint32(width)):
                frame[y, x] = shade
        at_row -= per_y


@inlined_kernel
def far_ground(ink: Floats, fall: Real) -> Real:
    """Brightness of ground below which there is nothing, by how far a ray falls over a metre of depth."""
    return ink[GROUND_HORIZON] + (ink[GROUND_NEAR] - ink[GROUND_HORIZON]) * GROUND_SLOPE * min(fall, LOWEST)


@inlined_kernel
def sort_near_to_far(key: Floats, order: Indices, count: Int) -> None:
    """Sorts by rising key, by insertion: runs of road arrive nearly sorted."""
    for i in range(1, count):
        chosen = order[i]
        j = i - 1
        while j >= 0 and key[order[j]] > key[chosen]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = chosen


@inlined_kernel
def draw_items(frame: Bytes, scene: Scene, cars: Floats, num_items: Int, scratch: Scratch) -> None:
    """Draws strips, gates and cars, the farthest first."""
    for k in range(num_items - 1, -1, -1):
        index = scratch.order[k]
        kind = scratch.item[index, 0]
        haze = min(max(scratch.key[index] / np.float32(scene.view_m), ZERO), ONE) * HAZE
        if kind == STRIP:
            draw_strip(frame, scene, scratch, index, haze)
        elif kind == GATE:
            draw_gate(frame, scene, scratch.lens, scratch.item[index, 1], haze)
        else:
            draw_car(frame, scene.ink, scratch.lens, cars, scratch.item[index, 1])


@cached_kernel
def draw_frames(
    poses: Floats,
    zone_index: NDArray[np.int64],
    scene: Scene,
    cameras: Floats,
    cars: Floats,
    scratch: Scratch,
    out: Bytes,
) -> int:
    """Draws every pose; `render.render_frames` checks the arguments.

    Args:
        poses: [N, >= 12] position and rotation of each car.
        zone_index: [N] zone of each car.
        scene: from `bake_scene`.
        cameras: [1 or N, 5] from `camera_array`: one for all, or one for each.
        cars: [M, >= 12] poses of cars to draw; the first is drawn as the own car.
        scratch: from `new_scratch`, of one thread.
        out: [N, H, W], C-contiguous, overwritten.

    Returns:
        The first pose that holds a value that is not finite, where it stops, or -1.
    """
    height, width = out.shape[1], out.shape[2]
    for n in range(poses.shape[0]):
        if not is_finite(poses, n):
            return n
        place_camera(poses, n, cameras[n if cameras.shape[0] > 1 else 0], height, width, scratch.lens)
        lift_eye(scene, zone_index[n], scratch.lens)
        draw_background(out[n], scratch.lens, scene.ink)
        num_items = collect_road(scene, zone_index[n], scratch)
        num_items = collect_objects(scene, cars, num_items, scratch)
        sort_near_to_far(scratch.key, scratch.order, num_items)
        draw_items(out[n], scene, cars, num_items, scratch)
    return -1
