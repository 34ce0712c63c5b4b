"""A whole broker in this process: a real one, on its own loop in a thread, with a directory that goes with it.

What clients send it passes through `faults` first; otherwise it is what `ottla serve` runs. Groups begin at once, and
internal topics have one partition: tests have few groups, and little time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from ottla.blocking.thread import LoopThread
from ottla.broker import broker as real
from ottla.broker.status import Status
from ottla.config import load_broker_config
from ottla.errors import BadFrame, ErrorCode, Fault
from ottla.net.server import Connection, Pending, Reply, Serve, Server
from ottla.runtime.real import RealRuntime
from ottla.testing.access import Access
from ottla.testing.disk import UnsyncedDisk
from ottla.testing.faults import Fault as InjectedFault
from ottla.testing.faults import Faults, Verdict

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


def settings_of(config: Mapping[str, Any] | None) -> dict[str, str]:
    """A test may write names with `_` as well, and values as they are."""
    return {name.replace("_", "."): _text(value) for name, value in (config or {}).items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Broker(Access):
    """Started by `with`, or by `start` and `stop`. `config` has Kafka's names for settings."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._settings = SETTINGS | settings_of(config)
        self._faults = Faults()
        self._directory = ""
        self._thread: LoopThread | None = None
        self._broker: _Broker
        self._runtime: RealRuntime

    def start(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("this broker was started before; make another")
        self._directory = tempfile.mkdtemp(prefix="ottla-test-")
        self._thread = LoopThread("ottla-test-broker")
        try:
            self._thread.run(self._start())
        except BaseException:
            self._clean_up()
            raise
        return self

    def stop(self) -> None:
        """Nothing is left of it: no thread, no socket, no file."""
        if self._thread is None or self._thread.loop.is_closed():
            return
        try:
            self._thread.run(self._stop())
        finally:
            self._clean_up()

    def inject(
        self,
        api: str,
        error: ErrorCode | int | str | None = None,
        times: int | None = 1,
        delay_ms: float = 0,
    ) -> InjectedFault:
        return self._faults.add(api, error, times, delay_ms)

    async def _start(self) -> None:
        flags = {"log.dirs": self._directory} | self._settings
        config = load_broker_config(flags=flags, host=HOST, port=0)
        self._runtime = RealRuntime()
        self._runtime.disk = UnsyncedDisk()
        self._broker = _Broker(config, self._runtime, self._faults)
        try:
            await self._broker.start()
        except Fault:
            await self._broker.abandon()
            await self._runtime.close()
            raise
        self._bootstrap_servers = self._broker.listeners[0].address

    async def _stop(self) -> None:
        await self._broker.stop()
        await self._runtime.close()

    def _clean_up(self) -> None:
        assert self._thread is not None
        self._thread.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Broker(real.Broker):
    """The real one, with faults before what it serves."""

    def __init__(self, config: Any, runtime: RealRuntime, faults: Faults) -> None:
        self._faults = faults
        super().__init__(config, runtime)

    def _listening(self) -> tuple[Server, Status | None]:
        server, status = super()._listening()
        server.serve = self._faulty(server.serve)
        return server, status

    def _faulty(self, serve: Serve) -> Serve:
        faults = self._faults

        def serve_or_fail(connection: Connection, frame: memoryview) -> Reply | Pending:
            verdict = faults.meet(frame) if connection.peer_broker is None else None
            if verdict is None:
                return serve(connection, frame)
            if not verdict.delay_s and verdict.rewrite is None:
                return _at_once(verdict)
            pending = Pending()
            kept = memoryview(bytearray(frame))  # the connection reads on into its own buffer
            when = self.runtime.now() + verdict.delay_s
            self.runtime.call_at(when, _carry_out, verdict, serve, connection, kept, pending)
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
    return verdict.rewrite(reply if isinstance(reply, bytes) else b"".join(reply))
