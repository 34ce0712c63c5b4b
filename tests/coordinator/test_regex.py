"""Regular expressions of subscriptions: RE2, whole topic names."""

from __future__ import annotations

import time

import pytest

from ottla.coordinator.regex import compile_regex, matching
from ottla.errors import ErrorCode, Refused

NAMES = ["orders", "orders-eu", "old-orders", "payments", "a.b"]


@pytest.mark.parametrize(
    ("regex", "found"),
    [
        ("orders", {"orders"}),
        ("^orders.*", {"orders", "orders-eu"}),
        (".*orders", {"orders", "old-orders"}),
        ("orders|payments", {"orders", "payments"}),
        ("a.b", {"a.b"}),
        (r"\pL+", {"orders", "payments"}),
        ("", set()),
        (".*", set(NAMES)),
    ],
)
def test_an_expression_matches_whole_topic_names(regex: str, found: set[str]):
    assert matching(regex, NAMES) == found


@pytest.mark.parametrize("regex", ["(orders", "[", "a**", r"(?=look)ahead", r"(a)\1", "x" * 40_000])
def test_an_invalid_re2_expression_is_refused(regex: str):
    with pytest.raises(Refused) as refused:
        compile_regex(regex)
    assert refused.value.code is ErrorCode.invalid_regular_expression
    assert refused.value.message


def test_an_expression_with_exponential_backtracking_is_fast():
    began = time.monotonic()
    assert matching("(a|a)*(a|a)*(a|a)*b", ["a" * 240]) == frozenset()
    assert time.monotonic() - began < 1
