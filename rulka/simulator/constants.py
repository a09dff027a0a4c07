"""Inputs of the physics kernels: parameters and a track as plain arrays.

Kernels take every parameter as an argument, so a change needs no recompilation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import CENTRE_OF_MASS_M, DIRT_IDS, GRASS_IDS, TURBO_IDS, ZONE_SPACING_M
from rulka.simulator import car as columns
from rulka.simulator.params import PhysicsParams
from rulka.tracks.progress import zone_frames
from rulka.tracks.track import Track
from rulka.tracks.trigonometry import sin_cos

NUM_SPEEDS = 256
"""Length of a curve, sampled at 0, 1, ... 255 m/s."""
_NEXT, _AFTER = [1, 2, 0], [2, 0, 1]


def constant_array(params: PhysicsParams, tick_s: float, step_m: float = columns.LONGEST_STEP_M) -> NDArray[np.float64]:
    """Returns [NUM_CONSTANTS] the scalar constants in the kernels' layout.

    Args:
        params: physics.
        tick_s: duration of a tick.
        step_m: a tick is split into equal steps in which a car covers less than this.
    """
    c = np.zeros(columns.NUM_CONSTANTS)
    spring = params.gravity_mps2 / params.rest_m
    values = {
        columns.TICK_S: tick_s,
        columns.TICK_MS: 1000.0 * tick_s,
        columns.STEP_M: step_m,
        columns.SPACING_M: ZONE_SPACING_M,
        columns.GRAVITY: params.gravity_mps2,
        columns.PER_GRAVITY: 1.0 / params.gravity_mps2,
        columns.AIR_GRAVITY: params.air_gravity_mps2,
        columns.AIR_DRAG: params.air_drag_per_s,
        columns.CENTRE_UP: CENTRE_OF_MASS_M[1],
        columns.CENTRE_AHEAD: CENTRE_OF_MASS_M[2],
        columns.RIDE_M: params.ride_m,
        columns.STIFFNESS: params.stiffness_per_s,
        columns.EXCESS_GRIP: params.excess_grip,
        columns.LEAST_LOAD: params.least_load,
        columns.AXLE_M: params.axle_m,
        columns.YAW_PER_S: params.yaw_per_s,
        columns.STEER_RADIUS: params.steer_radius_m,
        columns.STEER_RADIUS_PER_SPEED: params.steer_radius_s,
        columns.SCRUB: params.scrub,
        columns.SLIDING_PUSH: params.sliding_push_mps2,
        columns.ENGINE_BRAKE: params.engine_brake_mps2,
        columns.ENGINE_BRAKE_PER_SPEED: params.engine_brake_per_s,
        columns.BRAKE: params.brake_mps2,
        columns.LOCK_SPEED: params.lock_mps,
        columns.LOCKED_BRAKE: params.locked_brake_mps2,
        columns.LOCKED_GRIP: params.locked_grip,
        columns.ROLLING: params.rolling,
        columns.REVERSE_PUSH: params.reverse_push_mps2,
        columns.REVERSE_TOP: params.reverse_top_mps,
        columns.WALL_BOUNCE: params.wall_bounce,
        columns.WALL_RUB: params.wall_rub,
        columns.SHIFT_TIME_S: params.shift_ms / 1000.0,
        columns.SHIFT_S_PER_RPM: 1.0 / params.shift_rpm_per_s,
        columns.IDLE_RPM: params.idle_rpm,
        columns.MAX_RPM: params.max_rpm,
        columns.STEER_STEP: params.steer_per_s * tick_s,
        columns.ALIGN_PER_S: 1.0 / params.align_s,
        columns.TURBO_FACTOR: params.turbo_factor,
        columns.TURBO_LASTS_S: params.turbo_s,
        columns.AIR_SPIN_LOSS: params.air_spin_loss_per_s,
        columns.AIR_ROLL_LOSS: params.air_roll_loss_per_s,
        columns.AIR_COUNTER_LOSS: params.air_counter_loss_per_s,
        columns.SPRING: spring,
        columns.DAMPING: 2.0 * params.damping_ratio * np.sqrt(spring),
        columns.REST_M: params.rest_m,
        columns.MAX_M: params.travel_m,
        columns.SLOPE_LOSS: params.slope_loss,
        columns.OFF_ROAD_M: params.off_road_m,
        columns.FALL_M: params.fall_m,
        columns.CRASH_COSINE: sin_cos(np.radians(params.crash_deg))[1].item(),
    }
    c[list(values)] = list(values.values())
    c[columns.PUSHES : columns.PUSHES + 4] = params.push_mps2
    c[columns.PUSH_EDGES : columns.PUSH_EDGES + 3] = params.push_edge_mps
    c[columns.GEAR_UP : columns.GEAR_UP + columns.NUM_GEARS - 1] = params.gear_up_mps
    c[columns.GEAR_DOWN : columns.GEAR_DOWN + columns.NUM_GEARS - 1] = params.gear_down_mps
    c[columns.GEAR_RPM : columns.GEAR_RPM + columns.NUM_GEARS] = params.gear_rpm_per_mps
    return c


def table_array(params: PhysicsParams) -> NDArray[np.float64]:
    """Returns [NUM_TABLES, 256] curves by speed in m/s, and surface properties by material id."""
    tables = np.zeros((columns.NUM_TABLES, NUM_SPEEDS))
    speed = np.arange(NUM_SPEEDS)
    tables[columns.SIDE_GRIP] = np.interp(speed, *np.array(params.side_grip_mps2).T)
    tables[columns.SLIDE_GRIP] = np.interp(speed, *np.array(params.slide_grip_mps2).T)
    tables[columns.TURN_RATE] = np.interp(speed, *np.array(params.turn_rate_rps).T)
    tables[columns.SURFACE_GRIP : columns.SURFACE_PUSH + 1] = 1.0
    surfaces = {
        columns.SURFACE_GRIP: (params.dirt_grip, params.grass_grip),
        columns.SURFACE_SLIDE: (params.dirt_slide, params.grass_grip),
        columns.SURFACE_PUSH: (params.dirt_push, params.grass_push),
    }
    for row, (dirt, grass) in surfaces.items():
        tables[row, DIRT_IDS], tables[row, GRASS_IDS] = dirt, grass
    tables[columns.SURFACE_TURBO, TURBO_IDS] = 1.0
    return tables


def road_array(track: Track) -> NDArray[np.float64]:
    """Returns [Z, NUM_ROAD] zones with their axes, half width, material and edge, including those past the finish."""
    centre, frames = track.exact_zones, zone_frames(track)
    road = np.zeros((len(centre), columns.NUM_ROAD))
    road[:, columns.CENTRE : columns.CENTRE + 3] = centre
    road[:, columns.TANGENT : columns.TANGENT + 9] = frames
    extra = (0, len(centre) - track.num_zones)
    road[:, columns.HALF_WIDTH] = np.pad(track.width_m / 2.0, extra, mode="edge")
    road[:, columns.MATERIAL] = np.pad(track.material, extra, mode="edge")
    road[:, columns.EDGE] = np.pad(track.edge, extra, mode="edge")
    return road


def place_on_road(
    road: NDArray[np.float64],
    c: NDArray[np.float64],
    gate_m: NDArray[np.float64],
    along_m: NDArray[np.float64],
    lateral_m: NDArray[np.float64],
    heading_rad: NDArray[np.float64],
    speed_mps: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns the states of cars placed on the road with springs at rest and clocks at 0.

    Gates behind a car count as passed, at time 0.

    Args:
        road: [Z, NUM_ROAD].
        c: [NUM_CONSTANTS].
        gate_m: [G].
        along_m: [M] metres from the start; kept within the road.
        lateral_m: [M] metres left of the line.
        heading_rad: [M] heading relative to the road, positive left.
        speed_mps: [M] forward speed, not negative.

    Returns:
        [M, S + G].
    """
    state = np.zeros((len(along_m), columns.NUM_STATE + len(gate_m)))
    # With many cars this runs in almost every step, for one or two of them: hence few and cheap NumPy calls.
    passed = np.maximum(along_m / ZONE_SPACING_M, 0.0)
    zone = np.minimum(passed.astype(np.int64), len(road) - 2)
    share = np.minimum(passed - zone, 1.0)[:, None]
    here = road[zone, : columns.HALF_WIDTH] * (1.0 - share) + road[zone + 1, : columns.HALF_WIDTH] * share
    up = _unit(here[:, columns.NORMAL : columns.NORMAL + 3])
    left = _unit(_cross(up, here[:, columns.TANGENT : columns.TANGENT + 3]))
    ahead = _cross(left, up)
    sine, cosine = sin_cos(heading_rad)
    forward = cosine[:, None] * ahead + sine[:, None] * left
    position = (
        here[:, columns.CENTRE : columns.CENTRE + 3] + lateral_m[:, None] * here[:, columns.LEFT : columns.LEFT + 3]
    )
    position += c[columns.RIDE_M] * up
    state[:, columns.X : columns.X + 3] = position
    state[:, columns.VX : columns.VX + 3] = speed_mps[:, None] * forward
    state[:, columns.FX : columns.FX + 3], state[:, columns.UX : columns.UX + 3] = forward, up
    state[:, columns.CONTACT], state[:, columns.LOAD] = 1.0, c[columns.GRAVITY] * up[:, 1]
    state[:, columns.GEAR] = 1 + (speed_mps[:, None] > c[columns.GEAR_UP : columns.GEAR_UP + 4]).sum(axis=1)
    state[:, columns.ZONE], state[:, columns.ALONG], state[:, columns.LATERAL] = zone, along_m, lateral_m
    state[:, columns.GATE] = (gate_m[None, :-1] <= along_m[:, None]).sum(axis=1)
    return state


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors / np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))


def _cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cross products [M, 3], ten times as fast as `np.cross`."""
    return a[:, _NEXT] * b[:, _AFTER] - a[:, _AFTER] * b[:, _NEXT]
