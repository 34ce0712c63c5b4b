"""The broker configuration: every setting as an attribute, and the source of its value.

Values come in layers. A dynamic setting (of this broker, then of all brokers) comes before the static one (flag,
environment, file), which comes before the default. Within a layer a setting comes before its synonyms:
log.retention.ms, log.retention.minutes, log.retention.hours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.config.broker_settings import BROKER_SETTINGS
from ottla.config.inert_settings import INERT_DYNAMIC, UNSUPPORTED, is_inert, is_security, refusal
from ottla.config.listeners import Listener, inter_broker_listener, parse_listeners
from ottla.config.setting import BadConfig, ConfigSource, Dynamic, Setting, SettingType, Value
from ottla.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from ottla.config.topic_config import TopicConfig


ZOOKEEPER_AUTH: Final = re.compile(r"(digest|sasl):[^:]+:.+", re.DOTALL)


class Given(NamedTuple):
    """A value that was set, and its source."""

    value: Value
    source: ConfigSource


class BrokerConfig:
    """Immutable. Attributes are the settings, dots as underscores, resolved through their synonyms."""

    __slots__ = (
        *(setting.attribute for setting in BROKER_SETTINGS.values()),
        "_layers",
        "_topic_defaults",
        "endpoints",
        "inert",
        "inter_broker_endpoint",
    )

    endpoints: tuple[Listener, ...]
    """The listeners for clients."""
    inter_broker_endpoint: Listener
    """The inter-broker listener: one of `endpoints`, or one more for brokers alone."""
    inert: Mapping[str, str]
    """Settings that were given and have no effect. Their values may be secrets."""

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
            _dynamic_layer(dynamic_broker, ConfigSource.DYNAMIC_BROKER),
            _dynamic_layer(dynamic_cluster, ConfigSource.DYNAMIC_CLUSTER),
            dict(given),
        )
        put(self, "_layers", layers)
        put(self, "_topic_defaults", None)
        put(self, "inert", inert or {})
        for setting in BROKER_SETTINGS.values():
            put(self, setting.attribute, resolved(setting, layers))
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
        """The static value of a setting, without dynamic ones."""
        return resolved(BROKER_SETTINGS[name], self._layers[-1:])

    def was_started_with(self, name: str) -> bool:
        """Whether a static value was given."""
        given = self._layers[-1].get(name)
        return given is not None and given.source is not ConfigSource.DEFAULT

    def source(self, name: str) -> ConfigSource:
        """The source of the resolved value."""
        first = next(self.history(name), None)
        return ConfigSource.DEFAULT if first is None else first[1].source

    def history(self, name: str) -> Iterator[tuple[str, Given]]:
        """Every value given for a setting or its synonyms, strongest first, then the defaults."""
        setting = BROKER_SETTINGS.get(name) or INERT_DYNAMIC[name]
        chain = (name, *(synonym for synonym, _ in setting.synonyms))
        for layer in self._layers:
            for each in chain:
                if each in layer:
                    yield each, layer[each]
        for each in chain:
            default = None if each in INERT_DYNAMIC else BROKER_SETTINGS[each].default
            if default is not None:
                yield each, Given(default, ConfigSource.DEFAULT)

    def with_dynamic(self, *, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """This configuration with dynamic settings: of all brokers, and of this one."""
        return BrokerConfig(self._layers[-1], inert=self.inert, dynamic_cluster=cluster, dynamic_broker=broker)


class LiveConfig:
    """The current configuration of a running broker. Only the broker sets `current`, as a whole; services read it
    whenever they need a setting."""

    __slots__ = ("current",)

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config


def _dynamic_layer(texts: Mapping[str, str] | None, source: ConfigSource) -> Mapping[str, Given]:
    """Stored values were checked when they were set; settings that this release does not know are skipped."""
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


def resolved(setting: Setting, layers: tuple[Mapping[str, Given], ...]) -> Value:
    """The value of a setting from these layers, strongest first, or its default."""
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
    """The value of a synonym as that of the setting: hours in milliseconds, one directory as a list."""
    if setting.kind is SettingType.LIST and isinstance(value, str):
        return (value,)
    if factor != 1:
        assert isinstance(value, int)
        return value * factor if value >= 0 else -1
    return value


def _conflicts(config: BrokerConfig) -> list[str]:
    """Values that are valid alone and contradict each other."""
    problems: list[str] = []
    if len(config.log_dirs) != 1 or not config.log_dirs[0]:
        problems.append("log.dirs: must be one directory; Ottla keeps all partitions of a broker in one place")
    if config.log_retention_ms == 0:
        problems.append("log.retention.ms: 0 would delete every record at once; use -1 to keep them, or at least 1")
    if config.zookeeper_auth is not None and not ZOOKEEPER_AUTH.fullmatch(config.zookeeper_auth):
        problems.append("zookeeper.auth: must be digest:USER:PASSWORD or sasl:USER:PASSWORD")
    if config.zookeeper_set_acl and config.zookeeper_auth is None:
        problems.append("zookeeper.set.acl: needs zookeeper.auth, which names the owner of the nodes")
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


# Dynamic settings.


def validate_broker_overrides(
    overrides: Mapping[str, str | None],
    config: BrokerConfig,
    *,
    whole_cluster: bool,
    beside: Sequence[Mapping[str, str]] = (),
) -> None:
    """Refuse dynamic settings that one broker, or all brokers, cannot have. `config` is that of this broker; `beside`:
    the existing dynamic settings of single brokers if this is for all, of all if this is for one."""
    problems: list[str] = []
    for name, text in overrides.items():
        setting = BROKER_SETTINGS.get(name) or INERT_DYNAMIC.get(name)
        if setting is None:
            problems.append(_why_not(name, text))
        elif setting.dynamic is Dynamic.READ_ONLY:
            problems.append(f"Cannot update {name} dynamically: set it where the broker is started, and restart it")
        elif setting.dynamic is Dynamic.PER_BROKER and whole_cluster:
            problems.append(f"Cannot update {name} for all brokers at once: name a broker")
        elif text is None:
            problems.append(f"Null value not supported for broker configs: {name}")
        elif (invalid := setting.refusal(text)) is not None:
            problems.append(invalid)
    if not problems:
        given = {name: text for name, text in overrides.items() if text is not None}
        if whole_cluster:  # some brokers have no dynamic settings of their own
            problems = _dynamic_conflicts(config, [(given, other) for other in ({}, *beside)])
        else:
            problems = _dynamic_conflicts(config, [(other, given) for other in beside or ({},)])
    if problems:
        raise Refused(ErrorCode.invalid_config, "; ".join(problems))


def _why_not(name: str, text: str | None) -> str:
    """Why a name is no dynamic setting; Kafka may have it all the same."""
    why = refusal(name, text or "")
    if why is not None:
        return f"{name} cannot be used: {why}"
    if is_inert(name) or is_security(name) or name in UNSUPPORTED:
        return f"Cannot update {name} dynamically: set it where the broker is started, and restart it"
    return f"Unknown broker config name: {name}"


def _dynamic_conflicts(
    config: BrokerConfig, layers: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]
) -> list[str]:
    """The contradictions of all layers, each once."""
    problems: dict[str, None] = {}
    for cluster, broker in layers:
        try:
            config.with_dynamic(cluster=cluster, broker=broker)
        except BadConfig as bad:
            problems.update(dict.fromkeys(bad.problems))
    return list(problems)
