"""Which release of Apache Kafka a broker looks like to tools that guess it by what ApiVersions says.

kcl and kminion do so with the table of franz-go's kversion: the newest release all of whose APIs are served, in its
highest versions or in higher ones. The table below says the same of the last releases, as numbers. What a release has
and this broker has not must stand in docs/differences.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.behaviour.test_api_versions import advertised
from tests.conftest import EXTERNAL

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="Apache Kafka is what it looks like")

DIFFERENCES = Path(__file__).resolve().parents[2] / "docs" / "differences.md"

KAFKA_4_0 = {
    0: 12, 1: 17, 2: 10, 3: 13, 8: 9, 9: 9, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5, 17: 1, 18: 4, 19: 7, 20: 6,
    21: 2, 22: 5, 23: 4, 24: 5, 25: 4, 26: 5, 27: 1, 28: 5, 29: 3, 30: 3, 31: 3, 32: 4, 33: 2, 34: 2, 35: 4, 36: 2,
    37: 3, 38: 3, 39: 2, 40: 2, 41: 3, 42: 2, 43: 2, 44: 1, 45: 0, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 55: 2,
    57: 2, 60: 2, 61: 0, 64: 0, 65: 0, 66: 1, 68: 1, 69: 1, 71: 0, 72: 0, 74: 0, 75: 0, 80: 0, 81: 0,
}  # fmt: skip
KAFKA_4_1 = KAFKA_4_0 | {
    0: 13, 1: 18, 45: 1, 66: 2, 74: 1, 76: 1, 77: 1, 78: 1, 79: 1, 83: 0, 84: 0, 85: 0, 86: 0, 87: 0, 90: 0, 91: 0,
    92: 0,
}  # fmt: skip
KAFKA_4_2 = KAFKA_4_1 | {2: 11, 8: 10, 9: 10, 27: 2, 78: 2, 79: 2, 80: 1, 85: 1, 87: 1, 88: 0, 89: 0, 90: 1}
KAFKA_4_3 = KAFKA_4_2 | {35: 5}
RELEASES = {"4.3": KAFKA_4_3, "4.2": KAFKA_4_2, "4.1": KAFKA_4_1, "4.0": KAFKA_4_0}
"""The highest version of each API that a broker of the release tells a client, newest release first."""

BETWEEN_BROKERS = {4, 5, 6, 7, 56, 58, 67}
"""Keys of requests of Kafka's brokers and controllers only."""


def guess(served: dict[int, int], passed_over: set[int]) -> str | None:
    """The newest release that has nothing which is not served."""
    for release, apis in RELEASES.items():
        if all(served.get(key, -1) >= highest for key, highest in apis.items() if key not in passed_over):
            return release
    return None


def not_built() -> set[int]:
    """The API keys that docs/differences.md lists under "What is not built yet"."""
    (section,) = re.findall(r"^## What is not built yet\n(.*?)^## ", DIFFERENCES.read_text(), re.MULTILINE | re.DOTALL)
    keys: set[int] = set()
    for cell in re.findall(r"^\| [^|]+ \| ([^|]*) \|", section, re.MULTILINE):
        for first, last in re.findall(r"\b(\d+)(?: to (\d+))?\b", cell):
            keys.update(range(int(first), int(last or first) + 1))
    return keys


def test_clients_take_it_for_a_current_kafka_release(broker):
    served = {key: highest for key, (_, highest) in advertised(broker).items()}
    assert guess(served, BETWEEN_BROKERS | not_built()) == "4.3"


def test_the_list_of_apis_not_served_is_exact(broker):
    served = set(advertised(broker))
    assert not_built() == set(KAFKA_4_3) - served - BETWEEN_BROKERS


def test_no_api_is_served_that_no_kafka_release_has(broker):
    served = {key: highest for key, (_, highest) in advertised(broker).items()}
    assert all(KAFKA_4_3.get(key, -1) >= highest for key, highest in served.items())
