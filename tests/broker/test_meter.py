"""Durations counted into buckets, and the text that tells of them."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.meter import BOUNDS, Meter, RequestMeters
from ottla.broker.prometheus import Families, labels
from ottla.net.server import Connection, Pending
from ottla.wire.apis import APIS


@given(st.lists(st.floats(0, 1000)))
def test_counts_are_cumulative_for_each_bound(durations):
    meter = Meter()
    for seconds in durations:
        meter.note(seconds)
    assert meter.count == len(durations)
    assert meter.seconds == pytest.approx(sum(durations))
    for bound, count in meter.counts():
        below = sum(1 for seconds in durations if seconds < bound)
        nearly = sum(1 for seconds in durations if seconds < bound - 1e-9)
        assert nearly <= count <= below
    assert len(meter.counts()) == len(BOUNDS)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_request_counts_when_its_response_is_ready():
    clock = Clock()
    meters = RequestMeters(list(APIS.values()), clock)
    pending = Pending()
    replies: dict[int, object] = {0: pending, 3: b"at once"}

    def serve(connection, frame):
        clock.now += 0.001
        return replies[frame[1]]

    no_connection = cast("Connection", None)
    measured = meters.around(serve)
    assert measured(no_connection, memoryview(b"\0\3")) == b"at once"
    assert measured(no_connection, memoryview(b"\0\0")) is pending
    metadata, produce = meters.by_api[APIS[3].name], meters.by_api[APIS[0].name]
    assert (metadata.count, produce.count) == (1, 0)
    clock.now += 2
    pending.resolve(None)
    assert produce.count == 1
    assert produce.seconds == pytest.approx(2.001)


def test_families_are_written_in_one_piece_and_only_with_samples():
    families = Families()
    families.gauge("first", "One.").add(1, labels(name='a "quoted\\" \n name'))
    families.counter("second_total", "Two.").add(2)
    families.gauge("empty", "Three.")
    families.gauge("first", "One.").add(3)
    assert families.encoded().decode() == (
        "# HELP first One.\n# TYPE first gauge\n"
        'first{name="a \\"quoted\\\\\\" \\n name"} 1\nfirst 3\n'
        "# HELP second_total Two.\n# TYPE second_total counter\nsecond_total 2\n"
    )


def test_a_histogram_has_its_buckets_its_sum_and_its_count():
    families = Families()
    families.histogram("took_seconds", "Time.").add_histogram([(0.5, 1)], 2, 3.5, api="Fetch")
    assert families.encoded().decode().splitlines()[2:] == [
        'took_seconds_bucket{api="Fetch",le="0.5"} 1',
        'took_seconds_bucket{api="Fetch",le="+Inf"} 2',
        'took_seconds_sum{api="Fetch"} 3.5',
        'took_seconds_count{api="Fetch"} 2',
    ]
