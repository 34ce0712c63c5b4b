"""The markers of a prepared transaction, when its coordinator is led by the same broker again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.transactions import _Outbox
from ottla.coordinator.transactions import Markers, Prepared
from ottla.local.waiting import until
from ottla.net.peer import PeerLost
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

SILENT, WILLING = 2, 3
TICKET, WHAT = Prepared("x", 7, 0), Markers(True, (("t", 0),), 0)


class Runtime:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now, self.call_at, self.call_soon = loop.time, loop.call_at, loop.call_soon

    def spawn(self, work, *, name):
        return asyncio.get_running_loop().create_task(work)


class Peers:
    """Notes the coordinator epochs of what it is sent. One broker is silent, and at last gives up; one writes."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.gives_up = asyncio.Event()

    async def call(self, broker_id: int, request: WriteTxnMarkersRequest, answer: type) -> WriteTxnMarkersResponse:
        (marker,) = request.markers
        self.sent.append((broker_id, marker.coordinator_epoch))
        if broker_id == SILENT:
            await self.gives_up.wait()
            raise PeerLost("no answer")
        partitions = [WritableTxnMarkerPartitionResult(partition_index=0)]
        topics = [WritableTxnMarkerTopicResult(name="t", partitions=partitions)]
        return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=topics)])


class Coordinator:
    reign = 5
    completed = 0

    def reign_over(self, transactional_id: str) -> int:
        return self.reign

    def ask(self, transactional_id: str, act):
        self.completed += 1
        return SimpleNamespace(tell=lambda answered: None)


@pytest.mark.parametrize("leader_in_the_end", [SILENT, WILLING])
def test_what_one_reign_left_over_is_not_sent_by_the_next(leader_in_the_end):
    async def scenario():
        led_by = {0: SILENT}
        image = SimpleNamespace(
            partition=lambda topic, index: SimpleNamespace(leader=led_by[index]), brokers={SILENT, WILLING}
        )
        peers, coordinator = Peers(), Coordinator()
        broker: Any = SimpleNamespace(id=1, runtime=Runtime(), image=image, peers=peers)
        outbox = _Outbox(broker, cast("Any", coordinator))
        outbox.add(TICKET, WHAT, reign=5)
        await until(lambda: peers.sent)
        coordinator.reign = 6  # loaded again, and found prepared
        led_by[0] = WILLING
        outbox.add(TICKET, WHAT, reign=6)
        await until(lambda: coordinator.completed)
        led_by[0] = leader_in_the_end
        peers.gives_up.set()
        await asyncio.sleep(0.25)  # longer than it takes to try again
        return peers.sent, coordinator.completed

    assert asyncio.run(scenario()) == ([(SILENT, 5), (WILLING, 6)], 1)
