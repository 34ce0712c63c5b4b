"""Blocking clients, for code without `async`: the same names, and each call waits for its result.

    with Producer("localhost:9092") as producer:
        producer.send_and_wait("orders", b"two oranges")

Each client has a loop of its own in a thread of its own, which sends heartbeats while the caller is busy; so it also
works where a loop runs already, as in a notebook. A producer or an admin may be used from several threads. A consumer
is for one at a time: give each thread its own (`ConsumerPool` does).
"""

from ottla.blocking.admin import Admin
from ottla.blocking.consumer import Consumer
from ottla.blocking.pool import ConsumerPool
from ottla.blocking.producer import Producer

__all__ = ["Admin", "Consumer", "ConsumerPool", "Producer"]
