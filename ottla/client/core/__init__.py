"""What all clients have in common: cluster metadata, connections, the driver of their machines, settings."""
