"""Faults that a test injects: they tell when they never fired, and a mistyped name is told with the right one."""

from __future__ import annotations

import warnings

import pytest

from ottla.testing.faults import Faults, UnusedFault


def test_a_fault_that_never_fired_is_told():
    faults = Faults()
    faults.add("Produce", "NOT_LEADER_OR_FOLLOWER")
    with pytest.warns(UnusedFault, match=r"inject\('Produce', error='not_leader_or_follower'\) never fired"):
        faults.clear()
    with pytest.warns(UnusedFault, match="delay_ms=5"), faults.add("fetch", delay_ms=5, times=None):
        pass


def test_a_fault_that_fired_is_not_told():
    faults = Faults()
    faults.add("Fetch", delay_ms=5, times=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert faults.meet(memoryview(b"\0\1\0\4" + bytes(10))) is not None
        faults.clear()


@pytest.mark.parametrize(
    ("api", "error", "words"),
    [
        ("Prodcue", "not_leader_or_follower", "did you mean 'Produce'"),
        ("offset_comit", "not_leader_or_follower", "did you mean 'OffsetCommit'"),
        ("Fetch", "not_leader_or_folower", "did you mean 'not_leader_or_follower'"),
        ("WriteTxnMarkers", "not_leader_or_follower", "not served to clients"),
        ("DescribeQuorum", "not_leader_or_follower", "DescribeQuorum is an API of Kafka that Ottla does not serve"),
        ("Telepathy", "not_leader_or_follower", "there is no API 'Telepathy'"),
    ],
)
def test_what_cannot_be_injected_is_refused(api, error, words):
    with pytest.raises(ValueError, match=words):
        Faults().add(api, error)
