"""Local clusters: broker processes on this machine that can be started, killed, paused and watched."""
