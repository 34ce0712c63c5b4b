"""Producer ids, from a block of this broker; the next block is allocated when it is used up."""

from __future__ import annotations

from ottla.cluster.cluster import Cluster


class ProducerIds:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._block = iter(range(0))

    async def take(self) -> int:
        while True:
            found = next(self._block, None)
            if found is not None:
                return found
            self._block = iter(await self._cluster.allocate_producer_ids())
