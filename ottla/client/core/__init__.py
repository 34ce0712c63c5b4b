"""Core of all clients: cluster metadata, connections, the driver of their state machines, settings."""
