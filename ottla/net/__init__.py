"""Connections: bytes in, replies out, in order and within limits. Knows frames, not messages."""
