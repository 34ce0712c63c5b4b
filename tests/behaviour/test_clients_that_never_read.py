"""A thousand clients that fetch and never read: their memory, and the latency of other clients."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from ottla.local.waiting import wait_for
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import Connection, batch, fetch, fetch_request, produce
from tests.harness.topics import create_topic

CLIENTS = 1_000
PARTITIONS = 16
GROWTH_BYTES_MAX = 300_000_000
ITERATIONS = 300


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"needs {count} descriptors, and the system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def p99_s(connection: Connection) -> dict[str, float]:
    """Of one client's requests, one after the other."""
    took: dict[str, list[float]] = {"Produce": [], "Fetch": [], "Metadata": []}
    for number in range(ITERATIONS):
        began = time.perf_counter()
        offset = produce(connection, "small", batch([b"%d" % number]))["base_offset"]
        produced = time.perf_counter()
        assert fetch(connection, "small", offset)["records"]
        fetched = time.perf_counter()
        assert connection.call("metadata", 9, topics=None)["topics"]
        took["Produce"].append(produced - began)
        took["Fetch"].append(fetched - produced)
        took["Metadata"].append(time.perf_counter() - fetched)
    return {name: sorted(each)[int(len(each) * 0.99)] for name, each in took.items()}


def rests(broker: WatchedBroker) -> bool:
    """Whether it has done next to nothing for a moment."""
    began = cpu_s(broker)
    time.sleep(0.5)
    return cpu_s(broker) - began < 0.05


def cpu_s(broker: WatchedBroker) -> float:
    tasks = Path(f"/proc/{broker.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def never_reading(broker: WatchedBroker, request: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect((broker.host, broker.port))
    client.sendall(request)
    return client


@pytest.mark.long
def test_a_thousand_clients_that_never_read_take_little_memory_and_slow_no_other_client(start_broker, capsys):
    broker = start_broker()
    with descriptors(CLIENTS + 500), Connection(broker, timeout_s=60) as connection:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        create_topic(admin, "large", PARTITIONS)
        create_topic(admin, "small")
        for index in range(PARTITIONS):
            for _ in range(5):
                produce(connection, "large", batch([b"x" * 10_000] * 20), partition=index)
        p99_s(connection)  # once for nothing: everything is warm
        before, rss_before = p99_s(connection), broker.resident_bytes()
        request = fetch_request("large", range(PARTITIONS))
        clients = [never_reading(broker, request) for _ in range(CLIENTS)]
        try:
            meanwhile = p99_s(connection)  # while the kernels take what they can
            for client in clients:
                wait_for(lambda client=client: client.recv(1, socket.MSG_PEEK), "an answer", 60)  # type: ignore[misc]
            wait_for(lambda: rests(broker), "nothing to be sent any more", 120)
            after, rss_after = p99_s(connection), broker.resident_bytes()
        finally:
            for client in clients:
                client.close()
        with capsys.disabled():
            print(f"\n{CLIENTS} clients that never read: {(rss_after - rss_before) / 1e6:.1f} MB more; p99 in ms:")
            for name in before:
                reported = (1e3 * each[name] for each in (before, meanwhile, after))
                print("  {:8s} {:6.2f} before, {:6.2f} while they begin, {:6.2f} beside them".format(name, *reported))
        assert rss_after - rss_before < GROWTH_BYTES_MAX
        for name in before:  # generous: the machine is shared, and this is no measurement
            assert after[name] < max(5 * before[name], 0.25), name
