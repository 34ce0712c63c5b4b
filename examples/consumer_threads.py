"""One consumer per thread: each has its own partitions and offsets, and order within a partition is kept.

Threads that shared one consumer would have to agree on offsets and order themselves; consumers in a group need not, and
when one fails, another goes on with its partitions.

    python examples/consumer_threads.py localhost:9092 orders kitchen 3 12
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from ottla import ConsumerRecord
from ottla.blocking import ConsumerPool

Seen = dict[str, dict[int, list[int]]]


def run(bootstrap: str, topic: str, group: str, threads: int, records: int) -> Seen:
    """Read so many records; which thread read which offsets of which partition."""
    seen: Seen = {}
    guard = threading.Lock()
    done = threading.Event()

    def handle(record: ConsumerRecord[Any, Any]) -> None:
        with guard:
            mine = seen.setdefault(threading.current_thread().name, {})
            mine.setdefault(record.partition, []).append(record.offset)
            if sum(len(offsets) for parts in seen.values() for offsets in parts.values()) >= records:
                done.set()

    with ConsumerPool(
        threads, topic, handle=handle, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    ):
        done.wait()
    return seen


if __name__ == "__main__":
    bootstrap, topic, group, threads, records = sys.argv[1:6]
    by_thread = run(bootstrap, topic, group, int(threads), int(records))
    for number, partitions in enumerate(sorted(by_thread.values(), key=sorted), 1):
        for partition, offsets in sorted(partitions.items()):
            print(f"thread {number}: partition {partition}, offsets {offsets[0]} to {offsets[-1]}")
