"""Catalogue of drills, in the order of the lecture: what each shows, and what it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from ottla.drills import clients, commitment, delivery, discovery, failures, groups, partitions, zookeepers
from ottla.drills.stage import Stage
from ottla.drills.texts import Quote


class Drill(NamedTuple):
    """`zookeepers`: size of the ensemble; with 0 the brokers have an embedded store. `reusable`: the drill leaves the
    cluster unchanged except for its own topics and groups, so that the next drill can use it."""

    title: str
    play: Callable[[Stage], Awaitable[None]]
    quote: Quote
    term: str
    """Kafka's term, with its settings."""
    brokers: tuple[int, ...] = (1, 2, 3)
    zookeepers: int = 0
    settings: Mapping[str, str] = {}
    reusable: bool = False


FOUR: Final = (1, 2, 3, 4)
CALM: Final = {
    "replica.lag.time.max.ms": "30000",
    "broker.session.timeout.ms": "18000",
    "zookeeper.session.timeout.ms": "18000",
    "group.min.session.timeout.ms": "1000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
"""Timeouts for drills without a failover: a broker that is paused for a moment stays in sync and keeps its leaders."""
on_shared_cluster: Final = partial(Drill, settings=CALM, reusable=True)
MOVES_LEADERS: Final = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "1"}

TOPICS: Final = {
    "offsets": on_shared_cluster(
        "A topic has partitions, and each partition has its own offsets.",
        partitions.offsets,
        Quote(
            3,
            "each specific message in a Kafka cluster can be uniquely identified by a tuple consisting of the "
            "message's topic, the partition, and the offset within the partition",
            (1, 4, 5, 7, 8, 9),
        ),
        "offset, log end offset",
    ),
    "two-readers": on_shared_cluster(
        "A partition is a log: each consumer reads at its own position.",
        partitions.two_readers,
        Quote(
            3,
            "a data source is writing to the log and consumers A and B are reading from the log at different offsets",
            (6, 10, 53),
        ),
        "position, seek",
    ),
    "order": on_shared_cluster(
        "Records are ordered within a partition, not across a topic.",
        partitions.order,
        Quote(
            1,
            "Message sent to a topic partition will be appended to the commit log in the order they are sent.",
            (19, 31, 32, 35, 36, 77),
        ),
        "ordering guarantee per partition",
    ),
    "keys-and-partitions": on_shared_cluster(
        "The producer chooses the partition: by key, round robin, by priority, or explicitly.",
        partitions.keys_and_partitions,
        Quote(
            4,
            "Kafka default partitioner for Java uses hash of keys to choose partitions, or a round-robin strategy if"
            " no key",
            (54, 55, 56),
        ),
        "partitioner (murmur2 of the key)",
    ),
    "log-on-disk": on_shared_cluster(
        "Records are stored in files, and stay there after they have been read.",
        partitions.log_on_disk,
        Quote(
            2,
            "even after consumers consume the messages the records still stay within Kafka partitions for a "
            "configurable period of time",
            (11, 51, 52, 70),
        ),
        "segment (segment.bytes), retention (retention.ms), auto.offset.reset",
    ),
}

REPLICATION: Final = {
    "replicas-spread": Drill(
        "Replicas are spread evenly over brokers; followers fetch from the leader.",
        clients.replicas_spread,
        Quote(
            2,
            "with a topic with four partitions managed by four brokers and a replication factor of two each "
            "partition would be replicated to two different brokers",
            (12, 15, 18, 20, 21, 22, 23, 24),
        ),
        "replication factor, leader, follower",
        (101, 102, 103, 104),
    ),
    "replica-reads": on_shared_cluster(
        "A consumer may read from a near follower that is in sync.",
        discovery.replica_reads,
        Quote(1, "reads can happen from any partition, whether it's blue or red", (27,)),
        "follower fetching (client.rack, replica.selector.class)",
    ),
    "high-watermark": on_shared_cluster(
        "A consumer does not see records that the followers do not have yet.",
        commitment.high_watermark,
        Quote(4, "Consumer only reads up to “high watermark”. Consumer can't read un-replicated data", (33, 37, 38)),
        "high watermark, log end offset; a record below the high watermark is committed",
    ),
    "acks": Drill(
        "What an acknowledgement guarantees: acks=0, acks=1, acks=all.",
        commitment.acks,
        Quote(5, "acks=1 => wait for leader acknowledgment (default)(limited data loss)", (57,)),
        "acks",
        settings=CALM,
    ),
    "add-a-broker": Drill(
        "A new broker takes its share of replicas, and producers see no error.",
        clients.add_a_broker,
        Quote(
            2,
            "by adding more Kafka brokers we can realize that potential parallelism up to the number of partitions "
            "completely transparently to the publishers",
            (16, 17),
        ),
        "partition reassignment",
        settings=MOVES_LEADERS,
    ),
}

