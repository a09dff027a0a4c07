"""The machine below: devices, processes, ports, disk, terminal, progress, errors."""
