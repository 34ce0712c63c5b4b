"""Test broker in this process: a real broker on a loop in a thread, with a temporary directory.

It is the broker of `ottla serve`, except that requests of clients pass through `Faults` first, that groups start
without a rebalance delay, and that internal topics have one partition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from ottla.blocking.thread import LoopThread
from ottla.broker import broker as real
from ottla.config import load_broker_config
from ottla.errors import BadFrame, Fault, StorageFault
from ottla.local.proxy import Interception
from ottla.net.server import Connection, Pending, Reply, Serve
from ottla.net.streaming import Streamed
from ottla.runtime.disk import RealDisk, RealFile
from ottla.runtime.real import RealRuntime
from ottla.testing.faults import Faults
from ottla.testing.started import Started

HOST: Final = "127.0.0.1"
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""Differences from Kafka's defaults, which a test can override."""


class UnsyncedFile(RealFile):
    def sync(self) -> None:
        pass


class UnsyncedDisk(RealDisk):
    """A real disk without fsync: its data survives the death of the process, but not a power failure."""

    def open(self, path: str, *, create: bool = False) -> UnsyncedFile:
        return UnsyncedFile(self, path, create)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as failure:
            raise StorageFault(f"cannot write {path}: {failure.strerror}") from failure

    @contextmanager
    def together(self, path: str) -> Iterator[None]:
        yield

    def sync_dir(self, path: str) -> None:
        pass


class Broker(Started):
    """Started by `with`, or by `start` and `stop`. `config` has Kafka's names of settings."""

    THREAD = "ottla-test-broker"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(SETTINGS, config)
        self._broker: real.Broker | None = None
        self._runtime: RealRuntime

    def _begin(self, thread: LoopThread) -> None:
        thread.run(self._start())

    def _end(self, thread: LoopThread) -> None:
        if self._broker is not None:
            thread.run(self._stop(self._broker))

    async def _start(self) -> None:
        flags = {"log.dirs": self._directory} | self._settings
        config = load_broker_config(flags=flags, host=HOST, port=0)
        runtime = RealRuntime()
        runtime.disk = UnsyncedDisk()
        broker = real.Broker(config, runtime, intercept=partial(_intercepted, self._faults, runtime))
        try:
            await broker.start()
        except Fault:
            await broker.abandon()
            await runtime.close()
            raise
        self._broker, self._runtime = broker, runtime
        self._bootstrap_servers = broker.listeners[0].address

    async def _stop(self, broker: real.Broker) -> None:
        await broker.stop()
        await self._runtime.close()


def _intercepted(faults: Faults, runtime: RealRuntime, serve: Serve) -> Serve:
    """The broker's `serve`, with faults for requests of clients."""

    def serve_or_fail(connection: Connection, frame: memoryview) -> Reply | Pending:
        interception = faults.meet(frame) if connection.session.broker_id is None else None
        if interception is None:
            return serve(connection, frame)
        if not interception.delay_s and interception.rewrite is None:
            return _at_once(interception)
        pending = Pending()
        copy = memoryview(bytearray(frame))  # the connection reuses its buffer
        runtime.call_at(
            runtime.now() + interception.delay_s, _carry_out, interception, serve, connection, copy, pending
        )
        return pending

    return serve_or_fail


def _at_once(interception: Interception) -> Reply:
    if interception.disconnect:
        raise BadFrame("fault injected by a test")
    return interception.answer


def _carry_out(
    interception: Interception, serve: Serve, connection: Connection, frame: memoryview, pending: Pending
) -> None:
    """After the delay: refuse the request, or serve it and pass the reply on."""
    reply: Reply | Pending
    try:
        refuses = interception.disconnect or interception.answer is not None
        reply = _at_once(interception) if refuses else serve(connection, frame)
    except BadFrame as bad:
        connection.close(str(bad))
        pending.resolve(None)
        return
    if not isinstance(reply, Pending):
        pending.resolve(_rewritten(interception, reply))
    elif reply.resolved:
        pending.resolve(_rewritten(interception, reply.reply))
    else:
        inner = reply
        pending.abandoned = inner.abandoned
        inner.ended = lambda: pending.resolve(_rewritten(interception, inner.reply))


def _rewritten(interception: Interception, reply: Reply) -> Reply:
    if interception.rewrite is None or reply is None:
        return reply
    if isinstance(reply, Streamed):
        return interception.rewrite(reply.load())
    return interception.rewrite(reply if isinstance(reply, bytes) else b"".join(reply))
