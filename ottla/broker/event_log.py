"""The broker's log for operators: start, changes of the cluster, stop.

Changes of the cluster are logged by the controller, so that they are in one log; other brokers log them at level DEBUG.
Changes at the same time are logged together (`ottla.cluster.journal`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

from ottla import __version__, logs
from ottla.cluster import changes as c
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image
from ottla.cluster.journal import Journal, count
from ottla.config.broker_config import BrokerConfig
from ottla.config.listeners import Listener
from ottla.replication.replicas import Replicas
from ottla.runtime import Handle, Runtime

log = logging.getLogger("ottla.broker")
cluster_log = logging.getLogger("ottla.cluster")

GATHER_SECONDS: Final = 0.2
"""How long changes are gathered before they are logged. A failover of thousands of partitions takes many commits."""


def _absolute(store: str) -> str:
    kind, _, where = store.partition(":")
    return f"{kind}:{os.path.abspath(where)}" if kind == "embedded" and where else store


class EventLog:
    def __init__(self, runtime: Runtime, config: BrokerConfig, cluster: Cluster, replicas: Replicas) -> None:
        """`config`: as at the start of the broker."""
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._replicas = replicas
        self._journal = Journal(lambda topic: cluster.rules.min_in_sync(topic.configs))
        self._timer: Handle | None = None

    # The start and the stop.

    def starting(self) -> None:
        config = self._config
        log.info(
            "Ottla %s, broker %d is starting: data directory %s, store %s",
            __version__, config.broker_id, os.path.abspath(config.data_dir), _absolute(config.ottla_store),
        )  # fmt: skip

    def joined(self) -> None:
        image = self._cluster.image
        log.info(
            "cluster id %s: %s with %s, brokers alive: %s",
            image.cluster_id, count(len(image.topics), "topic"), count(image.partition_count(), "partition"),
            ", ".join(map(str, sorted(image.brokers))) or "none",
        )  # fmt: skip

    def recovered(self, seconds: float, *, clean: bool) -> None:
        """The result of opening the logs. Each damaged log has a line of its own."""
        found = [partition.recovery for partition in self._replicas]
        checked = [each for each in found if not each.clean]
        if not found:
            log.info("no logs here yet")
        elif clean and not checked:
            log.info("the last stop was clean: %s opened in %.1f s", count(len(found), "log"), seconds)
        else:
            log.info(
                "the last stop was %s: %s opened in %.1f s, %d checked, %d bytes read, %d bytes truncated",
                "clean" if clean else "not clean", count(len(found), "log"), seconds, len(checked),
                sum(each.checked_bytes for each in checked), sum(each.cut_bytes for each in checked),
            )  # fmt: skip

    def listening(self, listeners: Sequence[Listener]) -> None:
        addresses = [f"{each.name}://{each.address}" for each in listeners]
        log.info("broker %d is listening on %s", self._config.broker_id, ", ".join(addresses))

    def stopped(self, *, clean: bool) -> None:
        logs.write_counts()  # this is the last line
        if clean:
            log.info("broker %d has stopped, its logs are closed cleanly", self._config.broker_id)
        else:
            log.warning("broker %d has stopped; not all logs could be closed: they are checked at the next start",
                        self._config.broker_id)  # fmt: skip

    # The cluster.

    def image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        self._journal.note(old, change)
        if self._timer is None:
            self._timer = self._runtime.call_at(self._runtime.now() + GATHER_SECONDS, self.flush)

    def flush(self) -> None:
        self.close()
        image = self._cluster.image
        controls = image.controller_id == self._config.broker_id
        for event in self._journal.events(image):
            # The text is the template, too: lines of the journal differ (see `ottla.logs`).
            cluster_log.log(event.level if controls else logging.DEBUG, event.text)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
