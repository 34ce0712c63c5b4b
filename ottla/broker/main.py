"""The process around a broker: loop, signals, the line that says it is ready, and the exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable

from ottla.broker.broker import Broker
from ottla.config.broker import BrokerConfig
from ottla.errors import Fault
from ottla.runtime.real import RealRuntime

log = logging.getLogger("ottla.broker")


def run(config: BrokerConfig) -> int:
    """Serve until SIGTERM or SIGINT. Blocks."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(config: BrokerConfig) -> int:
    runtime = RealRuntime()
    broker = Broker(config, runtime)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await broker.start()
    except Fault:
        await broker.abandon()
        await runtime.close()
        raise
    # What start-up made stays for good: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    addresses = ", ".join(listener.address for listener in broker.listeners)
    sys.stdout.write(f"ottla: broker {config.broker_id} ready on {addresses}\n")
    sys.stdout.flush()
    broker.doom.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if broker.doom.done():
        await broker.abandon()
        raise Fault(
            f"{broker.doom.result()}. What this broker wrote last may not be on the device, so it ends here; others go "
            "on with what they have. Look at the device, then start again: the log is checked then."
        )
    log.info("broker %d is stopping", config.broker_id)
    await broker.stop()
    await runtime.close()
    return 0
