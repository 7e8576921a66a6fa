"""This machine: its places, processes, ports, devices, limits."""
