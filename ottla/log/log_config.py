"""Log configuration: the settings of a topic that its logs need. A changed setting replaces it: `log.config = new`."""

from __future__ import annotations

from typing import NamedTuple

_DAY_MS = 86_400_000
_NEVER = 2**63 - 1


class LogConfig(NamedTuple):
    """Apache Kafka's names and defaults; -1 means unlimited for retention."""

    segment_bytes: int = 2**30
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 2**20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _NEVER
    flush_messages: int = _NEVER
    flush_ms: int = _NEVER
    producer_ids_max: int = 10_000
    """How many producers one log remembers; past it the longest silent ones are forgotten."""
