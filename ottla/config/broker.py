"""The broker's configuration: every setting as an attribute of its own, and where each came from.

Values come in layers. What an operator changes on the running cluster (for one broker, then for all) beats
what the broker was started with (flag, environment, file), which beats the default. Within a layer a setting
beats those that only stand in for it: log.retention.ms, log.retention.minutes, log.retention.hours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.inert_settings import INERT_DYNAMIC
from ottla.config.listeners import Listener, inter_broker_listener, parse_listeners
from ottla.config.setting import BadConfig, Kind, Setting, Source, Value

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig


ZOOKEEPER_AUTH: Final = re.compile(r"(digest|sasl):[^:]+:.+", re.DOTALL)


class Given(NamedTuple):
    """A value that somebody set."""

    value: Value
    source: Source


class BrokerConfig:
    """Immutable. Attributes are the settings, dots as underscores, resolved through what stands in."""

    __slots__ = (
        *(setting.attribute for setting in BROKER_SETTINGS.values()),
        "_layers",
        "_topic_defaults",
        "endpoints",
        "inert",
        "inter_broker_endpoint",
    )

    endpoints: tuple[Listener, ...]
    """Where clients come in."""
    inter_broker_endpoint: Listener
    """Where brokers come in: one of `endpoints`, or one more that is theirs alone."""
    inert: Mapping[str, str]
    """Settings that were given, and are accepted without effect. Among their values may be secrets."""

    broker_id: int
    broker_rack: str | None
    ottla_store: str
    ottla_metrics_port: int | None
    ottla_metrics_host: str
    ottla_metrics_topics_max: int
    record_validation: str
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    num_partitions: int
    default_replication_factor: int
    max_request_partition_size_limit: int
    listeners: tuple[str, ...]
    advertised_listeners: tuple[str, ...] | None
    listener_security_protocol_map: tuple[str, ...]
    inter_broker_listener_name: str | None
    security_inter_broker_protocol: str
    controller_listener_names: tuple[str, ...]
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_listen_backlog_size: int
    max_connections: int
    max_connections_per_ip: int
    connections_max_idle_ms: int
    queued_max_request_bytes: int
    ottla_queued_max_response_bytes: int
    connection_inflight_requests_max: int
    connection_inflight_bytes_max: int
    request_timeout_ms: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    log_dir: str
    log_dirs: tuple[str, ...]
    log_segment_bytes: int
    log_roll_ms: int
    log_roll_hours: int
    log_roll_jitter_ms: int
    log_roll_jitter_hours: int
    log_retention_ms: int
    log_retention_minutes: int | None
    log_retention_hours: int
    log_retention_bytes: int
    log_retention_check_interval_ms: int
    log_cleanup_policy: tuple[str, ...]
    log_index_size_max_bytes: int
    log_index_interval_bytes: int
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_segment_delete_delay_ms: int
    log_message_timestamp_type: str
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_after_max_ms: int
    message_max_bytes: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    log_cleaner_enable: bool
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_backoff_ms: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_delete_retention_ms: int
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_max_compaction_lag_ms: int
    ottla_scrub_interval_ms: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    replica_lag_time_max_ms: int
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replica_fetch_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_fetch_min_bytes: int
    replica_fetch_backoff_ms: int
    replica_fetch_response_max_bytes: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_selector_class: str | None
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_commit_timeout_ms: int
    offset_metadata_max_bytes: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_coordinator_rebalance_protocols: tuple[str, ...]
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_migration_policy: str
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_min_isr: int
    transaction_state_log_segment_bytes: int
    ottla_transaction_version: int
    transaction_max_timeout_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_partition_verification_enable: bool
    transaction_two_phase_commit_enable: bool
    transactional_id_expiration_ms: int
    producer_id_expiration_ms: int
    partition_producer_ids_max: int
    producer_id_expiration_check_interval_ms: int
    broker_session_timeout_ms: int
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int | None
    zookeeper_auth: str | None
    zookeeper_set_acl: bool

    _layers: tuple[Mapping[str, Given], ...]
    _topic_defaults: TopicConfig | None

    def __init__(
        self,
        given: Mapping[str, Given],
        *,
        inert: Mapping[str, str] | None = None,
        dynamic_cluster: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
    ) -> None:
        put = object.__setattr__
        layers = (
            _dynamic_layer(dynamic_broker, Source.DYNAMIC_BROKER),
            _dynamic_layer(dynamic_cluster, Source.DYNAMIC_CLUSTER),
            dict(given),
        )
        put(self, "_layers", layers)
        put(self, "_topic_defaults", None)
        put(self, "inert", inert or {})
        for setting in BROKER_SETTINGS.values():
            put(self, setting.attribute, _resolve(setting, layers))
        if "ottla.store" not in layers[-1]:  # its default depends on another setting
            put(self, "ottla_store", f"embedded:{self.data_dir}/store.db")
        self._resolve_listeners()

    def _resolve_listeners(self) -> None:
        endpoints, problems = parse_listeners(
            self.listeners,
            self.advertised_listeners or (),
            self.listener_security_protocol_map,
            self.controller_listener_names,
        )
        inter_broker = None
        if not problems:
            inter_broker, problems = inter_broker_listener(endpoints, self.inter_broker_listener_name)
        problems.extend(_conflicts(self))
        if problems:
            raise BadConfig(problems)
        object.__setattr__(self, "endpoints", endpoints)
        object.__setattr__(self, "inter_broker_endpoint", inter_broker)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set: a configuration does not change, with_dynamic makes another")

    @property
    def data_dir(self) -> str:
        return self.log_dirs[0]

    def get(self, name: str) -> Value:
        """The resolved value of a setting by its Kafka name; KeyError if there is no such setting."""
        value: Value = getattr(self, BROKER_SETTINGS[name].attribute)
        return value

    def started_with(self, name: str) -> Value:
        """What a setting is without anything that was changed while the cluster runs."""
        return _resolve(BROKER_SETTINGS[name], self._layers[-1:])

    def was_started_with(self, name: str) -> bool:
        """Whether a setting was given where the broker was started, and is no default."""
        given = self._layers[-1].get(name)
        return given is not None and given.source is not Source.DEFAULT

    def source(self, name: str) -> Source:
        """Where the resolved value came from."""
        first = next(self.history(name), None)
        return Source.DEFAULT if first is None else first[1].source

    def history(self, name: str) -> Iterator[tuple[str, Given]]:
        """Every value given for a setting or what stands in for it, strongest first, then the defaults."""
        setting = BROKER_SETTINGS.get(name) or INERT_DYNAMIC[name]
        chain = (name, *(synonym for synonym, _ in setting.synonyms))
        for layer in self._layers:
            for each in chain:
                if each in layer:
                    yield each, layer[each]
        for each in chain:
            default = None if each in INERT_DYNAMIC else BROKER_SETTINGS[each].default
            if default is not None:
                yield each, Given(default, Source.DEFAULT)

    def with_dynamic(self, *, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """This configuration with what was changed while running: for all brokers, and for this one."""
        return BrokerConfig(self._layers[-1], inert=self.inert, dynamic_cluster=cluster, dynamic_broker=broker)


def _dynamic_layer(texts: Mapping[str, str] | None, source: Source) -> Mapping[str, Given]:
    """What was stored was checked when it was written; what this release does not know is passed over."""
    layer: dict[str, Given] = {}
    for name, text in (texts or {}).items():
        setting = BROKER_SETTINGS.get(name) or INERT_DYNAMIC.get(name)
        if setting is None:
            continue
        try:
            layer[name] = Given(setting.parse(text), source)
        except ValueError:
            continue
    return layer


def _resolve(setting: Setting, layers: tuple[Mapping[str, Given], ...]) -> Value:
    chain = ((setting.name, 1), *setting.synonyms)
    for layer in layers:
        for name, factor in chain:
            if name in layer:
                return _converted(setting, layer[name].value, factor)
    for name, factor in chain:
        default = BROKER_SETTINGS[name].default
        if default is not None:
            return _converted(setting, default, factor)
    return None


def _converted(setting: Setting, value: Value, factor: int) -> Value:
    """A stand-in's value in the setting's terms: hours in milliseconds, one directory as a list of one."""
    if setting.kind is Kind.LIST and isinstance(value, str):
        return (value,)
    if factor != 1:
        assert isinstance(value, int)
        return value * factor if value >= 0 else -1
    return value


def _conflicts(config: BrokerConfig) -> list[str]:
    """Values that are fine each and wrong together."""
    problems: list[str] = []
    if len(config.log_dirs) != 1 or not config.log_dirs[0]:
        problems.append("log.dirs: must be one directory; Ottla keeps all partitions of a broker in one place")
    if config.log_retention_ms == 0:
        problems.append("log.retention.ms: 0 would delete every record at once; use -1 to keep them, or at least 1")
    if config.zookeeper_auth is not None and not ZOOKEEPER_AUTH.fullmatch(config.zookeeper_auth):
        problems.append("zookeeper.auth: must be digest:USER:PASSWORD or sasl:USER:PASSWORD")
    if config.zookeeper_set_acl and config.zookeeper_auth is None:
        problems.append("zookeeper.set.acl: needs zookeeper.auth, which says to whom the nodes will belong")
    ordered = (
        ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
        ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
        ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    )
    for smaller, larger in ordered:
        low, high = config.get(smaller), config.get(larger)
        assert isinstance(low, int)
        assert isinstance(high, int)
        if low > high:
            problems.append(f"{smaller}: {low} must be at most {larger}, which is {high}")
    return problems
