"""Fetch session handler: which partitions a request names, and how sessions end."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.wire.fetch_session import EPOCH_MAX, OUTSIDE, FetchSessionHandler


@pytest.fixture
def session() -> FetchSessionHandler[str, int]:
    opened: FetchSessionHandler[str, int] = FetchSessionHandler()
    assert opened.update("a", 1)
    assert opened.update("b", 1)
    assert opened.next() == (0, 0, {})
    opened.answered(ErrorCode.none, 7)
    return opened


def test_only_changed_partitions_are_named_again(session):
    assert not session.update("a", 1)
    assert session.update("a", 2)
    assert session.next() == (7, 1, {})
    session.resend("a")
    assert session.update("a", 2)
    assert not session.update("a", 2)


def test_a_removed_partition_is_named_once_and_may_come_back(session):
    session.forget("a")
    session.forget("never told")
    assert session.next() == (7, 1, {"a": 1})
    assert session.next() == (7, 2, {})
    session.forget("b")
    assert session.update("b", 1)
    assert session.next() == (7, 3, {})


@pytest.mark.parametrize(
    ("code", "session_id", "named"),
    [
        (ErrorCode.none, 0, 0),
        (ErrorCode.fetch_session_id_not_found, 0, 0),
        (ErrorCode.invalid_fetch_session_epoch, 0, 7),
        (ErrorCode.fetch_session_topic_id_error, 7, 7),
    ],
)
def test_a_lost_session_is_opened_again_and_the_old_one_closed(session, code, session_id, named):
    session.answered(code, session_id)
    assert session.update("a", 1)
    assert session.next() == (named, 0, {})


def test_epochs_begin_again_at_one(session):
    session.epoch = EPOCH_MAX
    assert session.next()[1] == EPOCH_MAX
    assert session.next()[1] == 1


def test_outside_a_session_the_epoch_stays():
    alone: FetchSessionHandler[str, int] = FetchSessionHandler(enabled=False)
    assert alone.next() == (0, OUTSIDE, {})
    alone.answered(ErrorCode.none, 5)
    assert alone.next() == (0, OUTSIDE, {})
