"""Feed a service that speaks HTTP from a topic: every record becomes a POST, again until the service accepts it.

python examples/feed_http_service.py localhost:9092 orders http://localhost:8000/orders
"""

import sys
import time
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from ottla import ConsumerRecord
from ottla.blocking import ConsumerPool


def post(url: str, record: ConsumerRecord[Any, Any]) -> None:
    place = f"{record.topic}-{record.partition}-{record.offset}"
    request = Request(url, record.value or b"", {"Idempotency-Key": place}, method="POST")
    while True:
        try:
            urlopen(request, timeout=10).close()
            return
        except URLError:
            time.sleep(0.5)  # the group goes on living meanwhile; after max_poll_interval_ms another member takes over


def feed(bootstrap: str, topic: str, url: str, threads: int = 4) -> ConsumerPool:
    settings = {"group.id": "http-service", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    return ConsumerPool(
        threads, topic, handle=lambda record: post(url, record), bootstrap_servers=bootstrap, config=settings
    )


if __name__ == "__main__":
    broker, source, service = sys.argv[1:4]
    with feed(broker, source, service) as pool:
        pool.wait()
