"""A whole cluster inside one process, on a virtual clock: what the simulator puts in the place of the machine."""
