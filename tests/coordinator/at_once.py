"""Delayed operations that are answered as soon as they have what they waited for."""

from __future__ import annotations

from ottla.replication.waits import DelayedOperation


class AtOnce:
    def mark(self, operation: DelayedOperation) -> None:
        operation.complete()
