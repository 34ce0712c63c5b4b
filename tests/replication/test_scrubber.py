"""The scrub counts what it has read, and only that."""

from __future__ import annotations

from ottla.cluster.requests import TopicSpec
from ottla.local.waiting import until
from ottla.replication import scrubber
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import batch


def test_a_pass_without_anything_to_read_is_none_and_the_next_look_comes_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(scrubber, "LOOK_SECONDS", 0.05)
    looks = []

    async def test():
        async with brokers(tmp_path, 1, ottla_scrub_interval_ms="2000") as (broker,):
            await broker.cluster.create_topics([TopicSpec("t", assignments=[(0, [1])])])
            await until(lambda: broker.replicas.get("t", 0))
            partition = broker.replica_manager.find("t", 0)
            partition.append(batch(b"a", timestamp=broker.runtime.wall_ms()), 1, broker.runtime.wall_ms())
            scrub, count = broker.scrubber, broker.scrubber._count

            async def counted():
                looks.append(1)
                await count()

            scrub._count = counted  # type: ignore[method-assign]
            await until(lambda: len(looks) > 3)
            assert partition.log.recovery_point == 0, "nothing was synced yet"
            assert (scrub.passes, scrub.read_bytes, scrub.progress.finished_ms) == (0, 0, -1)
            assert "passes=0 finished_ms=-1" in scrub.status()
            partition.log.sync()
            await until(lambda: scrub.passes)
            assert scrub.read_bytes > 0
            assert scrub.progress.finished_ms > 0

    run(test)
