"""Simulator: a whole cluster in one process, on a virtual clock, with simulated disk, network and store."""
