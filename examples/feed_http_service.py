"""Every record of a topic becomes a POST, again until the service takes it: localhost:9092 orders http://localhost:8000/"""

import sys
import time
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from ottla import ConsumerRecord
from ottla.blocking import ConsumerPool


def post(url: str, record: ConsumerRecord[Any, Any]) -> None:
    name = f"{record.topic}-{record.partition}-{record.offset}"
    request = Request(url, record.value or b"", {"Idempotency-Key": name}, method="POST")
    while True:
        try:
            urlopen(request, timeout=10).close()
            return
        except URLError:
            time.sleep(0.5)  # the group goes on living meanwhile; after max_poll_interval_ms another member takes over


def feed(bootstrap: str, topic: str, url: str, threads: int = 4) -> ConsumerPool:
    settings = {"bootstrap.servers": bootstrap, "group.id": "http-service", "auto.offset.reset": "earliest"}
    return ConsumerPool(threads, topic, handle=lambda record: post(url, record), config=settings)


if __name__ == "__main__":
    with feed(sys.argv[1], sys.argv[2], sys.argv[3]) as pool:
        pool.wait()
