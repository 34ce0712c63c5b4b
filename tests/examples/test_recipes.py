"""The examples give their delivery guarantees, also when the user's code fails."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from random import Random

import pytest

from examples import at_least_once, at_most_once, exactly_once, feed_http_service
from ottla.client.consuming.consumer import Consumer
from ottla.local.waiting import wait_for
from tests.client.clients import create, run, write
from tests.conftest import Served

RECORDS = 50
FATAL = 17


class Died(Exception):
    pass


def work(recipe, bootstrap: str, topic: str, handle: Callable) -> list[int]:
    """Run a recipe until it has seen the last record, or its handler has failed. What was handled."""
    handled: list[int] = []

    async def scenario() -> None:
        done = asyncio.Event()

        def noted(record) -> None:
            handle(record)
            handled.append(int(record.value))
            if handled[-1] == RECORDS - 1:
                done.set()

        running = asyncio.create_task(recipe.run(bootstrap, topic, f"group-{topic}", noted))
        ending = asyncio.create_task(done.wait())
        await asyncio.wait([running, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        running.cancel()
        await asyncio.gather(running, ending, return_exceptions=True)

    run(scenario())
    return handled


def fail_at(number: int) -> Callable:
    def handle(record) -> None:
        if int(record.value) == number:
            raise Died

    return handle


def filled(broker: Served, topic: str, partitions: int = 1) -> str:
    async def fill() -> None:
        await create(broker.bootstrap, topic, partitions)
        await write(broker.bootstrap, topic, [b"%d" % n for n in range(RECORDS)], partitioner="round_robin")

    run(fill())
    return topic


def test_at_most_once_skips_the_failed_record_and_repeats_nothing(broker: Served, fresh_name):
    topic = filled(broker, fresh_name())
    first = work(at_most_once, broker.bootstrap, topic, fail_at(FATAL))
    second = work(at_most_once, broker.bootstrap, topic, lambda record: None)
    assert Counter(first + second) == Counter(set(range(RECORDS)) - {FATAL})


def test_at_least_once_skips_nothing_and_is_idempotent(broker: Served, fresh_name):
    topic = filled(broker, fresh_name())
    stored: at_least_once.Stored = {}
    write_down = at_least_once.writes_into(stored)

    def clumsy(record) -> None:
        write_down(record)
        fail_at(FATAL)(record)

    first = work(at_least_once, broker.bootstrap, topic, clumsy)
    second = work(at_least_once, broker.bootstrap, topic, write_down)
    assert set(first + second) == set(range(RECORDS))
    assert set(first) & set(second), "what was handled and not committed is handled again"
    assert sorted(int(value) for value in stored.values()) == list(range(RECORDS))


def test_exactly_once_copies_each_record_once_despite_failures(broker: Served, fresh_name):
    source, target = filled(broker, fresh_name(), partitions=2), fresh_name()
    run(create(broker.bootstrap, target))
    chance = Random(11)
    deaths = 0

    def clumsy(record) -> bytes:
        if deaths < 5 and chance.random() < 0.1:
            raise Died
        return record.value

    async def scenario() -> list[int]:
        nonlocal deaths
        group = f"group-{source}"
        async with Consumer(
            target, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as reader:
            copied: list[int] = []
            while len(copied) < RECORDS:
                copying = asyncio.create_task(exactly_once.run(broker.bootstrap, source, target, group, clumsy))
                while len(copied) < RECORDS and not copying.done():
                    for records in (await reader.getmany(timeout_ms=100)).values():
                        copied += [int(record.value) for record in records]
                copying.cancel()
                (ended,) = await asyncio.gather(copying, return_exceptions=True)
                assert isinstance(ended, Died | asyncio.CancelledError), ended
                deaths += 1
            more = await reader.getmany(timeout_ms=200)
            assert more == {}
            return copied

    assert sorted(run(scenario())) == list(range(RECORDS))
    assert deaths > 1


@pytest.fixture
def service() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An HTTP service that refuses the first two requests, and remembers the others."""
    accepted: list[tuple[str, bytes]] = []
    refusals = iter(range(2))

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refused = next(refusals, None) is not None
            if not refused:
                accepted.append((self.headers["Idempotency-Key"], body))
            self.send_response(503 if refused else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", accepted
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_group_feeds_an_http_service(broker: Served, fresh_name, service):
    url, accepted = service
    topic = filled(broker, fresh_name(), partitions=2)
    with feed_http_service.feed(broker.bootstrap, topic, url, threads=2):
        wait_for(lambda: len(accepted) >= RECORDS, "all records", 30)
    assert sorted(int(body) for _, body in accepted) == list(range(RECORDS))
    assert len({key for key, _ in accepted}) == RECORDS
