"""Test broker in this process: a real broker on a loop in a thread, with a directory that is removed with it.

Requests of clients pass through `faults` first; otherwise it is what `ottla serve` runs. Groups start at once, and
internal topics have one partition: tests have few groups, and little time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ottla.blocking.thread import LoopThread
from ottla.broker import broker as real
from ottla.config import load_broker_config
from ottla.errors import BadFrame, Fault
from ottla.local.proxy import Verdict
from ottla.net.server import Connection, Pending, Reply, Serve
from ottla.net.streaming import Streamed
from ottla.runtime.real import RealRuntime
from ottla.testing.disk import UnsyncedDisk
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
"""What differs from Kafka's defaults, unless the test says otherwise."""


class Broker(Started):
    """Started by `with`, or by `start` and `stop`. `config` has Kafka's names for settings."""

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
    """Faults stand before what the broker serves to clients."""

    def serve_or_fail(connection: Connection, frame: memoryview) -> Reply | Pending:
        verdict = faults.meet(frame) if connection.session.broker_id is None else None
        if verdict is None:
            return serve(connection, frame)
        if not verdict.delay_s and verdict.rewrite is None:
            return _at_once(verdict)
        pending = Pending()
        kept = memoryview(bytearray(frame))  # the connection reads on into its own buffer
        runtime.call_at(runtime.now() + verdict.delay_s, _carry_out, verdict, serve, connection, kept, pending)
        return pending

    return serve_or_fail


def _at_once(verdict: Verdict) -> Reply:
    if verdict.disconnect:
        raise BadFrame("a test has asked for it")
    return verdict.answer


def _carry_out(verdict: Verdict, serve: Serve, connection: Connection, frame: memoryview, pending: Pending) -> None:
    """After the delay: refuse it, or let the broker serve it, and pass its answer on."""
    reply: Reply | Pending
    try:
        refuses = verdict.disconnect or verdict.answer is not None
        reply = _at_once(verdict) if refuses else serve(connection, frame)
    except BadFrame as bad:
        connection.close(str(bad))
        pending.resolve(None)
        return
    if not isinstance(reply, Pending):
        pending.resolve(_rewritten(verdict, reply))
    elif reply.resolved:
        pending.resolve(_rewritten(verdict, reply.reply))
    else:
        inner = reply
        pending.abandoned = inner.abandoned
        inner.ended = lambda: pending.resolve(_rewritten(verdict, inner.reply))


def _rewritten(verdict: Verdict, reply: Reply) -> Reply:
    if verdict.rewrite is None or reply is None:
        return reply
    if isinstance(reply, Streamed):
        return verdict.rewrite(reply.load())
    return verdict.rewrite(reply if isinstance(reply, bytes) else b"".join(reply))
