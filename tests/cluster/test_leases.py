"""Sessions that count, and when their silence counts."""

from __future__ import annotations

from ottla.cluster.leases import Leases, Pulse

LOOK = 0.1


def listening(*, until, pulses, since=0.0, leases=None):
    """Look every so often; who expired, and when."""
    leases = leases or Leases()
    leases.expired(since)
    found: dict[int, float] = {}
    now = since
    while now < until:
        now += LOOK
        leases.hear(pulses(now))
        for session in leases.expired(now):
            found.setdefault(session, round(now, 1))
    return found


def test_a_session_that_counts_lives():
    assert listening(until=60, pulses=lambda now: {1: Pulse(int(now), 3.0)}) == {}


def test_a_session_that_no_longer_counts_expires_after_its_lease():
    found = listening(until=20, pulses=lambda now: {1: Pulse(min(int(now), 5), 3.0), 2: Pulse(int(now), 3.0)})
    assert found.keys() == {1}
    assert 8.0 <= found[1] <= 8.3


def test_a_session_without_a_lease_never_expires():
    assert listening(until=600, pulses=lambda now: {1: Pulse(0, 0.0)}) == {}


def test_a_new_session_has_its_whole_lease():
    found = listening(until=20, pulses=lambda now: {1: Pulse(0, 3.0)} if now > 10 else {})
    assert 13.0 <= found[1] <= 13.3


def test_silence_while_the_observer_itself_was_stopped_hardly_counts():
    leases = Leases()
    leases.expired(0.0)
    leases.hear({1: Pulse(1, 3.0)})
    assert leases.expired(0.1) == {}
    assert leases.expired(1000.0) == {}, "it heard nobody, for it did not listen"
    assert listening(since=1000.0, until=1010, leases=leases, pulses=lambda now: {1: Pulse(1, 3.0)}).keys() == {1}


def test_a_session_that_ended_and_a_new_one_have_nothing_to_do_with_each_other():
    leases = Leases()
    leases.expired(0.0)
    leases.hear({1: Pulse(1, 3.0)})
    for second in range(1, 7):
        leases.expired(second / 2)
    leases.hear({})
    leases.hear({1: Pulse(1, 3.0)})
    assert leases.expired(3.5) == {}
