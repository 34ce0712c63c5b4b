"""A query that failed is started again with a growing delay, and not forever."""

from __future__ import annotations

import pytest

pytest.importorskip("yaml", reason="needs PyYAML: make test installs it")

from ottla.spark.pipeline.document import Restart
from ottla.spark.pipeline.query_runner import BACKOFF_MAX_S, Restarts


def test_delays_grow_up_to_a_limit_of_restarts_within_some_time():
    restarts = Restarts(Restart(limit=3, within_s=100.0, backoff_s=5.0))
    assert [restarts.failed(now) for now in (0.0, 10.0, 30.0, 60.0)] == [5.0, 10.0, 20.0, None]
    assert restarts.failed(115.0) == 10.0  # two are forgotten, one is left within the time


def test_no_delay_is_longer_than_the_longest():
    restarts = Restarts(Restart(limit=50, within_s=1e9, backoff_s=5.0))
    assert [restarts.failed(float(now)) for now in range(20)][-1] == BACKOFF_MAX_S


def test_a_limit_of_zero_restarts_nothing():
    assert Restarts(Restart(limit=0)).failed(0.0) is None


def test_a_busy_machine_does_not_use_up_the_restarts():
    restarts = Restarts(Restart(limit=2, within_s=1e9, backoff_s=5.0))
    busy = [restarts.failed(float(now), busy=True) for now in range(21)]
    assert busy[:3] == [5.0, 10.0, 20.0]
    assert busy[-2:] == [BACKOFF_MAX_S, None]
    assert "20 restarts" in restarts.spent
    assert [restarts.failed(50.0) for _ in range(3)] == [5.0, 10.0, None]
