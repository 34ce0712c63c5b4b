"""The ISR manager: AlterPartition requests of the leaders and of the damaged replicas of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.cluster.image import Image
from ottla.cluster.model import PartitionState
from ottla.log.damage import Damage
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.replication.admission import AppendPolicy
from ottla.replication.isr import IsrManager
from ottla.replication.partition import Partition
from ottla.runtime.disk import RealDisk
from ottla.wire.schema.alter_partition import AlterPartitionResponse

NOW_MS = 1_790_000_000_000
ME, OTHER = 1, 2


class Ports:
    """The clock, the metadata, the configuration and the controller that an ISR manager sees."""

    def __init__(self, asked: Callable[[Any], object]) -> None:
        self.image = Image()
        self.current = self
        self.broker_id = ME
        self.broker_epoch = 7
        self.requests: list[Any] = []
        self._asked = asked

    def now(self) -> float:
        return 0.0

    def call_at(self, when: float, call: Callable[..., object], *args: object) -> None:
        pass

    async def ask_controller(self, request: Any, response: object, *, timeout_s: float) -> AlterPartitionResponse:
        self.requests.append(request)
        self._asked(request)
        return AlterPartitionResponse()


def partition(tmp_path, index: int, leader: int) -> Partition:
    log = PartitionLog.open(RealDisk(), str(tmp_path / f"t-{index}"), LogConfig(), now_ms=NOW_MS)
    made = Partition("t", bytes(16), index, ME, log, AppendPolicy())
    both = (ME, OTHER)
    made.become(PartitionState(replicas=both, leader=leader, leader_epoch=0, in_sync=both, partition_epoch=0))
    return made


def test_a_proposal_that_is_withdrawn_while_a_damaged_replica_leaves_is_not_sent(tmp_path, caplog):
    led, damaged = partition(tmp_path, 0, ME), partition(tmp_path, 1, OTHER)
    damaged.log.damage = Damage(damaged.log.path, ((0, 5),), -1, 5)
    ports = Ports(lambda _: led.leader.withdraw())
    manager = IsrManager(ports, ports, ports, ports, ports)  # type: ignore[arg-type]

    async def main() -> None:
        sending = asyncio.create_task(manager._send())
        assert not led.leader.propose(0.0, 1.0, lambda replica, epoch: True)
        assert led.leader.propose(1000.0, 1.0, lambda replica, epoch: True), "the follower has not fetched since"
        manager._wanted[led] = None
        manager.leave(damaged)
        for _ in range(20):
            await asyncio.sleep(0)
        sending.cancel()

    asyncio.run(main())
    asked = [each.partition_index for request in ports.requests for each in request.topics[0].partitions]
    assert set(asked) == {1}
    assert "failed" not in caplog.text
