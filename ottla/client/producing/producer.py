"""Producer: carries out what `sender` decides, and resolves the futures of its user.

    async with Producer("localhost:9092") as producer:
        metadata = await producer.send_and_wait("orders", b"two oranges", key=b"alice")

`send` hands a record over and returns a future; the record leaves with others, when a batch is full or has lingered.
A record that was acknowledged with acks=all (the default) is in the log once, in order, even if a leader dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from ottla.client.core.client import Client
from ottla.client.core.metadata import MetadataSettings
from ottla.client.core.serialization import converter
from ottla.client.core.settings import ClientSettings, ProducerOptions, SendSettings, Settings
from ottla.client.errors import BadSetting, ClientError, TimedOut, error_of
from ottla.client.producing.partitioners import Function, Partitioner, partitioner_of
from ottla.client.producing.prebuilt_batches import BatchContent, Promise, Shipment
from ottla.client.producing.produce_requests import AppendResult, Delivered, ProducerSettings, Undelivered
from ottla.client.producing.sender import Sender
from ottla.client.producing.transaction_calls import TransactionCalls
from ottla.client.producing.transaction_manager import TransactionSettings
from ottla.client.values import Given, GroupMetadata, OpenTransaction, RecordMetadata, TopicPartition, offsets_given
from ottla.errors import ErrorCode
from ottla.wire.batch import NO_TIMESTAMP
from ottla.wire.records import Headers

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.producing.arrow_batches import RowPartitioner
    from ottla.runtime import Runtime

Serializer = Callable[..., bytes | None]
"""Of one argument, or of two: see `serialization`."""
HeadersGiven = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]

UNYIELDED_MAX: Final = 63
"""One less than a power of two: so many records are taken from one sender before others have a turn."""

TIMESTAMP_MIN: Final = NO_TIMESTAMP
TIMESTAMP_MAX: Final = 2**63 - 1

PARTS: Final = (ClientSettings, MetadataSettings, ProducerSettings, SendSettings, TransactionSettings)


class Producer(Client):
    """Writes records. Settings have Kafka's names with `_`; `config` takes them with `.`, as confluent-kafka does."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: str | Function | Partitioner = "sticky",
        runtime: Runtime | None = None,
        **settings: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(Settings(bootstrap_servers, config, settings, PARTS), runtime, auto_create=True)
        self._producer_settings = self._settings.part(ProducerSettings)
        self._max_block_s = self._settings.part(SendSettings).max_block_ms / 1000
        self._key_serializer = None if key_serializer is None else converter(key_serializer, "key")
        self._value_serializer = None if value_serializer is None else converter(value_serializer, "value")
        self._partitioner = partitioner
        if isinstance(partitioner, str):
            partitioner_of(partitioner)  # an unknown name is refused here, not at the start
        self._accumulator: Sender
        self._transactions: TransactionCalls | None = None
        self._deal: RowPartitioner | None = None

    async def start(self) -> None:
        driver = await self._open()
        self._accumulator = Sender(driver.metadata, self._chosen_partitioner(), self._producer_settings)
        self._runtime = driver.runtime
        self._unyielded = 0
        self._new_future = asyncio.get_running_loop().create_future
        if self._producer_settings.transactional_id is not None:
            self._transactions = TransactionCalls(
                driver, self._accumulator, self._settings.part(TransactionSettings), timeout_s=self._max_block_s
            )
        driver.attach(self._accumulator, self._resolve)
        driver.explain(self._accumulator.obstacles)
        try:
            await driver.start(timeout_s=self._bootstrap_timeout_s)
            if self._transactions is not None:
                await self._transactions.init()
        except BaseException:
            await self._not_started()
            raise

    async def stop(self) -> None:
        """Deliver the buffered records as far as possible, and close. An open transaction is aborted."""
        if self._driver_or_none is None or self._stopped:
            return
        self._stopped = True
        try:
            if self._transactions is not None:
                await self._transactions.close()
            await self._flushed(self._accumulator.close())
        finally:
            await self._close()

    async def flush(self) -> None:
        """Until everything sent so far is delivered or has failed; each future says which."""
        self._driver  # noqa: B018 (not started: says so)
        await self._flushed(self._accumulator.flush())

    async def _flushed(self, mark: int) -> None:
        driver = self._driver
        driver.wake()
        while not self._accumulator.flushed(mark):
            await driver.changed()

    async def partitions_for(self, topic: str) -> set[int]:
        deadline = self._driver.runtime.now() + self._max_block_s
        return set((await self._driver.topic(topic, deadline)).leaders)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersGiven = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Until the record is in the log, as safe as acks says."""
        sent = await self.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return await sent

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersGiven = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Hand a record over. Waits only while memory is full or the topic's partitions are not known yet; the future
        has where the record is, once it is there."""
        self._driver  # noqa: B018 (not started: says so)
        future: asyncio.Future[RecordMetadata] = self._new_future()
        ready = self.prepared(topic, value, key, headers, partition, timestamp_ms)
        offered = (topic, *ready, partition, timestamp_ms, future)
        if self.offer(*offered) is not AppendResult.ACCEPTED:
            await self.insist_on(*offered)
        self._unyielded += 1
        if not self._unyielded & UNYIELDED_MAX:
            # A tight loop of sends never yields to the event loop: then nothing would be sent before memory is full.
            await asyncio.sleep(0)
        return future

    async def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        key: str | None = None,
        value: str | None = "value",
        headers: str | None = None,
        partition: str | None = None,
        timestamp: str | None = None,
    ) -> asyncio.Future[int]:
        """Hand over all rows of a table; no object is made for a record. The names are those of its columns: bytes or
        text for keys and values, `list<struct<key, value>>` for headers. Waits only while memory is full; the future
        has the number of rows, once all are in the log. Serializers are not used. Needs `ottla[arrow]`."""
        from ottla.client.producing import arrow_batches as arrow

        driver = self._driver
        future: asyncio.Future[int] = self._new_future()
        shipment = Shipment(future)
        names = arrow.Names(value, key, headers, partition, timestamp)
        names.check(table.schema)
        known = await driver.topic(topic, self._runtime.now() + self._max_block_s)
        if self._deal is None:
            self._deal = arrow.RowPartitioner(str(self._partitioner), self._runtime.random.getrandbits(32))
        batch_bytes = self._accumulator.batch_bytes(arrow.BATCH_BYTES)
        for part in table.to_batches() if hasattr(table, "to_batches") else [table]:
            made = arrow.contents(
                part, names, known, self._deal, now_ms=self._runtime.wall_ms(), batch_bytes=batch_bytes
            )
            for tp, content in made:
                await self._offer_batch(tp, content, shipment)
            driver.wake()
            await asyncio.sleep(0)  # they leave while the next are made
        shipment.set_result()
        return future

    async def _offer_batch(self, tp: TopicPartition, content: BatchContent, shipment: Shipment) -> None:
        """Requests carry as many batches as fit: offered batches are sent when the driver wakes up."""
        if self._transactions is not None:
            self._transactions.check()
        deadline = self._runtime.now() + self._max_block_s
        while (
            verdict := self._accumulator.append_batch(tp, content, shipment, self._runtime.now())
        ) is not AppendResult.ACCEPTED:
            self._driver.wake()
            await self._wait_for(verdict, tp.topic, tp.partition, deadline)

    # Transactions.

    def transaction(self) -> TransactionScope:
        """Everything sent inside counts when it is left, or nothing does, if an exception leaves it, or if it cannot be
        committed."""
        return TransactionScope(self)

    async def commit_or_abort(self) -> None:
        """Commit, and if it can only be aborted, do so and say why: the next transaction may begin."""
        try:
            await self.commit_transaction()
        except ClientError:
            if self._transactional().broken:
                await self.abort_transaction()
            raise

    async def init_transactions(self) -> None:
        """Take over the transactional id again, outside a transaction. `start` has done so; another producer may have
        taken it since, and after `hand_over_transaction` it is needed."""
        await self._transactional().init()

    async def begin_transaction(self) -> None:
        self._transactional().begin()

    async def commit_transaction(self) -> None:
        """Deliver everything, then let it count. An error that is not `fatal` means that it can only be aborted."""
        await self._transactional().commit()

    async def hand_over_transaction(self) -> OpenTransaction:
        """Deliver everything, and leave it to `Admin.end_transaction` whether it counts. The transaction waits for as
        long as its timeout says, or until a producer takes over its id: another one, or this one with
        `init_transactions`, which it needs before the next."""
        await self.flush()
        return self._transactional().hand_over()

    async def abort_transaction(self) -> None:
        await self._transactional().abort()

    async def send_offsets_to_transaction(self, offsets: Given, group_metadata: GroupMetadata | str) -> None:
        """Commit offsets of a group with the transaction: those of the records that it was made from."""
        reader = GroupMetadata(group_metadata) if isinstance(group_metadata, str) else group_metadata
        await self._transactional().send_offsets(offsets_given(offsets), reader)

    def _transactional(self) -> TransactionCalls:
        self._driver  # noqa: B018 (not started: says so)
        if self._transactions is None:
            raise BadSetting("transactions need a transactional_id")
        return self._transactions

    # The steps of `send`, for callers in other threads.

    def prepared(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: HeadersGiven,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> tuple[bytes | None, bytes | None, Headers]:
        """Value, key and headers as they go into the record. TypeError or ValueError: nothing could carry it."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        if partition is not None and type(partition) is not int:
            index(partition)
        if timestamp_ms is not None and not TIMESTAMP_MIN <= index(timestamp_ms) <= TIMESTAMP_MAX:
            raise ValueError(f"a timestamp is in ms since 1970, which {timestamp_ms} is not")
        plain: Headers = ()
        if headers:
            plain = tuple(headers.items()) if isinstance(headers, Mapping) else headers
        if self._key_serializer is not None:
            key = self._key_serializer(key, topic, plain)
        if self._value_serializer is not None:
            value = self._value_serializer(value, topic, plain)
        if key is not None and type(key) is not bytes:
            key = _bytes("key", key)
        if value is not None and type(value) is not bytes:
            value = _bytes("value", value)
        return value, key, _checked(plain) if plain else ()

    def offer(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        token: Promise[RecordMetadata],
    ) -> AppendResult:
        """Hand a record over if that takes no waiting; `token` gets the outcome."""
        runtime, driver = self._runtime, self._driver
        if self._transactions is not None:
            self._transactions.check()
        verdict = self._accumulator.append(
            topic,
            value,
            runtime.now(),
            timestamp_ms=runtime.wall_ms() if timestamp_ms is None else timestamp_ms,
            key=key,
            headers=headers,
            partition=partition,
            token=token,
        )
        if not driver.pump_due:
            driver.wake()
        return verdict

    def heard_of(self, topic: str) -> bool:
        """Whether a recent response had the topic."""
        return self._driver.metadata.heard_of(topic)

    @contextmanager
    def looking_for(self, topics: Iterable[str]) -> Iterator[None]:
        """Request their metadata now: records for them wait behind another one."""
        metadata = self._driver.metadata
        with ExitStack() as waiting:
            for topic in topics:
                metadata.want(topic, self._runtime.now())
                waiting.enter_context(metadata.awaited(topic))
            yield

    async def insist_on(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        token: Promise[RecordMetadata],
        *,
        waited_s: float = 0.0,
    ) -> None:
        """Offer it until it is taken, for as long as max_block_ms allows, of which so much is over."""
        deadline = self._runtime.now() + self._max_block_s - waited_s
        with self._driver.metadata.awaited(topic):
            while (
                verdict := self.offer(topic, value, key, headers, partition, timestamp_ms, token)
            ) is not AppendResult.ACCEPTED:
                await self._wait_for(verdict, topic, partition, deadline)

    def not_taken(self, error: Exception) -> None:
        """A record was refused after `send` had returned: its transaction fails as a whole."""
        if self._transactions is not None:
            self._transactions.fail_transaction(error)

    async def _wait_for(self, verdict: AppendResult, topic: str, partition: int | None, deadline: float) -> None:
        driver = self._driver
        if driver.runtime.now() < deadline:
            await driver.changed(deadline)
            return
        waited = f"waited {self._max_block_s:g} s"
        if verdict is AppendResult.FULL:
            raise TimedOut(f"topic {topic}: {waited} for memory; buffer_memory is full of records not yet delivered")
        error = error_of(driver.metadata.error(topic), f"topic {topic}")
        if error is None and partition is not None and driver.metadata.topic(topic) is not None:
            error = ClientError(f"topic {topic} has no partition {partition}; {waited} for it")
        raise error or driver.timed_out(f"topic {topic}: {waited} for its metadata")

    def _resolve(self, action: Delivered | Undelivered) -> None:
        if isinstance(action, Delivered):
            for token, metadata in action.results():
                promise = cast("Promise[RecordMetadata]", token)
                if not promise.done():
                    promise.set_result(metadata)
            return
        for at, token in enumerate(action.tokens):
            promise = cast("Promise[RecordMetadata]", token)
            if not promise.done():
                promise.set_exception(_failure(action, at))
                if action.error.code is ErrorCode.transaction_abortable:
                    promise.exception()  # the caller of the abort knows, and need not ask for each record

    def _chosen_partitioner(self) -> Partitioner:
        chosen = self._partitioner
        if isinstance(chosen, str) or callable(chosen):
            seed = self._driver.runtime.random.getrandbits(32)
            return partitioner_of(chosen, seed=seed, batch_size=self._producer_settings.batch_size)
        return chosen


class TransactionScope:
    """One transaction as a context: it is committed at the end, and aborted if an exception leaves it."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Producer:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._producer.commit_or_abort()
        else:
            await self._producer.abort_transaction()


def _bytes(what: str, given: Any) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str):
        return given.encode()
    kind = type(given).__name__
    raise TypeError(f"a {what} is bytes or a str, not {kind}; {what}_serializer turns others into bytes")


def _checked(headers: Headers) -> Headers:
    """After the serializers, which may add some."""
    checked: list[tuple[str, bytes | None]] = []
    for name, content in headers:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is a str, not {type(name).__name__}")
        name.encode("utf-8", "surrogateescape")
        if content is not None and not isinstance(content, bytes | bytearray | memoryview):
            raise TypeError(f"the value of header {name!r} is bytes or None, not {type(content).__name__}")
        checked.append((name, content if content is None else bytes(content)))
    return checked


def _failure(batch: Undelivered, at: int) -> ClientError:
    """A record's own fault if it has one, else the batch's."""
    detail = batch.details.get(at)
    if detail is None:
        return batch.error
    error = ClientError(f"{batch.topic}-{batch.partition}: {detail}", code=batch.error.code)
    error.hint = batch.error.hint
    return error
