"""Metrics of a broker for Prometheus, with the names of kafka_exporter where it has them.

Each sample is reported by one broker, so that sums over all brokers are right: a partition by its leader, or by the
controller if it has none; a group by its coordinator; the size of a log by each broker with a replica. Metadata
(`kafka_brokers`, `kafka_topic_partitions`) is reported by every broker: differences are worth seeing.

A page may have a hundred thousand lines. It is made in slices, between which the loop serves requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from ottla import __version__
from ottla.broker.context import Context
from ottla.broker.meter import Meter, RequestMeters
from ottla.broker.prometheus import Families, labels
from ottla.cluster.image import Image, PartitionState
from ottla.cluster.model import NO_BROKER
from ottla.errors import ErrorCode, Fault
from ottla.net.server import Server
from ottla.replication.partition import Partition as Replica
from ottla.runtime import process
from ottla.wire.error_codes import ErrorCounts
from ottla.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

SLICE: Final = 200
"""Partitions or offsets in one loop iteration: about two milliseconds."""
ASK_SECONDS_MAX: Final = 2.0
"""How long a page waits for the high watermarks of another broker."""
LATEST: Final = -1
NO_REPLICA: Final = -1

Ends = dict[tuple[str, int], int]


class Metrics:
    """Makes pages. `requests`, `errors` (by API) and `loop_lag` are updated elsewhere."""

    def __init__(
        self,
        context: Context,
        server: Server,
        requests: RequestMeters,
        errors: Mapping[str, ErrorCounts],
        loop_lag: Meter,
    ) -> None:
        self._context = context
        self._server = server
        self._requests = requests
        self._errors = errors
        self._loop_lag = loop_lag

    async def page(self, *, serving: bool) -> bytes:
        families = Families()
        self._process(families)
        self._traffic(families)
        if serving:
            self._cluster(families)
            for gather in (self._partitions, self._logs):
                for _ in gather(families):
                    await asyncio.sleep(0)
            await self._groups(families)
            self._scrub(families)
            await self._storage(families)
        return families.encoded()

    # This process.

    def _process(self, families: Families) -> None:
        build = families.gauge("ottla_build_info", "The version of this broker.")
        build.add(1, labels(version=__version__))
        memory = families.gauge("process_resident_memory_bytes", "Memory in use.")
        memory.add(process.resident_bytes())
        families.counter("process_cpu_seconds_total", "Processor time used.").add(process.cpu_seconds())
        families.gauge("process_open_fds", "Open file descriptors.").add(process.open_files())
        lag = families.histogram("ottla_loop_lag_seconds", "How late the loop comes to what it should do by now.")
        lag.add_histogram(self._loop_lag.counts(), self._loop_lag.count, self._loop_lag.seconds)

    def _traffic(self, families: Families) -> None:
        server = self._server
        families.counter("ottla_received_bytes_total", "Bytes received.").add(server.received_bytes)
        families.counter("ottla_sent_bytes_total", "Bytes of answers.").add(server.write_coalescing.sent_bytes)
        unread = families.gauge("ottla_unread_response_bytes", "Of large answers: loaded, and not taken by clients.")
        unread.add(server.response_memory.held_bytes)
        connections = families.gauge("ottla_connections", "Open connections, of clients and of other brokers.")
        connections.add(len(server.connections), labels(of="clients"))
        connections.add(len(server.inter_broker_connections), labels(of="brokers"))
        took = families.histogram(
            "ottla_request_seconds", "From a request's arrival to its answer; a wait for records or replicas counts."
        )
        for api, meter in self._requests.by_api.items():
            if count := meter.count:
                took.add_histogram(meter.counts(), count, meter.seconds, api=api)
        errors = families.counter("ottla_errors_total", "Errors that requests were answered with, by Kafka's names.")
        for api, counts in self._errors.items():
            for code, count in counts.items():
                errors.add(count, labels(api=api, error=error_name(code)))
        self._topics(families)

    def _topics(self, families: Families) -> None:
        for name, about in (
            ("bytes_in", "Bytes of batches that producers wrote to a topic."),
            ("records_in", "Records that producers wrote to a topic."),
            ("bytes_out", "Bytes of batches that consumers fetched from a topic."),
            ("records_out", "Offsets that consumers fetched from a topic: records, and the holes of compaction."),
        ):
            family = families.counter(f"ottla_topic_{name}_total", about)
            for topic, traffic in self._context.traffic.series():
                family.add(getattr(traffic, name), labels(topic=topic))

    # The cluster.

    def _cluster(self, families: Families) -> None:
        context, image = self._context, self._context.image
        families.gauge("kafka_brokers", "Live brokers in the cluster.").add(len(image.brokers))
        known = families.gauge("kafka_broker_info", "A live broker and where it is.")
        for live in image.brokers.values():
            first = live.endpoints[0]
            known.add(1, labels(id=live.id, address=f"{first.host}:{first.port}"))
        controls = families.gauge("ottla_controller", "1 on the broker that is controller.")
        controls.add(int(context.cluster.is_controller))
        families.gauge("ottla_controller_epoch", "How often a controller was elected.").add(image.controller_epoch)
        has_session_lease = families.gauge(
            "ottla_store_session_alive", "1 while the broker's session in the metadata store is alive."
        )
        has_session_lease.add(int(context.cluster.has_session_lease))
        registration = context.cluster.registration
        if registration is not None:
            families.gauge("ottla_broker_epoch", "The registration of this broker.").add(registration.epoch)

    def _partitions(self, families: Families) -> Iterator[None]:
        image = self._context.image
        partitions = families.gauge("kafka_topic_partitions", "Partitions of a topic.")
        count = 0
        for topic in image.topics.values():
            partitions.add(len(topic.partitions), labels(topic=topic.name))
            for index, partition in enumerate(topic.partitions):
                if self._reports(image, partition):
                    self._partition(families, topic.name, index, partition)
                count += 1
                if count % SLICE == 0:
                    yield

    def _reports(self, image: Image, partition: PartitionState) -> bool:
        if partition.leader == NO_BROKER:
            return image.controller_id == self._context.id
        return partition.leader == self._context.id

    def _partition(self, families: Families, topic: str, index: int, partition: PartitionState) -> None:
        of = f'{{topic="{topic}",partition="{index}"}}'
        gauge = families.gauge
        gauge("kafka_topic_partition_leader", "The broker that leads; -1: no leader.").add(partition.leader, of)
        preferred = int(partition.leader == partition.replicas[0])
        gauge("kafka_topic_partition_leader_is_preferred", "1 if its first replica leads.").add(preferred, of)
        gauge("kafka_topic_partition_replicas", "Replicas.").add(len(partition.replicas), of)
        gauge("kafka_topic_partition_in_sync_replica", "Replicas in sync.").add(len(partition.in_sync), of)
        short = int(len(partition.in_sync) < len(partition.replicas))
        gauge("kafka_topic_partition_under_replicated_partition", "1 if a replica is not in sync.").add(short, of)
        replica = self._context.replicas.get(topic, index)
        if replica is None or not replica.leads:
            return
        enough = int(not replica.enough_in_sync)
        gauge("ottla_partition_under_min_in_sync", "1 if acks=all is refused for want of replicas.").add(enough, of)
        gauge("kafka_topic_partition_current_offset", "The next offset of what is committed.").add(
            replica.high_watermark, of
        )
        gauge("kafka_topic_partition_oldest_offset", "The first offset.").add(replica.log_start, of)

    def _logs(self, families: Families) -> Iterator[None]:
        sizes = families.gauge("ottla_log_bytes", "Bytes of this broker's copy of a partition.")
        leads = 0
        count = 0
        replicas: list[Replica] = list(self._context.replicas)
        for replica in replicas:
            leads += replica.leads
            sizes.add(replica.size_bytes, f'{{topic="{replica.topic}",partition="{replica.index}"}}')
            count += 1
            if count % SLICE == 0:
                yield
        held = families.gauge("ottla_replicas", "Partitions that this broker leads, and that it follows.")
        held.add(leads, labels(role="leader"))
        held.add(count - leads, labels(role="follower"))

    def _scrub(self, families: Families) -> None:
        scrubber = self._context.scrubber
        families.gauge("ottla_scrub_progress_ratio", "How much of the pass under way was read.").add(scrubber.ratio)
        families.counter("ottla_scrub_passes_total", "Passes that were finished.").add(scrubber.passes)
        last = families.gauge("ottla_scrub_last_pass_timestamp_seconds", "When the last full pass was over; 0: never.")
        last.add(max(scrubber.progress.finished_ms, 0) / 1000)
        families.counter("ottla_scrub_read_bytes_total", "Bytes of segments that were checked.").add(
            scrubber.read_bytes
        )
        found = families.counter("ottla_scrub_found_total", "What was wrong: batches, derived files, unreadable files.")
        for kind in ("damaged", "rebuilt", "unreadable"):
            found.add(getattr(scrubber, kind), labels(kind=kind))
        damaged = families.gauge("ottla_damaged_partitions", "Replicas here that lack offsets they should have.")
        damaged.add(sum(replica.is_damaged for replica in self._context.replicas))

    async def _storage(self, families: Families) -> None:
        context = self._context
        try:
            total, free = await context.runtime.offload(context.runtime.disk.usage, context.data_dir)
        except Fault:
            return
        families.gauge("ottla_storage_bytes", "Size of the file system of the data directory.").add(total)
        families.gauge("ottla_storage_free_bytes", "What is free of it.").add(free)

    # Groups.

    async def _groups(self, families: Families) -> None:
        members = families.gauge("kafka_consumergroup_members", "Members of a group.")
        current = families.gauge("kafka_consumergroup_current_offset", "The offset a group has committed.")
        lag = families.gauge("kafka_consumergroup_lag", "Records that a group has not read yet.")
        lag_sum = families.gauge("kafka_consumergroup_lag_sum", "Records of a topic that a group has not read yet.")
        stats = [each for shard in self._context.groups.active() for each in shard.machine.stats()]
        await asyncio.sleep(0)
        ends = await self._ends({(topic, index) for _, _, commits in stats for topic, index, _ in commits})
        count = 0
        for group_id, member_count, commits in stats:
            members.add(member_count, labels(consumergroup=group_id))
            behind: dict[str, int] = {}
            for topic, index, offset in commits:
                of = labels(consumergroup=group_id, topic=topic, partition=index)
                current.add(offset, of)
                if (end := ends.get((topic, index))) is not None:
                    lag.add(max(0, end - offset), of)
                    behind[topic] = behind.get(topic, 0) + max(0, end - offset)
                count += 1
                if count % SLICE == 0:
                    await asyncio.sleep(0)
            for topic, records in behind.items():
                lag_sum.add(records, labels(consumergroup=group_id, topic=topic))

    async def _ends(self, wanted: set[tuple[str, int]]) -> Ends:
        """The high watermarks of these partitions; for those led elsewhere their leaders are asked."""
        ends: Ends = {}
        elsewhere: dict[int, dict[str, list[int]]] = {}
        for topic, index in sorted(wanted):
            replica = self._context.replicas.get(topic, index)
            if replica is not None and replica.leads:
                ends[topic, index] = replica.high_watermark
            elif (leader := self._context.replica_manager.leader_of(topic, index)[0]) not in (
                NO_BROKER,
                self._context.id,
            ):
                elsewhere.setdefault(leader, {}).setdefault(topic, []).append(index)
        if elsewhere:
            for found in await asyncio.gather(*(self._ask(leader, topics) for leader, topics in elsewhere.items())):
                ends.update(found)
        return ends

    async def _ask(self, leader: int, wanted: dict[str, list[int]]) -> Ends:
        topics = [
            ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsPartition(partition_index=i, timestamp=LATEST) for i in indexes]
            )
            for topic, indexes in wanted.items()
        ]
        message = ListOffsetsRequest(replica_id=NO_REPLICA, topics=topics)
        try:
            answer = await self._context.peers.call(leader, message, ListOffsetsResponse, timeout_s=ASK_SECONDS_MAX)
        except Fault:
            return {}  # unknown lags are left out
        return {
            (topic.name, found.partition_index): found.offset
            for topic in answer.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.none
        }


def error_name(code: int) -> str:
    """Kafka's name."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
