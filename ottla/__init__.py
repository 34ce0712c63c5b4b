"""Ottla: a Kafka-compatible broker. Kept free of imports, so that every entry point starts fast."""

__version__ = "0.1.0"
