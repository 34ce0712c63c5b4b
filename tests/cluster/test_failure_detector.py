"""The failure detector of the embedded store: when the silence of a session counts."""

from __future__ import annotations

from ottla.cluster.failure_detector import FailureDetector, Heartbeat

CHECK_SECONDS = 0.1


def observed(*, until, heartbeats, since=0.0, detector=None):
    """Which sessions expired, and when."""
    detector = detector or FailureDetector()
    detector.expired(since)
    found: dict[int, float] = {}
    now = since
    while now < until:
        now += CHECK_SECONDS
        detector.observe(heartbeats(now))
        for session in detector.expired(now):
            found.setdefault(session, round(now, 1))
    return found


def test_a_session_that_sends_heartbeats_lives():
    assert observed(until=60, heartbeats=lambda now: {1: Heartbeat(int(now), 3.0)}) == {}


def test_a_session_without_heartbeats_expires_after_its_lease():
    def heartbeats(now):
        return {1: Heartbeat(min(int(now), 5), 3.0), 2: Heartbeat(int(now), 3.0)}

    found = observed(until=20, heartbeats=heartbeats)
    assert found.keys() == {1}
    assert 8.0 <= found[1] <= 8.3


def test_a_session_without_a_lease_never_expires():
    assert observed(until=600, heartbeats=lambda now: {1: Heartbeat(0, 0.0)}) == {}


def test_a_new_session_has_its_whole_lease():
    found = observed(until=20, heartbeats=lambda now: {1: Heartbeat(0, 3.0)} if now > 10 else {})
    assert 13.0 <= found[1] <= 13.3


def test_time_in_which_the_observer_was_paused_does_not_expire_a_session():
    detector = FailureDetector()
    detector.expired(0.0)
    detector.observe({1: Heartbeat(1, 3.0)})
    assert detector.expired(0.1) == {}
    assert detector.expired(1000.0) == {}, "it did not run in between"
    found = observed(since=1000.0, until=1010, detector=detector, heartbeats=lambda now: {1: Heartbeat(1, 3.0)})
    assert found.keys() == {1}


def test_a_new_session_with_the_id_of_an_ended_one_begins_without_silence():
    detector = FailureDetector()
    detector.expired(0.0)
    detector.observe({1: Heartbeat(1, 3.0)})
    for second in range(1, 7):
        detector.expired(second / 2)
    detector.observe({})
    detector.observe({1: Heartbeat(1, 3.0)})
    assert detector.expired(3.5) == {}
