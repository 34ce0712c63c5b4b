"""Codecs of the wire protocol and of record batches. Pure."""
