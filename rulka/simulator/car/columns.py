"""Where each number lies in the arrays that the physics kernels share.

Right-handed axes: left x up = forward. Angles and rates are positive about the axis: yaw to the left, pitch nose
down, roll to the right. Dimensions: N cars, Z zones, G gates, S state columns.
"""

# Columns of a car's state, which is all that its future depends on. World axes, metres, m/s, rad/s. The position is
# that of the ground under a car at rest; the game's, in the `CAR` row, is higher up in the body.
X, Y, Z, VX, VY, VZ, FX, FY, FZ, UX, UY, UZ = range(12)  # position, velocity, forward axis, up axis
YAW, PITCH, ROLL, STEER = range(12, 16)  # rates of turning about the car's axes; wheels in [-1, 1], positive right
GEAR, SHIFT_S, COAST_S, TURBO = range(16, 20)  # seconds left of a gear change, since the gas was let go; share of turbo
CONTACT, LOAD, PUSH, PULL = range(20, 24)  # flag; accelerations by the road along its normal, forward and left
FRONT_USE, REAR_USE, IS_SLIDING = range(24, 27)  # share of the grip used, above 1 is sliding; the rear's memory of it
ZONE, ALONG, LATERAL, HEIGHT = range(27, 31)  # zone last passed; along, left of and above the road at rest
TIME_MS, SHIFTING, GATE, FINISHED, OFF_TRACK = range(31, 36)  # decisions spent shifting; gates passed; flags
FRICTION = 36  # factor on the grip of this car's tyres
GATE_MS = 37  # first of the gate times, which end a row
NUM_STATE = GATE_MS

# Columns of a zone of the road.
CENTRE, TANGENT, LEFT, NORMAL, HALF_WIDTH, MATERIAL, NUM_ROAD = 0, 3, 6, 9, 12, 13, 14

# Places in the array of constants. A step is a rate times a tick, a follow the share of a gap closed in a tick.
TICK_S, TICKS_PER_S, TICK_MS, SPACING_M, GRAVITY, PER_GRAVITY, REFERENCE_M = range(7)
GRIP, GRIP_PER_SPEED, SLIDE_GRIP, OVERTURN, MAX_SLIP, SLIP_PER_S, SCRUB = range(7, 14)
ENGINE_BRAKE, COAST_DELAY_S, ROLLING, DRAG, BRAKE, BRAKE_WITH_GAS, SHIFT_TIME_S, IDLE_RPM, MAX_RPM = range(14, 23)
STEER_STEP, YAW_FOLLOW, ALIGN_FOLLOW, TURBO_STEP, AIR_SPIN_KEPT = range(23, 28)
SPRING, DAMPING, REST_M, MAX_M, OFF_ROAD_M, FALL_M, CRASH_COSINE = range(28, 35)
GEAR_PUSH, GEAR_UP, GEAR_DOWN, GEAR_RPM, NUM_CONSTANTS = 35, 40, 45, 50, 55
NUM_GEARS = 5

# Rows of the tables: two curves by speed in whole m/s, then properties of surfaces by material id.
TURN_RADIUS, TURBO_PUSH = 0, 1
SURFACE_GRIP, SURFACE_PUSH, SURFACE_TURBO, NUM_TABLES = 2, 3, 4, 5

# What is under a car, found afresh after every move.
G_NORMAL, G_LEFT, G_HALF_WIDTH, G_MATERIAL = 0, 3, 6, 7
# What a car does on the ground: its axes along the road, and its speeds along them.
FORWARD, SIDE, AHEAD, ASIDE, AWAY, NUM_SCRATCH = 0, 3, 6, 7, 8, 9

# Columns of a `CAR` row; a test holds them to `rulka.observation.CAR`.
R_POSITION, R_ROTATION, R_VELOCITY, R_SPIN, R_SLIDING, R_CONTACT, R_DAMPER, R_MATERIAL = 0, 3, 12, 15, 18, 22, 26, 30
R_GEARBOX, R_GEAR, R_RPM, R_COUNTER, R_FREE_WHEELING = 34, 35, 36, 37, 38
