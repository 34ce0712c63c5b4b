"""What the settings of a topic mean for the log of a replica, and for what is appended to it."""

from __future__ import annotations

from ottla.config.topic_config import TopicConfig
from ottla.log.log_config import LogConfig
from ottla.replication.admission import AppendPolicy


def log_config(config: TopicConfig, producer_ids_max: int) -> LogConfig:
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        delete_retention_ms=config.delete_retention_ms,
        file_delete_delay_ms=config.file_delete_delay_ms,
        cleanup_delete=config.delete,
        cleanup_compact=config.compact,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
        producer_ids_max=producer_ids_max,
    )


def append_policy(config: TopicConfig, index: int, broker_id: int) -> AppendPolicy:
    throttled = ("*", f"{index}:{broker_id}")
    codecs = {"producer": None, "uncompressed": "none"}
    return AppendPolicy(
        bytes_max=config.max_message_bytes,
        in_sync_min=config.min_insync_replicas,
        log_append_time=config.message_timestamp_type == "LogAppendTime",
        timestamp_before_ms_max=config.message_timestamp_before_max_ms,
        timestamp_after_ms_max=config.message_timestamp_after_max_ms,
        keys_required=config.compact,
        validate_records=config.record_validation == "full",
        codec=codecs.get(config.compression_type, config.compression_type),
        synced=config.flush_messages == 1,
        leader_throttled=any(each in throttled for each in config.leader_replication_throttled_replicas),
        follower_throttled=any(each in throttled for each in config.follower_replication_throttled_replicas),
    )
