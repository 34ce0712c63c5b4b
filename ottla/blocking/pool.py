"""ConsumerPool: several consumers in one process, one for each thread.

Threads that share one consumer would have to coordinate offsets and order. Here each thread has its own partitions and
offsets, and takes over when another fails: the group assigns partitions as it does among processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, Unpack

from ottla.blocking.consumer import Consumer
from ottla.client.consuming.consumer_records import ConsumerRecord, Deserializer
from ottla.client.core.settings import ConsumerOptions
from ottla.client.errors import BadSetting

LOOK_MS: Final = 200
"""How often an idle thread checks whether it should end."""
GATHER_S: Final = 10.0
GATHER_STEP_S: Final = 0.02


class ConsumerPool:
    """`size` threads call `handle` with each record; records of one partition are handled in order, one by one. The
    threads start reading when all have joined the group. An exception of `handle` stops the pool, and `wait` and `stop`
    raise it; that record is read again next time."""

    def __init__(
        self,
        size: int,
        *topics: str,
        handle: Callable[[ConsumerRecord[Any, Any]], object],
        bootstrap_servers: str | Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        if size < 1:
            raise BadSetting("a pool has at least one consumer")
        if not topics:
            raise BadSetting("a pool needs at least one topic")
        self.consumers = [
            Consumer(
                *topics,
                bootstrap_servers=bootstrap_servers,
                config=config,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                **settings,
            )
            for _ in range(size)
        ]
        if not (settings.get("group_id") or (config or {}).get("group.id")):
            raise BadSetting("a pool needs a group_id: its consumers are one group")
        self._handle = handle
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._generations: dict[Consumer, int] = {}

    def start(self) -> None:
        for number, consumer in enumerate(self.consumers):
            thread = threading.Thread(target=self._work, args=(consumer,), name=f"ottla-pool-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the pool stops or fails, or for `timeout_s`."""
        if self._ending.wait(timeout_s):
            self.stop()

    def stop(self) -> None:
        """Each thread finishes its record, commits and leaves the group."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self, consumer: Consumer) -> None:
        try:
            with consumer:
                self._gather(consumer)
                while not self._ending.is_set():
                    record = consumer.next_within(LOOK_MS)
                    if record is not None:
                        self._handle(record)
        except BaseException as error:  # noqa: BLE001 (`wait` and `stop` raise it)
            self._error = self._error or error
            self._ending.set()

    def _gather(self, consumer: Consumer) -> None:
        """Wait until all are in the same generation of the group, for a limited time: others may join and leave."""
        deadline = time.monotonic() + GATHER_S
        while not self._together() and time.monotonic() < deadline and not self._ending.wait(GATHER_STEP_S):
            self._generations[consumer] = consumer.group_metadata().generation_id

    def _together(self) -> bool:
        generations = list(self._generations.values())
        return len(generations) == len(self.consumers) and len(set(generations)) == 1 and generations[0] > 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
