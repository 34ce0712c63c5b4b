"""Options of the data source: those of Spark's Kafka connector, and a few of our own.

Spark hands option names over in lower case. Unknown and contradictory options are refused by
name; options of the connector's Java client are known and without effect (`IDLE`, `ignored_options`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlparse

from ottla.client.values import TopicPartition
from ottla.config.named_options import Options, did_you_mean
from ottla.spark import ignored_options

V = TypeVar("V")
log = logging.getLogger(__name__)

EARLIEST: Final = -2
LATEST: Final = -1
"""What offsets in JSON may be beside numbers."""

KAFKA: Final = "kafka."
BOOTSTRAP: Final = "kafka.bootstrap.servers"

PREFETCH_RECORDS: Final = 1000
TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

SUBSCRIBE: Final = ("assign", "subscribe", "subscribePattern")
STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""Each in the order in which the connector looks at them."""
TRIGGER: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")
READ: Final = (
    *SUBSCRIBE, *STARTING, *ENDING, *TRIGGER, "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions",
    "maxRecordsPerPartition", "prefetchMaxRecords", "includeHeaders", "columns", "kafkaConsumer.pollTimeoutMs",
)  # fmt: skip
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
WRITE: Final = ("topic", "txnAppId", "txnVersion", "txnMissingMarker", "guarantee")
PROMISES: Final = ("at_least_once", "exactly_once")
IDLE: Final = (
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "kafka.group.id", "checkpointLocation",
    "path", "queryName",
)  # fmt: skip
"""Retries are the client's own affair, reading takes no group, and some options are Spark's."""

FIXED: Final = {
    "kafka.auto.offset.reset": "startingOffsets says where to begin",
    "kafka.enable.auto.commit": "the checkpoint holds the position; groupId mirrors it into a group",
    **{KAFKA + name: why for name, why in ignored_options.SERIALIZERS.items()},
    "kafka.interceptor.classes": "there are no interceptors",
    "kafka.enable.idempotence": "the sink is always idempotent",
    "kafka.transactional.id": "txnAppId names a writer",
    "kafka.partitioner.class": "keys are hashed as the Java client does; a column partition says otherwise",
}


SECURED: Final = ("kafka.sasl.", "kafka.ssl.")
SPARKS: Final = (
    "inferSchema", "mergeSchema", "multiLine", "dateFormat", "timestampFormat", "maxFilesPerTrigger", "batchSize",
    "maxBytesPerTrigger", "rowsPerSecond", "numPartitions", "partitionColumn", "readChangeFeed", "ignoreDeletes",
)  # fmt: skip
"""Options of other sources, as users write them, for a better error message."""


class BadOption(ValueError):
    """An option that is unknown, malformed, or at odds with another."""


