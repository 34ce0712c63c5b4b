"""The client's tests against Apache Kafka: `python -m tests.on_kafka [what pytest takes]`.

One node of the newest 4.x is started with its own defaults, but for what only makes a test wait. What needs no broker
is left out, and what has to start, stop or break one of ours is skipped and says so.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import pytest

from bench.maven import Unavailable
from bench.peers import ApacheKafka

DIRECTORIES: Final = ("tests/client", "tests/blocking", "tests/examples", "tests/serde")
BROKERS: Final = {"broker", "start_broker", "brokers", "ottla_topic", "ottla_server", "ottla_broker"}
"""Fixtures of tests that talk to a broker."""
PATIENCE: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}
TEMPORARY: Final = 75
"""EX_TEMPFAIL: Java or Kafka's jars are not to be had here and now."""


class OnlyWithBroker:
    """Leaves out the tests that would find the same on any broker."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        alone = [item for item in items if not BROKERS & set(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in set(alone)]


def main(arguments: list[str]) -> int:
    try:
        with ApacheKafka(heap="512m", settings=PATIENCE) as kafka:
            print(f"Apache Kafka {kafka.version()} on {kafka.bootstrap}", flush=True)
            # Read when the first conftest.py is imported, so before pytest begins.
            os.environ["OTTLA_TEST_BOOTSTRAP"] = kafka.bootstrap
            option = f"--ottla-bootstrap={kafka.bootstrap}"
            where = [] if any(not each.startswith("-") for each in arguments) else DIRECTORIES
            return pytest.main(["-q", option, *where, *arguments], plugins=[OnlyWithBroker()])
    except Unavailable as missing:
        print(f"Apache Kafka cannot be run here: {missing}", file=sys.stderr)
        return TEMPORARY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