FAILURES: Final = {
    "replica-fails": Drill(
        "One replica fails: it falls out of sync, and writes continue.",
        failures.replica_fails,
        Quote(
            1,
            "Writes will no longer reach the failed replica and it will no longer receive messages, failing further "
            "and further out of sync with the leader.",
            (28, 39),
        ),
        "in-sync replicas (ISR), out-of-sync replica",
    ),
    "two-replicas-fail": Drill(
        "A second replica fails: only the leader is in sync.",
        failures.two_replicas_fail,
        Quote(
            1,
            "we still have one in sync replica, even though that replica happens to be the leader of this partition",
            (29, 30, 34, 40),
        ),
        "ISR of one, under-replicated partition",
    ),
    "leader-fails-last": Drill(
        "Then the leader fails: no broker accepts writes.",
        failures.leader_fails_last,
        Quote(1, "if the leader also dies, we're left with three dead replicas", (41,)),
        "offline partition (LEADER_NOT_AVAILABLE)",
        FOUR,
    ),
    "recover-clean": Drill(
        "Recovery A: wait for the leader to come back. Nothing is lost.",
        failures.recover_clean,
        Quote(1, "The first scenario is to wait until the leader is back before continuing.", (13, 42)),
        "clean leader election (unclean.leader.election.enable=false): consistency before availability",
        FOUR,
    ),
    "recover-unclean": Drill(
        "Recovery B: elect the first replica that comes back. Records that it lacks are lost.",
        failures.recover_unclean,
        Quote(
            1,
            "all data written between the time where this broker went down and when it was elected the leader will "
            "be lost",
            (13, 43),
        ),
        "unclean leader election (unclean.leader.election.enable=true): availability before consistency",
        FOUR,
    ),
    "start-from-zero": Drill(
        "The extreme of recovery B: elect an empty replica. All records are lost.",
        failures.start_from_zero,
        Quote(1, "wipe the whole state that existed in the commit log and effectively start from zero", (44,)),
        "unclean leader election, log truncation",
        FOUR,
    ),
    "eligible-leader": Drill(
        "A replica that is out of sync may lead if it has every acknowledged record.",
        failures.eligible_leader,
        Quote(
            1, "Any committed messages will not be lost, as long as at least one in sync replica is alive.", (34, 42)
        ),
        "eligible leader replicas (ELR, KIP-966), min.insync.replicas",
        FOUR,
    ),
    "no-replication": Drill(
        "Without replication, a lost disk is a lost partition.",
        failures.no_replication,
        Quote(2, "if one broker instance fails we can lose the entire partition with all its data", (14, 29, 48)),
        "replication factor 1",
    ),
    "producer-recovers": Drill(
        "A leader dies: the producer finds the new leader.",
        clients.producer_recovers,
        Quote(5, "if broker fail , producers auto recover", (2, 26, 45)),
        "leader election, metadata refresh, retries of an idempotent producer",
    ),
    "consumer-recovers": Drill(
        "Leaders die: the consumer misses nothing.",
        clients.consumer_recovers,
        Quote(5, "in case broker fail, consumers khow how to recover", (46,)),
        "leader election, metadata refresh",
    ),
    "fast-catch-up": Drill(
        "A broker comes back and catches up fast.",
        clients.fast_catch_up,
        Quote(
            2,
            "fail brokers can recover and resume their operation almost instantaneously and catch up with the rest "
            "of the cluster very fast",
            (47,),
        ),
        "log recovery, follower fetch",
    ),
}