Times = int | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading begins or ends: EARLIEST or LATEST or single offsets; or at a time in ms."""

    offsets: Times | None = None
    times: Times | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    kafka: Mapping[str, str]
    """Settings of the client, by Kafka's names."""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: Edge = field(default_factory=Edge)
    ending: Edge = field(default_factory=Edge)
    latest_if_no_time: bool = False
    """What to do where nothing is as young as the starting time: begin at the end, or fail."""
    fail_on_data_loss: bool = True
    offsets_max: int | None = None
    offsets_min: int | None = None
    trigger_delay_s: float = 15 * 60.0
    partitions_min: int | None = None
    partition_records_max: int | None = None
    prefetch_records: int = PREFETCH_RECORDS
    """A batch of a stream with no more offsets is one task, and the planner reads it; 0: never."""
    columns: tuple[str, ...] = ()
    poll_timeout_s: float = 120.0
    group_id: str | None = None
    notes: tuple[str, ...] = ()
    """Options that were given and have no effect, and why."""
    checkpoint: str | None = None
    """Beside which the ids of the topics are kept; Spark does not pass the checkpoint of a query to its sources."""

    @property
    def read_committed(self) -> bool:
        return self.kafka.get("isolation.level") == "read_committed"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    kafka: Mapping[str, str]
    topic: str | None = None
    app_id: str | None = None
    version: int | None = None
    promise: str | None = None
    """One of PROMISES; None: exactly once if the writer has an identity."""
    writes_unmarked: bool = False
    """Write also if it is unknown whether the batch was written before."""
    notes: tuple[str, ...] = ()
    """Options that were given and have no effect, and why."""
    checkpoint: str | None = None
    """Of the streaming query, where it says so itself."""


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    options = _Given(given, READ, ignored_options.READING)
    options.refuse_together(SUBSCRIBE)
    if options.first(SUBSCRIBE) is None:
        raise BadOption(f"one of {', '.join(SUBSCRIBE)} says what to read")
    if streaming:
        options.refuse(ENDING, "a streaming query has no end; trigger(availableNow=True) reads what is there")
    else:
        options.refuse(TRIGGER, "a batch query reads once, without triggers or progress")
    if options.value("maxTriggerDelay") is not None and options.value("minOffsetsPerTrigger") is None:
        raise BadOption("maxTriggerDelay has a meaning only with minOffsetsPerTrigger")
    strategy = options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"))
    prefetched = options.number("prefetchMaxRecords", 0) if options.value("prefetchMaxRecords") else None
    read = ReadOptions(
        kafka=options.kafka(),
        topics=_names(options, "subscribe"),
        pattern=_pattern(options.value("subscribePattern")),
        assigned=_assigned(options),
        starting=_edge(options, STARTING, LATEST if streaming else EARLIEST, forbidden=None if streaming else LATEST),
        ending=_edge(options, ENDING, LATEST, forbidden=EARLIEST),
        latest_if_no_time=strategy == "latest",
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        offsets_max=options.number("maxOffsetsPerTrigger"),
        offsets_min=options.number("minOffsetsPerTrigger"),
        trigger_delay_s=_duration_s(options.value("maxTriggerDelay") or "15m"),
        partitions_min=options.number("minPartitions"),
        partition_records_max=options.number("maxRecordsPerPartition"),
        prefetch_records=PREFETCH_RECORDS if prefetched is None else prefetched,
        columns=_columns(options),
        poll_timeout_s=(options.number("kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
        group_id=options.value("groupId"),
        notes=options.notes,
        checkpoint=options.value("checkpointLocation"),
    )
    for name in (*read.topics, *{tp.topic for tp in read.assigned}):
        check_topic("assign" if read.assigned else "subscribe", name)
    _check_edge(read, read.starting, options.first(STARTING))
    _check_edge(read, read.ending, options.first(ENDING))
    return read


def check_topic(option: str, name: str) -> None:
    if not TOPIC.fullmatch(name) or name in (".", ".."):
        raise BadOption(
            f"{option} names {name!r}, as no topic can be called: names have up to 249 letters, digits, dots, dashes "
            "and underscores"
        )


def _check_edge(read: ReadOptions, edge: Edge, option: str | None) -> None:
    """Where topics are named, they are those that are read; how many partitions there are, only the cluster knows."""
    given = edge.offsets if edge.times is None else edge.times
    if given is None or isinstance(given, int):
        return
    named, wanted = {tp.topic for tp in given}, {*read.topics, *(tp.topic for tp in read.assigned)}
    pattern = read.pattern
    strange = sorted(named - wanted if pattern is None else (each for each in named if not re.fullmatch(pattern, each)))
    if strange:
        raise BadOption(f"{option} names the topic {strange[0]}, which is not read")
    if missing := sorted(wanted - named):
        raise BadOption(f"{option} does not name the topic {missing[0]}, which is read")


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _Given(given, WRITE, ignored_options.WRITING)
    version = options.value("txnVersion")
    app_id = options.value("txnAppId")
    if version is not None and app_id is None:
        raise BadOption("txnVersion counts the writes of a txnAppId, which is missing")
    promise = options.one_of("guarantee", PROMISES)
    missing = options.one_of("txnMissingMarker", ("fail", "write"))
    if promise == "at_least_once":
        options.refuse(("txnAppId", "txnMissingMarker"), "guarantee=at_least_once does without identity")
    kafka = options.kafka()
    notes = options.notes
    topic = options.value("topic")
    if topic is not None:
        check_topic("topic", topic)
    if _is_weak(kafka):
        notes += (f"kafka.acks={kafka['acks']}: a record that was taken may be lost with the broker that took it",)
    return WriteOptions(
        kafka=kafka,
        topic=topic,
        app_id=app_id,
        version=options.number("txnVersion", 0),
        promise=promise,
        writes_unmarked=missing == "write",
        notes=notes,
        checkpoint=options.value("checkpointLocation"),
    )


def check_promise(options: WriteOptions, *, streaming: bool) -> None:
    """BadOption for options that contradict exactly once, if the write promises it."""
    is_exact = options.promise == "exactly_once" or streaming or options.app_id is not None
    if is_exact and options.promise != "at_least_once" and _is_weak(options.kafka):
        raise BadOption(
            f"kafka.acks is {options.kafka['acks']!r}, and exactly once needs all: leave it out, or set guarantee to "
            "at_least_once"
        )


def _is_weak(kafka: Mapping[str, str]) -> bool:
    return kafka.get("acks", "all").strip() in ("0", "1")


def log_notes(notes: Iterable[str]) -> None:
    """Each once in a process: Spark understands the same options again and again."""
    for note in notes:
        if note not in _logged:
            _logged.add(note)
            log.warning("%s", note)


_logged: set[str] = set()


class _Given(Options):
    """Options of reading or of writing, without those that mean nothing here."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str], kind: str) -> None:
        super().__init__(given, BadOption)
        self.given = {}
        self._known = {name.lower(): name for name in (*known, *IDLE)}
        names = {name.lower(): name for name in (*READ, *WRITE, *SPARKS)}  # Spark hands them over in lower case
        self._written = {name.lower(): names.get(name.lower(), name) for name in given}
        notes = []
        for name, value in ((name.lower(), value) for name, value in given.items()):
            why = None if name in self._known else ignored_options.note(name, kind)
            if name in FIXED and ignored_options.is_true(name.removeprefix(KAFKA), value):
                continue
            if name in FIXED or name.startswith(SECURED):
                why = FIXED.get(name, "the client has neither TLS nor SASL, and reaches brokers by PLAINTEXT only")
                raise BadOption(f"{self._written[name]} cannot be set: {why}")
            if why is not None:
                notes.append(f"{self._written[name]} has no effect: {why}")
                continue
            if name not in self._known and not name.startswith(KAFKA):
                raise BadOption(self._unknown(name))
            self.given[name] = value
        self.notes = tuple(notes)
        if not self.given.get(BOOTSTRAP):
            raise BadOption(f"{BOOTSTRAP} is missing; for example localhost:9092")

    def _unknown(self, name: str) -> str:
        other = {each.lower(): each for each in (*READ, *WRITE)}
        if name in other:
            return f"{other[name]} is an option of {'reading' if other[name] in READ else 'writing'}"
        near = did_you_mean(name, [*self._known, BOOTSTRAP], shown=self._known)
        return f"there is no option {self._written[name]!r}{near}"

    def kafka(self) -> dict[str, str]:
        idle = {name.lower() for name in IDLE}
        return {
            name.removeprefix(KAFKA): value
            for name, value in self.given.items()
            if name.startswith(KAFKA) and name not in idle
        }


def _names(options: _Given, name: str) -> tuple[str, ...]:
    names = options.names(name)
    if options.value(name) is not None and not names:
        raise BadOption(f"{name} names no topic")
    return names


def _pattern(value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as problem:
            raise BadOption(f"subscribePattern {value!r}: {problem}") from None
    return value


def _columns(options: _Given) -> tuple[str, ...]:
    headers = options.flag("includeHeaders", False)
    names = _names(options, "columns")
    if any(name not in COLUMNS for name in names) or len(set(names)) < len(names):
        raise BadOption(f"columns are some of {', '.join(COLUMNS)}, once each; not {', '.join(names)}")
    if names and headers and "headers" not in names:
        raise BadOption("columns leaves the headers out, which includeHeaders asks for")
    if names:
        return names
    return COLUMNS if headers else COLUMNS[:-1]


def _json(name: str, value: str, form: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not parsed:
        raise BadOption(f"{name} is {value!r}; it looks like {form}")
    return parsed


def _assigned(options: _Given) -> tuple[TopicPartition, ...]:
    value = options.value("assign")
    if value is None:
        return ()
    form = '{"orders":[0,1]}'
    parsed = _json("assign", value, form)
    if not all(isinstance(numbers, list) and all(type(each) is int for each in numbers) for numbers in parsed.values()):
        raise BadOption(f"assign is {value!r}; it looks like {form}")
    return tuple(TopicPartition(topic, number) for topic, numbers in parsed.items() for number in numbers)


def _by_partition(name: str, value: str, example: int) -> dict[TopicPartition, int]:
    form = f'{{"orders":{{"0":{example},"1":{example}}}}}'
    parsed = _json(name, value, form)
    try:
        return {
            TopicPartition(topic, int(partition)): _number(number)
            for topic, numbers in parsed.items()
            for partition, number in numbers.items()
        }
    except (ValueError, AttributeError):
        raise BadOption(f"{name} is {value!r}; it looks like {form}") from None


def _number(value: object) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _edge(options: _Given, names: tuple[str, str, str], default: int, *, forbidden: int | None) -> Edge:
    chosen = options.first(names)
    if chosen is None:
        return Edge(offsets=default)
    value = options.value(chosen) or ""
    if chosen == names[0]:
        return Edge(times=options.number(chosen, 0))
    if chosen == names[1]:
        return Edge(times=_by_partition(chosen, value, 1_700_000_000_000))
    words = {"earliest": EARLIEST, "latest": LATEST}
    if value.lower() not in words and not value.lstrip().startswith("{"):
        else_ = 'it can be earliest, latest, or offsets: {"orders":{"0":23,"1":23}}'
        raise BadOption(f"{chosen} is {value!r}{did_you_mean(value.lower(), words, else_)}")
    offsets: Times = words[value.lower()] if value.lower() in words else _by_partition(chosen, value, 23)
    wrong = [offsets] if isinstance(offsets, int) else list(offsets.values())
    if any(offset < EARLIEST for offset in wrong):
        raise BadOption(f"{chosen} has an offset below -2, which means earliest")
    if forbidden is not None and forbidden in wrong:
        word = "latest (-1)" if forbidden == LATEST else "earliest (-2)"
        raise BadOption(f"{chosen} of a batch query cannot be {word}: nothing would be read")
    return Edge(offsets=offsets)


_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _duration_s(value: str) -> float:
    """As Spark writes durations: 500ms, 30s, 15m; a bare number is in ms."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value.lower())
    if found is None or (found[2] or "ms") not in _UNITS_S:
        raise BadOption(f"maxTriggerDelay is {value!r}; it looks like 500ms, 30s or 15m")
    return float(found[1]) * _UNITS_S[found[2] or "ms"]


def local_path(address: str) -> Path | None:
    """Of an address on this machine."""
    parts = urlparse(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(address) if not parts.scheme else None
