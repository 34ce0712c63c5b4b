"""The settings of clients, as types: for editors and type checkers. What they mean stands where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class ClientOptions(TypedDict, total=False):
    client_id: str
    security_protocol: str
    socket_connection_setup_timeout_ms: int
    default_api_timeout_ms: int
    bootstrap_timeout_ms: int | None
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    allow_auto_create_topics: bool


class ProducerOptions(ClientOptions, total=False):
    acks: Literal[0, 1, -1, "all"]
    enable_idempotence: bool
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int | None
    delivery_timeout_ms: int
    retries: int
    transactional_id: str | None
    transaction_timeout_ms: int
    max_block_ms: int


class ConsumerOptions(ClientOptions, total=False):
    group_id: str | None
    group_instance_id: str | None
    group_protocol: Literal["classic", "consumer"]
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Sequence[str]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: Literal["earliest", "latest", "none"] | int | None
    isolation_level: Literal["read_uncommitted", "read_committed"] | int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    check_crcs: bool
    client_rack: str
    fetch_sessions: bool
    buffered_bytes_max: int
    expanded_bytes_max: int
