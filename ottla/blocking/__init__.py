"""Blocking clients, for code without `async`: the same methods, each waits for its result.

    with Producer("localhost:9092") as producer:
        producer.send_and_wait("orders", b"two oranges")

Each client has its own event loop in its own thread, which sends heartbeats while the caller is busy; so it also works
where a loop is running, as in a notebook. A producer or an admin may be used from several threads. A consumer may be
used by one thread at a time: use one for each thread (`ConsumerPool` does).
"""

from ottla.blocking.admin import Admin
from ottla.blocking.consumer import Consumer
from ottla.blocking.pool import ConsumerPool
from ottla.blocking.producer import Producer

__all__ = ["Admin", "Consumer", "ConsumerPool", "Producer"]
