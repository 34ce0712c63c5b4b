"""Session expiry: a broker leads nothing until it has registered again."""

from __future__ import annotations

import sqlite3

import pytest

from ottla.cluster.requests import TopicSpec
from ottla.errors import ErrorCode, Refused
from ottla.local.waiting import until
from tests.harness.in_process import brokers, run


def test_a_broker_with_an_expired_session_leads_nothing_until_it_registers_again(tmp_path):
    async def test():
        async with brokers(tmp_path, 1) as (broker,):
            await broker.cluster.create_topics([TopicSpec("orders", 1, 1)])
            partition = broker.replica_manager.find("orders", 0)
            await until(lambda: partition.leads)
            epoch = partition.leader_epoch
            seen = []
            broker.cluster.on_session_expired(lambda: seen.append((partition.leads, refusal(partition))))
            with sqlite3.connect(tmp_path / "store.db") as db:  # as others do with one they hold for dead
                db.execute("DELETE FROM node WHERE session IS NOT NULL")
                db.execute("DELETE FROM session")
            db.close()
            await until(lambda: seen)
            assert seen == [(False, ErrorCode.not_leader_or_follower)]
            await until(lambda: partition.leads)
            assert partition.leader_epoch > epoch

    run(test)


def refusal(partition):
    with pytest.raises(Refused) as caught:
        partition.check_leads()
    return caught.value.code
