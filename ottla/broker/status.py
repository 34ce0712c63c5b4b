"""The status port: /metrics, /healthz, /readyz.

    /healthz           200 while the loop runs; without an answer the process may be killed
    /readyz            200 while the broker serves; 503 while it starts, stops, or its session has expired
    /readyz/in-sync    like /readyz, and every replica here is in the ISR of its partition: the next broker may be
                       restarted

It is open before the logs are, for opening logs may take long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from ottla.broker import prometheus
from ottla.broker.context import Context
from ottla.broker.meter import Meter, RequestMeters
from ottla.broker.metrics import Metrics
from ottla.config.listeners import address_text, is_loopback
from ottla.errors import Fault, PortTaken
from ottla.net.http import HttpServer, Page, refusal
from ottla.net.server import Server
from ottla.runtime import Handle
from ottla.wire.error_codes import ErrorCounts

log = logging.getLogger("ottla.status")

LAG_CHECK_SECONDS: Final = 0.25
REPLICAS_NAMED_MAX: Final = 20


class Status:
    """Exists only if `ottla.metrics.port` is set; otherwise nothing is measured."""

    def __init__(
        self,
        context: Context,
        server: Server,
        requests: RequestMeters,
        errors: Mapping[str, ErrorCounts],
        is_serving: Callable[[], bool],
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self._is_serving = is_serving
        self._loop_lag = Meter()
        self._metrics = Metrics(context, server, requests, errors, self._loop_lag)
        self._http = HttpServer(context.runtime, self._serve)
        self._gathering: asyncio.Task[bytes] | None = None
        self._timer: Handle | None = None
        self.port = 0

    async def start(self) -> None:
        host, port = self._context.config.ottla_metrics_host, self._context.config.ottla_metrics_port
        assert port is not None
        try:
            self.port = (await self._http.start(host, port)).port
        except PortTaken as taken:
            raise Fault(f"{taken} Choose another port for the metrics with --metrics-port.") from None
        self._measure_lag_later()
        log.info("metrics on http://%s/metrics", address_text(host, self.port))
        if not is_loopback(host):
            log.warning("metrics can be read from other machines, without authentication")

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._gathering is not None:
            self._gathering.cancel()
        await self._http.close()

    def _measure_lag_later(self) -> None:
        due = self._runtime.now() + LAG_CHECK_SECONDS
        self._timer = self._runtime.call_at(due, self._measure_lag, due)

    def _measure_lag(self, due: float) -> None:
        self._loop_lag.note(max(0.0, self._runtime.now() - due))
        self._measure_lag_later()

    async def _serve(self, path: str) -> Page:
        if path == "/metrics":
            return Page(await self._gathered(), content_type=prometheus.CONTENT_TYPE)
        if path == "/healthz":
            return Page(b"ok\n")
        if path == "/readyz":
            return _verdict(self._unready())
        if path == "/readyz/in-sync":
            return _verdict(self._unready() or self._out_of_sync())
        if path == "/":
            return Page(b"/metrics\n/healthz\n/readyz\n/readyz/in-sync\n")
        return refusal(HTTPStatus.NOT_FOUND)

    async def _gathered(self) -> bytes:
        """Concurrent scrapers get the same page: many cost no more than one."""
        if self._gathering is None or self._gathering.done():
            self._gathering = self._runtime.spawn(self._metrics.page(serving=self._is_serving()), name="metrics")
        return await asyncio.shield(self._gathering)

    def _unready(self) -> str:
        context = self._context
        if not self._is_serving():
            return "the broker is starting or stopping"
        if not context.cluster.has_session_lease:
            return "the metadata store is out of reach, or has ended the session of this broker"
        registration = context.cluster.registration
        live = context.image.brokers.get(context.id)
        if registration is None or live is None or live.epoch != registration.epoch:
            return "the broker is about to register again"
        return ""

    def _out_of_sync(self) -> str:
        me = self._context.id
        behind = [f"{p.topic}-{p.index}" for p in self._context.replicas if me not in p.in_sync]
        if not behind:
            return ""
        named = ", ".join(behind[:REPLICAS_NAMED_MAX])
        return f"{len(behind)} replicas here are not in sync: {named}{', ...' if behind[REPLICAS_NAMED_MAX:] else ''}"


def _verdict(problem: str) -> Page:
    if problem:
        return Page(f"{problem}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    return Page(b"ok\n")
