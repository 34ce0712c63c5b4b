"""Local cluster: broker processes on this machine with one store, embedded or a ZooKeeper ensemble."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from ottla.cluster.ensemble import HOST, Ensemble, free_ports
from ottla.errors import Fault
from ottla.local.processes import LOOK_SECONDS, STOP_SECONDS, BrokerProcess, State

REPLICAS: Final = 3
"""Kafka's replication factor for internal topics, if there are enough brokers."""


def settings_for(brokers: int) -> dict[str, str]:
    """Settings of a local cluster of this size: up to three replicas, of which one may be down, and groups that start
    without a rebalance delay."""
    copies = min(REPLICAS, brokers)
    needed = max(1, copies - 1)
    return {
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(needed),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(needed),
        "group.initial.rebalance.delay.ms": "0",
    }


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class LocalCluster:
    """Brokers 1 to n, or with the ids given. Launch them from a thread that stays: on Linux they end with it."""

    def __init__(
        self,
        directory: Path,
        brokers: int | Sequence[int] = REPLICAS,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        ensemble: Ensemble | None = None,
    ) -> None:
        """The first broker gets `port`, the others the ports after it, if they are free; 0: any port."""
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ensemble = ensemble
        ids = range(1, brokers + 1) if isinstance(brokers, int) else brokers
        self.settings = settings_for(len(ids)) | dict(settings or {})
        self.brokers: dict[int, BrokerProcess] = {}
        self.replaced_ports: dict[int, int] = {}
        """Brokers whose port was in use, and that port."""
        for index, broker_id in enumerate(ids):
            wanted = port + index if port else 0
            if wanted and not is_free(wanted):
                self.replaced_ports[broker_id] = wanted
                wanted = 0
            self.add(broker_id, port=wanted)

    @property
    def store(self) -> str:
        if self.ensemble is not None:
            return f"zookeeper:{self.ensemble.connect}/ottla"
        return f"embedded:{self.directory / 'store.db'}"

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers that serve, or of all if none does."""
        chosen = self.serving() or [broker for broker in self.brokers.values() if broker.port]
        return ",".join(broker.bootstrap for broker in chosen)

    @property
    def bootstrap_all(self) -> str:
        """Addresses of all brokers, whether they run or not."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def serving(self) -> list[BrokerProcess]:
        return [broker for broker in self.brokers.values() if broker.state is State.READY]

    def add(self, broker_id: int, *, port: int = 0, settings: Mapping[str, str] | None = None) -> BrokerProcess:
        """Add a broker without starting it. It keeps its port over restarts; 0: any port."""
        assert broker_id not in self.brokers
        own = self.settings | dict(settings or {})
        broker = BrokerProcess(
            self.directory / f"broker-{broker_id}",
            *("--id", str(broker_id), "--store", self.store),
            broker_id=broker_id,
            port=port or free_ports(1)[0],
            settings=own,
        )
        self.brokers[broker_id] = broker
        return broker

    def __getitem__(self, broker_id: int) -> BrokerProcess:
        if broker_id not in self.brokers:
            raise Fault(f"there is no broker {broker_id}: the brokers are {', '.join(map(str, self.brokers))}")
        return self.brokers[broker_id]

    def start(self) -> None:
        """Start every broker that does not run, and wait until all serve; if one fails, all are killed."""
        try:
            if self.ensemble is not None:
                self.ensemble.start()
            for broker in self.brokers.values():
                if not broker.running:
                    broker.launch()
            for broker in self.brokers.values():
                broker.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stop all brokers, then ZooKeeper; a broker that does not end in time is killed."""
        self.request_stop()
        deadline = time.monotonic() + seconds
        while not self.have_ended(deadline):
            time.sleep(LOOK_SECONDS)
        if self.ensemble is not None:
            self.ensemble.stop()

    def request_stop(self) -> None:
        for broker in self.brokers.values():
            broker.request_stop()

    def have_ended(self, deadline: float) -> bool:
        return not [broker for broker in self.brokers.values() if not broker.has_ended(deadline)]

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        if self.ensemble is not None:
            self.ensemble.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self.stop()
        else:
            self.kill()
