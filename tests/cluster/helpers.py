"""A runtime and a cluster on the real disk, and text for reading an image in a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Endpoint, Image, PartitionState
from ottla.cluster.requests import RegistrationRequest, Rules
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.runtime.real import RealRuntime

T = TypeVar("T")


def run(act: Callable[[RealRuntime], Coroutine[object, object, T]]) -> T:
    """Run a test's coroutine with a runtime of its own; what is left running when it ends is an error."""

    async def main() -> T:
        runtime = RealRuntime()
        try:
            result = await act(runtime)
            left = [task.get_name() for task in runtime._tasks]
            assert not left, f"left running: {left}"
            return result
        finally:
            await runtime.close()

    return asyncio.run(main())


@asynccontextmanager
async def cluster_on(
    store: Path | str,
    runtime: RealRuntime,
    broker: int | None = 1,
    *,
    rules: Rules | None = None,
    rack: str | None = None,
    zookeeper: ZooKeeperOptions | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster on this store, or on the embedded one in this file; registered as a broker unless `broker` is None."""
    url = store if isinstance(store, str) else f"embedded:{store}"
    with TemporaryDirectory() as data_dir:
        cluster = await Cluster(url, runtime, data_dir=data_dir, rules=rules, zookeeper=zookeeper).open()
        try:
            if broker is not None:
                await cluster.register(registration(broker, rack))
            yield cluster
        finally:
            await cluster.close()


def registration(broker: int, rack: str | None = None) -> RegistrationRequest:
    return RegistrationRequest(broker, [Endpoint("PLAINTEXT", "127.0.0.1", 9092 + broker, "PLAINTEXT")], rack)


def state(partition: PartitionState) -> str:
    """leader@leader_epoch in_sync/replicas #partition_epoch"""
    in_sync, replicas = (",".join(map(str, each)) for each in (partition.in_sync, partition.replicas))
    return f"{partition.leader}@{partition.leader_epoch} {in_sync}/{replicas} #{partition.partition_epoch}"


def states(image: Image, topic: str) -> list[str]:
    return [state(partition) for partition in image.topics[topic].partitions]
