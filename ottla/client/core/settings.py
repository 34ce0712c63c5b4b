"""Settings of the clients: Kafka's names, as keywords with `_` or in a dictionary with `.`.

The dictionary is the one that confluent-kafka takes: librdkafka's own names for a setting are understood, too. An
unknown name is refused, with a suggestion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Any, Final, Literal, TypedDict, TypeVar, cast, get_args, get_type_hints

from ottla.client.errors import BadSetting
from ottla.client.values import COMMITTED, EARLIEST, LATEST, UNCOMMITTED
from ottla.config.named_options import did_you_mean

S = TypeVar("S")

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
BOOTSTRAP: Final = "bootstrap_servers"
DEFAULT_PORT: Final = 9092
STRATEGY: Final = "partition_assignment_strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What every kind of client has."""

    client_id: str = "ottla"
    security_protocol: str = "PLAINTEXT"
    socket_connection_setup_timeout_ms: int = 10_000
    """For connecting and ApiVersions together."""
    default_api_timeout_ms: int = 60_000
    bootstrap_timeout_ms: int | None = None
    """How long a start waits for the first broker: `default_api_timeout_ms`, unless given; 0 tries each address once.
    Not one of Kafka's."""

    def __post_init__(self) -> None:
        if self.security_protocol.upper() != "PLAINTEXT":
            raise BadSetting(f"security_protocol is {self.security_protocol!r}; this client speaks PLAINTEXT only")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """How long a producer holds up its user."""

    max_block_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How a consumer takes part in a group."""

    group_id: str | None = None
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    partition_assignment_strategy: tuple[str, ...] = ("range", "cooperative-sticky")
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    max_poll_records: int = 500

    def __post_init__(self) -> None:
        if self.group_protocol not in ("classic", "consumer"):
            raise BadSetting(f"group_protocol is {self.group_protocol!r}; it can be 'classic' or 'consumer'")
        if self.max_poll_records < 1:
            raise BadSetting("max_poll_records is at least 1")


_ALIASES: Final = {
    "metadata_broker_list": BOOTSTRAP,
    "request_required_acks": "acks",
    "queue_buffering_max_ms": "linger_ms",
    "message_timeout_ms": "delivery_timeout_ms",
    "message_max_bytes": "max_request_size",
    "compression_codec": "compression_type",
    "message_send_max_retries": "retries",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "socket_timeout_ms": "request_timeout_ms",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
}
"""librdkafka's names of settings that have another name in Kafka."""


_NUMBERS: Final[Mapping[str, Mapping[str, int | None]]] = {
    "acks": {"all": -1},
    "auto_offset_reset": {
        **dict.fromkeys(("none", "error")),
        **dict.fromkeys(("earliest", "smallest", "beginning"), EARLIEST),
        **dict.fromkeys(("latest", "largest", "end"), LATEST),
    },
    "isolation_level": {"read_uncommitted": UNCOMMITTED, "read_committed": COMMITTED},
}
"""Words for settings that are numbers here."""


def _number(name: str, value: object) -> object:
    return _NUMBERS[name].get(value, value) if name in _NUMBERS and isinstance(value, str) else value


def _strategy(value: object) -> object:
    """Names, one or several; a class of the Java client by the name of its assignor."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Iterable):
        return value
    known = {"rangeassignor": "range", "roundrobinassignor": "roundrobin", "stickyassignor": "sticky"}
    known["cooperativestickyassignor"] = "cooperative-sticky"
    plain = [str(name).strip().rpartition(".")[2] for name in names]
    return tuple(known.get(name.lower(), name) for name in plain)


def parse_bootstrap(text: str | Iterable[str]) -> list[tuple[str, int]]:
    """`host:port,host:port`, or a list of them; the port is optional. ValueError names the invalid part."""
    addresses: list[tuple[str, int]] = []
    joined = text if isinstance(text, str) else ",".join(text)
    for part in filter(None, (part.strip() for part in joined.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]") or (":" in host and not host.startswith("[")):
            host, port = part, str(DEFAULT_PORT)
        if not (port.isascii() and port.isdecimal()) or not 0 < int(port[:6]) <= 65535 or not host.strip("[]"):
            raise ValueError(f"{part!r} is not host:port")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise ValueError("no address is given")
    return addresses


class Settings:
    """What one client was given, to be shared out to its parts. All of it belongs to one of them."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None,
        config: Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
        parts: Iterable[type],
    ) -> None:
        given = {_ALIASES.get(name, name): value for name, value in _plain(config or {}).items()}
        given |= keywords
        if bootstrap_servers is not None:
            given[BOOTSTRAP] = bootstrap_servers
        known = {name for part in parts for name in _types(part)} | {BOOTSTRAP}
        for name in given:
            if name not in known:
                near = did_you_mean(name, sorted(known), shown={each: repr(each) for each in known})
                raise BadSetting(f"there is no setting {name!r}{near}")
        self._given: dict[str, Any] = {
            name: _strategy(value) if name == STRATEGY else _number(name, value) for name, value in given.items()
        }
        try:
            self.bootstrap = parse_bootstrap(self._given.get(BOOTSTRAP, DEFAULT_BOOTSTRAP))
        except ValueError as problem:
            raise BadSetting(f"bootstrap_servers: {problem}; for example localhost:9092") from None

    def part(self, kind: type[S], **defaults: object) -> S:
        """The settings of one part; `defaults` are defaults of this client."""
        types = _types(cast("Any", kind))
        chosen = defaults | {name: value for name, value in self._given.items() if name in types}
        return kind(**{name: _typed(name, value, types[name]) for name, value in chosen.items()})


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "_").replace("-", "_"): value for name, value in config.items()}


@cache
def _types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _typed(name: str, value: Any, kind: Any) -> Any:
    """Text, as in configuration files, is converted to the type of the setting. Only impossible values are refused."""
    allowed = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and type(None) in allowed:
        return None
    plain = next(each for each in allowed if each is not type(None))
    if getattr(plain, "__origin__", plain) is tuple:
        return tuple(value)
    if plain is bool:
        flag = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
        if flag is not None:
            return flag
    elif plain is int and not isinstance(value, bool):
        try:
            if int(value) == float(value):
                return int(value)
        except (TypeError, ValueError):
            pass
    elif plain is str and isinstance(value, str):
        return value
    raise BadSetting(f"{name} cannot be {value!r}: it is {_WORDS.get(name, _KINDS[plain])}")


_KINDS: Final = {bool: "true or false", int: "a whole number", str: "a text"}
_WORDS: Final = {
    "acks": "all, 1 or 0",
    "auto_offset_reset": "earliest, latest or none",
    "isolation_level": "read_uncommitted or read_committed",
}
"""Settings that are numbers here and words in other clients."""


# The same settings as types, for editors and type checkers.


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
