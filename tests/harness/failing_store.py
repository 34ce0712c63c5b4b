"""A store that can be out of reach: `failing:PATH`, an embedded store until a test says so."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.broker import Broker
from ottla.cluster.cluster import STORES
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.store import Node, Op, SessionState, Store
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.errors import Fault
from ottla.runtime import Runtime


class FailingStore(EmbeddedStore):
    out_of_reach = False

    def _check(self) -> None:
        if self.out_of_reach:
            raise Fault("the store is out of reach")

    async def read(self, path: str) -> Node | None:
        self._check()
        return await super().read(path)

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        self._check()
        return await super().commit(ops)

    def lose_session(self) -> None:
        """It is out of reach, and the session has expired."""
        self.out_of_reach = True
        self._become(SessionState.lost)


async def _open(where: str, runtime: Runtime, data_dir: str, options: ZooKeeperOptions | None) -> Store:
    return await FailingStore.open(where, runtime)


STORES["failing"] = _open


def store_of(broker: Broker) -> FailingStore:
    store = broker.cluster._view.store
    assert isinstance(store, FailingStore)
    return store
