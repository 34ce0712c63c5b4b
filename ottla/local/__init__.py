"""A cluster on this machine: real broker processes that can be started, killed, paused and watched."""
