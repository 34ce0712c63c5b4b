"""Validation of a batch before it is appended, and the log configuration of a topic. Records are decompressed only
where a check needs them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.config.topic_config import TopicConfig
from ottla.errors import ErrorCode, Refused
from ottla.log.log_config import LogConfig
from ottla.wire import batch, records

RECORDS_MAX = 200_000
"""Limit of the records in one batch that are checked one by one: the event loop waits meanwhile."""
RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""Limit of the size of one batch when it is decompressed to be checked."""


@dataclass(frozen=True, slots=True)
class AppendPolicy:
    bytes_max: int = 1_048_588
    in_sync_min: int = 1
    log_append_time: bool = False
    timestamp_before_ms_max: int = 2**63 - 1
    timestamp_after_ms_max: int = 3_600_000
    keys_required: bool = False
    validate_records: bool = False
    codec: str | None = None
    """The compression codec of the topic; None: that of the producer (`compression.type=producer`)."""
    synced: bool = False
    """Whether a record counts only when it is flushed (`flush.messages=1`)."""
    leader_throttled: bool = False
    """Whether, while this broker leads, replicas that are not in sync get no more than their share of its bandwidth."""
    follower_throttled: bool = False
    opens_batches: bool = field(init=False)
    """Whether each record must be checked. It is needed for every batch, so it is computed once."""

    def __post_init__(self) -> None:
        opens = self.keys_required or self.validate_records or self.codec is not None
        object.__setattr__(self, "opens_batches", opens)

    def opened(self, view: memoryview, header: batch.BatchHeader) -> memoryview:
        """Decompress and check each record; returns the batch in the codec of the topic."""
        if header.record_count > RECORDS_MAX:
            raise Refused(
                ErrorCode.message_too_large,
                f"the batch has {header.record_count} records; where each is looked at, {RECORDS_MAX} are the most",
            )
        if self.validate_records:
            records.validate(view, keys_required=self.keys_required, bytes_max=RECORDS_BYTES_MAX)
        elif self.keys_required:
            records.check_keys(view, bytes_max=RECORDS_BYTES_MAX)
        if self.codec is not None and self.codec != batch.CODECS[header.codec]:
            return memoryview(bytearray(records.recompress(view, self.codec, bytes_max=RECORDS_BYTES_MAX)))
        return view

    def check_timestamps(self, header: batch.BatchHeader, now_ms: int) -> None:
        if header.attributes & batch.LOG_APPEND_TIME:
            raise Refused(ErrorCode.invalid_timestamp, "a producer may not claim the time of append")
        if header.max_timestamp - now_ms > self.timestamp_after_ms_max:
            raise Refused(
                ErrorCode.invalid_timestamp,
                f"timestamp {header.max_timestamp} is too far in the future (message.timestamp.after.max.ms)",
            )
        if header.base_timestamp >= 0 and now_ms - header.base_timestamp > self.timestamp_before_ms_max:
            raise Refused(
                ErrorCode.invalid_timestamp,
                f"timestamp {header.base_timestamp} is too old (message.timestamp.before.max.ms)",
            )


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