GROUPS: Final = {
    "two-groups": on_shared_cluster(
        "Each group has its own offset: A at 6, B at 9, the producer at 12.",
        groups.two_groups,
        Quote(
            4,
            "Producer writing to offset 12 of partition while... consumer Group A is reading from offset 6. Consumer"
            " Group B is reading from offset 9.",
            (59, 61, 74),
        ),
        "group.id, committed offset, lag",
    ),
    "fair-share": on_shared_cluster(
        "Members of a group share the partitions, also when members join and leave.",
        groups.fair_share,
        Quote(4, "If new Consumers join Consumer group, it gets a share of partitions", (62, 63, 65, 66, 68, 69)),
        "rebalance, group coordinator, assignment",
    ),
    "idle-consumer": on_shared_cluster(
        "More consumers than partitions: the extra consumer is idle until it is needed.",
        groups.idle_consumer,
        Quote(4, "Extra Consumers remain idle; can be used for failover", (64, 67)),
        "assignment without partitions",
    ),
    "consumer-failover": on_shared_cluster(
        "A consumer dies before it commits: another one processes some records again.",
        groups.consumer_failover,
        Quote(
            4,
            "different Consumer can continue from the last committed offset; some Kafka records could be reprocessed",
            (49,),
        ),
        "session.timeout.ms, committed offset, at least once",
    ),
    "consumer-offsets": Drill(
        "Committed offsets are records of a compacted topic: a group continues where it stopped.",
        groups.consumer_offsets,
        Quote(5, "offsets commited live in topic named _consumer_offsets", (50, 71, 72)),
        "__consumer_offsets, group coordinator, log compaction",
        settings=CALM,
    ),
    "delivery": on_shared_cluster(
        "At most once, at least once, exactly once.",
        delivery.delivery,
        Quote(5, "At least once => if processing goes wrong message will be read again, idempotent", (73,)),
        "delivery semantics, transaction, isolation.level",
    ),
    "consumer-threads": on_shared_cluster(
        "Several consumers in one process: one for each thread.",
        groups.consumer_threads,
        Quote(4, "PREFER: Multiple Consumers can run each processing record batches in their own thread", (75,)),
        "one KafkaConsumer per thread",
    ),
}

CLUSTER: Final = {
    "bootstrap": on_shared_cluster(
        "A client that connects to any broker finds the whole cluster.",
        discovery.bootstrap,
        Quote(5, "connect to any broker (bootstrap broker) connect to entire cluster", (25, 58, 78, 79)),
        "bootstrap.servers, Metadata request",
    ),
    "zookeeper-registry": Drill(
        "ZooKeeper stores brokers, topics and leaders, and detects dead brokers.",
        zookeepers.zookeeper_registry,
        Quote(
            2,
            "Kafka uses zookeeper as a registry for brokers to publish the information about their address as well "
            "as the topics they manage",
            (80, 81, 82),
        ),
        "znode, ephemeral znode, watch, controller",
        zookeepers=1,
    ),
    "zookeeper-leader-dies": Drill(
        "The leader of the ZooKeeper ensemble dies: producers and consumers continue.",
        zookeepers.zookeeper_leader_dies,
        Quote(5, "leader(handle writes), followers(handle reads)", (83,)),
        "ensemble, quorum",
        zookeepers=3,
    ),
    "six-brokers-three-zookeepers": Drill(
        "Six brokers and three ZooKeepers: which failures they survive.",
        zookeepers.six_brokers_three_zookeepers,
        Quote(5, "Zookeeper design operates odd number of servers", (83,)),
        "ensemble of odd size, quorum",
        (1, 2, 3, 4, 5, 6),
        zookeepers=3,
    ),
}

CHAPTERS: Final = {
    "Topics, partitions, offsets": TOPICS,
    "Replication and guarantees": REPLICATION,
    "Failures and recovery": FAILURES,
    "Consumer groups": GROUPS,
    "Discovery and ZooKeeper": CLUSTER,
}

DRILLS: Final = {name: drill for chapter in CHAPTERS.values() for name, drill in chapter.items()}
