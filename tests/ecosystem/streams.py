"""Kafka Streams: word count, windows and joins with exactly_once_v2, while its instances and a broker are killed.

Two instances share the work. Each update of a count is one record, since nothing is cached, so the counts of a word
have to be 1, 2, 3, … without a gap: a record that was lost, doubled or overtaken shows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from tests.ecosystem import needs
from tests.ecosystem.ring import Program, Ring, by_key, same

TITLE = "Kafka Streams"
LINES = 12_000
WORDS = ("log", "offset", "leader", "epoch", "batch", "fetch", "commit", "record", "group", "topic")
PARTITIONS = 4
CUSTOMERS = 40
ORDERS = 4_000
WINDOW_MS = 10_000
STEP_MS = 100


def prepare() -> str:
    _classpath()
    return needs.kafka()


def _classpath() -> list[Path]:
    jars = needs.jars("streams", f"org.apache.kafka:kafka-streams:{needs.kafka()}", "org.slf4j:slf4j-simple:1.7.36")
    return [needs.compiled("StreamsJob.java", jars), jars]


def line(number: int) -> str:
    return " ".join(WORDS[(number * step + number // 7) % len(WORDS)] for step in (1, 3, 7))


def run(ring: Ring) -> str:
    # Not long ago, since retention goes by these timestamps; and at the beginning of a window.
    now_ms = int(time.time() * 1000)
    began_ms = now_ms - now_ms % WINDOW_MS - LINES * STEP_MS
    for name in ("lines", "customers", "orders", "payments", "counts", "windows", "named", "paid"):
        ring.topic(f"streams-{name}", PARTITIONS)
    # A join takes records by their timestamps: a customer has to be older than the first order, not as old.
    customers = ((f"c{n}", f"name{n}") for n in range(CUSTOMERS))
    ring.produce("streams-customers", customers, timestamps=lambda _: began_ms - WINDOW_MS)
    ring.produce(
        "streams-orders", ((f"c{n % CUSTOMERS}", f"o{n}") for n in range(ORDERS)), timestamps=lambda n: began_ms + n
    )
    ring.produce("streams-payments", ((f"o{n}", f"p{n}") for n in range(ORDERS)), timestamps=lambda n: began_ms + n)
    instances = {number: _start(ring, number) for number in (1, 2)}
    # What is still to come is written while the instances run, so that every kill hits work in progress.
    updates = 0
    tenth = LINES // 10
    killed = 0
    for part in range(10):
        numbers = range(part * tenth, (part + 1) * tenth)
        ring.produce(
            "streams-lines", ((f"k{n % 10}", line(n)) for n in numbers),
            timestamps=lambda n, start=numbers.start: began_ms + (start + n) * STEP_MS,
        )  # fmt: skip
        updates += 3 * tenth
        if part in (2, 5):
            number = 1 if part == 2 else 2
            _progress(ring, updates - 2 * tenth)
            instances[number].kill()
            ring.say(f"killed instance {number} at {ring.end('streams-counts')} updates")
            instances[number] = _start(ring, number)
        if part == 7:
            _progress(ring, updates - 2 * tenth)
            killed = ring.kill_leader("streams-counts")
        if part == 8:
            ring.restart(killed)
    return _check(ring, began_ms)


def _start(ring: Ring, number: int) -> Program:
    state = str(ring.directory / f"state-{number}")
    return ring.java(f"streams-{number}", "StreamsJob", _classpath(), ring.bootstrap, "streams", state)


def _progress(ring: Ring, updates: int) -> None:
    ring.until(lambda: ring.end("streams-counts") >= updates, f"{updates} updates of counts")


def _check(ring: Ring, began_ms: int) -> str:
    outputs = {"counts": 3 * LINES, "windows": LINES, "named": ORDERS, "paid": ORDERS}
    for name, count in outputs.items():
        ring.reached(f"streams-{name}", count)
    for name in ("lines", "customers", "orders", "payments"):
        ring.caught_up("streams", f"streams-{name}")
    ring.stop_all()
    got = {name: ring.exactly(f"streams-{name}", count) for name, count in outputs.items()}
    expected: dict[str, int] = defaultdict(int)
    for number in range(LINES):
        for word in line(number).split():
            expected[word] += 1
    by_word = by_key(got["counts"])
    same("words", sorted(by_word), sorted(expected))
    for word, seen in by_word.items():
        same(f"counts of {word}", [int(value) for value in seen], range(1, expected[word] + 1))
    windows: dict[str, int] = defaultdict(int)
    for number in range(LINES):
        at = began_ms + number * STEP_MS
        windows[f"k{number % 10}@{at - at % WINDOW_MS}"] += 1
    by_window = by_key(got["windows"])
    same("windows", sorted(by_window), sorted(windows))
    for window, seen in by_window.items():
        same(f"counts of window {window}", [int(value) for value in seen], range(1, windows[window] + 1))
    by_customer = by_key(got["named"])
    for number in range(CUSTOMERS):
        orders = [f"o{order} name{number}" for order in range(number, ORDERS, CUSTOMERS)]
        same(f"orders of customer {number}", by_customer.get(f"c{number}", []), orders)
    paid = sorted(record.value for record in got["paid"])
    same("paid orders", paid, sorted(f"o{number} p{number}" for number in range(ORDERS)))
    return (
        f"{3 * LINES:,} updates of {len(expected)} words, {LINES:,} of {len(windows)} windows, {ORDERS:,} orders "
        "joined with customers and with payments; two instances and a broker killed"
    )
