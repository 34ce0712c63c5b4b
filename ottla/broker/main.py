"""The broker process: event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

from ottla.broker.broker import Broker
from ottla.config.broker_config import BrokerConfig
from ottla.config.listeners import Listener
from ottla.errors import Fault, StorageFault
from ottla.runtime.real import RealRuntime

log = logging.getLogger("ottla.broker")


Ready = Callable[[list[Listener]], None]


def run(config: BrokerConfig, ready: Ready) -> int:
    """Serve until SIGTERM or SIGINT; `ready` is called with the listeners once clients are accepted. Blocks."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, ready))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(config: BrokerConfig, ready: Ready) -> int:
    runtime = RealRuntime()
    broker = Broker(config, runtime)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    why: list[str] = []

    def on_signal(number: signal.Signals) -> None:
        why.append(number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await broker.start()
    except Fault:
        await broker.abandon()
        await runtime.close()
        raise
    # Objects made at start-up stay: garbage collection need not scan them again.
    gc.collect()
    gc.freeze()
    ready(broker.listeners)
    broker.fatal_error.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if broker.fatal_error.done():
        await broker.abandon()
        fault = broker.fatal_error.result()
        if not isinstance(fault, StorageFault):
            raise fault
        raise Fault(
            f"{fault}. What this broker wrote last may not be on the device, so it ends here; others go "
            "on with what they have. Look at the device, then start again: the log is checked then."
        )
    log.info("broker %d is stopping (%s)", config.broker_id, ", ".join(why))
    await broker.stop()
    await runtime.close()
    return 0
