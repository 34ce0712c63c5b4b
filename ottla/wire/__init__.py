"""Bytes to messages and back. Nothing in here waits, opens, connects or asks for the time."""
