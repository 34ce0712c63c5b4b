"""The marker queue: markers of a prepared transaction across leader epochs of the coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.cluster.image import BrokerRegistration, Image, PartitionState, TopicImage
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.marker_queue import MarkerQueue
from ottla.coordinator.transaction_machine import Markers, Prepared
from ottla.local.waiting import until
from ottla.net.outbound import OutboundConnection, PeerLost
from ottla.runtime.real import RealRuntime
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.wire.topic_partition import TopicPartition
from tests.harness.manual_clock import delayed_operations

SILENT, WILLING = 2, 3
TICKET, MARKERS = Prepared("x", 7, 0), Markers(True, (TopicPartition("t", 0),), 0)


class Peers:
    """Notes the coordinator epochs of what it is sent. One broker is silent, and at last gives up; one writes."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.gives_up = asyncio.Event()

    async def open(self, broker_id: int) -> OutboundConnection:
        raise AssertionError("markers go over shared connections")

    async def ask_controller(self, message: Any, answer: Any, *, timeout_s: float = 0.0) -> Any:
        raise AssertionError("the controller writes no markers")

    async def call(self, broker_id: int, message: Any, answer: Any, *, timeout_s: float = 0.0) -> Any:
        assert isinstance(message, WriteTxnMarkersRequest)
        (marker,) = message.markers
        self.sent.append((broker_id, marker.coordinator_epoch))
        if broker_id == SILENT:
            await self.gives_up.wait()
            raise PeerLost("no answer")
        partitions = [WritableTxnMarkerPartitionResult(partition_index=0)]
        topics = [WritableTxnMarkerTopicResult(name="t", partitions=partitions)]
        return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=topics)])


class Coordinator:
    epoch = 5
    completed = 0

    def coordinator_epoch(self, transactional_id: str) -> int:
        return self.epoch

    def ask(self, key: str, act: object) -> Promise:
        self.completed += 1
        return Promise(delayed_operations()[1])


def led_by(leader: int) -> Image:
    topic = TopicImage("t", b"t" * 16, (PartitionState((SILENT, WILLING), leader),), {})
    return Image(brokers={each: BrokerRegistration(each, each, ()) for each in (SILENT, WILLING)}, topics={"t": topic})


@pytest.mark.parametrize("leader_in_the_end", [SILENT, WILLING])
def test_markers_of_an_earlier_leader_epoch_are_not_sent_in_the_next(leader_in_the_end):
    async def scenario():
        image = led_by(SILENT)
        peers, coordinator = Peers(), Coordinator()
        queue = MarkerQueue(RealRuntime(), 1, lambda: image, peers, unused_writer(), coordinator)
        queue.add(TICKET, MARKERS, 5)
        await until(lambda: peers.sent)
        coordinator.epoch = 6  # loaded again, and found prepared
        image = led_by(WILLING)
        queue.add(TICKET, MARKERS, 6)
        await until(lambda: coordinator.completed)
        image = led_by(leader_in_the_end)
        peers.gives_up.set()
        await asyncio.sleep(0.25)  # longer than it takes to try again
        return peers.sent, coordinator.completed

    assert asyncio.run(scenario()) == ([(SILENT, 5), (WILLING, 6)], 1)


def unused_writer() -> Any:
    """No partition is led here."""
    return None
