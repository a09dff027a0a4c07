"""Car physics on a ribbon of road: one kernel call moves a batch of cars through one decision.

A rigid car rides on springs over the surface spanned by the centreline, its width and its bank. An engine with five
gears pushes it; air, rolling wheels, the brake and, off the gas, the engine slow it. Steering turns it at a rate that
depends on speed. Its tyres share one grip between braking and cornering; beyond it they slide, and hold less until they
have caught the car again. Where the road falls away the springs unload: first the grip goes, then the contact, and in
the air there is no steering, engine or brake. Beyond the edge of the road lies grass.

The model follows the game's StadiumCar in kind; its constants are parameters and reach the kernels as an array, see
`rulka.simulator.constants`. Kernels take a car as one row of numbers, see `columns`.
"""
