"""Clients of a cluster. So far the administrative one, as much of it as the command line needs."""
