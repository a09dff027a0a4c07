"""The renderer's kernels: painter's algorithm, far to near. Entry: `rulka.simulator.render`."""
