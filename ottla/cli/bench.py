"""`ottla bench`: throughput and latency of any Kafka-compatible cluster, measured with one client."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from ottla.blocking.thread import new_loop
from ottla.cli.completion import topic_names
from ottla.cli.failure import Failure, Suggesting
from ottla.cli.output import ProgressBar, answer, human_bytes, json_option, quiet_option
from ottla.cli.quantities import Size
from ottla.cli.target import Target, administer, cluster_options, misused, undelivered, waits_shown
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import BadSetting, ClientError
from ottla.client.producing.producer import Producer
from ottla.client.values import RecordMetadata, TopicPartition

T = TypeVar("T")

SAMPLES_MAX: Final = 100_000
"""Latency is measured for so many records: measuring it for each would slow the producer down."""
PERCENTILES: Final = (50, 95, 99, 99.9)
POLL_MS: Final = 1000
SILENCE_SECONDS: Final = 10.0
"""A consumer stops after so long without a record."""
PACE_SECONDS: Final = 0.01


class Measured(NamedTuple):
    records: int
    bytes: int
    seconds: float
    latencies_ms: Sequence[float] = ()

    def as_json(self) -> dict[str, object]:
        ordered = sorted(self.latencies_ms)
        value: dict[str, object] = {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.records / self.seconds),
            "bytes_per_second": round(self.bytes / self.seconds),
        }
        if ordered:
            value["latency_ms"] = {
                "average": round(sum(ordered) / len(ordered), 3),
                **{f"p{each:g}": round(percentile(ordered, each), 3) for each in PERCENTILES},
                "max": round(ordered[-1], 3),
            }
        return value


def percentile(ordered: Sequence[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _report(measured: Measured, as_json: bool) -> None:
    value = measured.as_json()
    text = (
        f"{measured.records:,} records, {human_bytes(measured.bytes)} in {measured.seconds:.2f} s: "
        f"{value['records_per_second']:,} records/s, {human_bytes(measured.bytes / measured.seconds)}/s"
    )
    if isinstance(latency := value.get("latency_ms"), dict):
        text += "\nlatency " + ", ".join(f"{name} {each:g} ms" for name, each in latency.items())
    answer(as_json, value, text)


def _run(work: Coroutine[Any, Any, T], target: Target, topic: str) -> T:
    """On uvloop where it is installed, as a program that needs speed would."""
    try:
        with waits_shown(), asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(work)
    except ClientError as error:
        raise undelivered([error], target, topic) from None


@click.group("bench", cls=Suggesting)
def command() -> None:
    """Measure throughput and latency of any cluster that speaks Kafka's protocol.

    \b
    Example:
      ottla bench produce perf --records 500000 --size 100
    """


topic_argument = click.argument("topic", shell_complete=topic_names)


def records_option(default: int) -> Callable[[Any], Any]:
    return click.option("-n", "--records", type=click.IntRange(min=1), default=default, show_default=True, metavar="N")


size_option = click.option("-s", "--size", type=Size(), default="100B", show_default=True, help="Of one record.")


@command.command("produce")
@topic_argument
@records_option(100_000)
@size_option
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="N",
    help="Records per second at most.  [default: as many as possible]",
)
@quiet_option
@cluster_options
@json_option
def produce(topic: str, records: int, size: int, rate: float, target: Target, as_json: bool) -> None:
    """Write records as fast as one producer can. -X sets settings of the producer.

    \b
    Example:
      ottla bench produce perf --records 500000 --size 1kB -X acks=1 -X compression.type=lz4 -X enable.idempotence=false
    """
    try:
        producer = Producer(target.bootstrap, config=target.config())
    except BadSetting as bad:
        raise misused(bad) from None
    _report(_run(_produced(producer, topic, records, size, rate), target, topic), as_json)


async def _produced(producer: Producer, topic: str, records: int, size: int, rate: float) -> Measured:
    value = random.Random(0).randbytes(size)  # not compressible
    sampled = max(1, records // SAMPLES_MAX)
    latencies: list[float] = []
    failures: list[BaseException] = []
    clock = time.perf_counter

    def watch(sent: asyncio.Future[RecordMetadata], began: float) -> None:
        def done(future: asyncio.Future[RecordMetadata]) -> None:
            latencies.append((clock() - began) * 1000)
            if (failure := future.exception()) is not None:
                failures.append(failure)

        sent.add_done_callback(done)

    async with producer:
        await producer.partitions_for(topic)
        bar = ProgressBar("writing", records)
        began = clock()
        for number in range(records):
            if rate and number / rate > clock() - began:
                await asyncio.sleep(max(PACE_SECONDS, number / rate - (clock() - began)))
            sent = await producer.send(topic, value)
            if number % sampled == 0 or number == records - 1:
                watch(sent, clock())
                bar.reached(number)
            if failures:
                break
        await producer.flush()
        seconds = clock() - began
        bar.finish()
    if failures:
        raise failures[0]
    return Measured(records, records * size, seconds, latencies)


@command.command("consume")
@topic_argument
@records_option(100_000)
@click.option("--arrow", is_flag=True, help="As Arrow columns, without an object for each record; needs ottla[arrow].")
@quiet_option
@cluster_options
@json_option
def consume(topic: str, records: int, arrow: bool, target: Target, as_json: bool) -> None:
    """Read records from the beginning as fast as one consumer can.

    \b
    Example:
      ottla bench consume perf --records 500000
    """
    try:
        consumer = Consumer(bootstrap_servers=target.bootstrap, config=target.config(auto_offset_reset="earliest"))
    except BadSetting as bad:
        raise misused(bad) from None
    administer(target._replace(settings={}), lambda admin: admin.describe_topics([topic]))  # fails if it does not exist
    measured = _run(_consumed(consumer, topic, records, arrow), target, topic)
    if measured.records < records:
        click.echo(f"the topic has no more than {measured.records:,} records", err=True)
    _report(measured, as_json)


async def _consumed(consumer: Consumer, topic: str, records: int, arrow: bool) -> Measured:
    read = size = 0
    if arrow:
        import ottla.client.consuming.arrow_records  # noqa: F401 (loading it is not what is measured)
    async with consumer:
        partitions = [TopicPartition(topic, number) for number in sorted(await consumer.partitions_for(topic))]
        ends = await consumer.end_offsets(partitions)
        begins = await consumer.beginning_offsets(partitions)
        there = sum(ends[tp] - begins[tp] for tp in partitions)
        if not there:
            raise Failure(f"topic {topic} is empty", hint=f"`ottla bench produce {topic}` fills it.")
        wanted = min(records, there)
        bar = ProgressBar("reading", wanted)
        began = last = time.perf_counter()
        consumer.assign(partitions)
        while read < wanted and time.perf_counter() - last < SILENCE_SECONDS:
            more, more_bytes = await (_columns(consumer) if arrow else _rows(consumer))
            if more:
                read += more
                size += more_bytes
                last = time.perf_counter()
                bar.reached(read)
        bar.finish()
    return Measured(read, size, max(last - began, 1e-9))


async def _rows(consumer: Consumer) -> tuple[int, int]:
    taken = await consumer.getmany(timeout_ms=POLL_MS, max_records=10_000)
    values = [record.value for records in taken.values() for record in records]
    return len(values), sum(len(value) for value in values if value)


async def _columns(consumer: Consumer) -> tuple[int, int]:
    taken = await consumer.getmany_arrow(timeout_ms=POLL_MS)
    batches = [batch for batches in taken.values() for batch in batches]
    return sum(batch.num_rows for batch in batches), sum(batch.column("value").nbytes for batch in batches)


@command.command("latency")
@topic_argument
@records_option(1000)
@size_option
@quiet_option
@cluster_options
@json_option
def latency(topic: str, records: int, size: int, target: Target, as_json: bool) -> None:
    """Measure the latency from producer to consumer, one record at a time.

    \b
    Example:
      ottla bench latency perf --records 1000
    """
    try:
        producer = Producer(target.bootstrap, config=target.config(linger_ms=0))
        consumer = Consumer(bootstrap_servers=target.bootstrap, config=Target(target.bootstrap, {}).config())
    except BadSetting as bad:
        raise misused(bad) from None
    _report(_run(_round_trips(producer, consumer, topic, records, size), target, topic), as_json)


async def _round_trips(producer: Producer, consumer: Consumer, topic: str, records: int, size: int) -> Measured:
    latencies: list[float] = []
    async with producer, consumer:
        tp = TopicPartition(topic, min(await producer.partitions_for(topic)))
        consumer.assign([tp])
        await consumer.seek_to_end(tp)
        bar = ProgressBar("measuring", records)
        began = time.perf_counter()
        for number in range(records):
            value = f"{uuid.uuid4().hex}-{number}".encode().ljust(size, b".")
            sent = time.perf_counter()
            await producer.send(topic, value, partition=tp.partition)
            while (await consumer.getone()).value != value:
                pass  # a record of another producer
            latencies.append((time.perf_counter() - sent) * 1000)
            bar.reached(number)
        seconds = time.perf_counter() - began
        bar.finish()
    return Measured(records, records * size, seconds, latencies)
