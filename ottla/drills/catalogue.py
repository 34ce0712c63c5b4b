"""All drills by name, in the order of a lecture: what each shows, and what it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from ottla.drills import clients, commitment, delivery, discovery, failures, groups, partitions, zookeepers
from ottla.drills.stage import Stage
from ottla.drills.texts import Quote


class Drill(NamedTuple):
    """`zookeepers`: how many there are; with none the brokers share an embedded store. `whole`: the drill leaves the
    cluster as it was but for topics and groups of its own, so that the next drill may use it too."""

    title: str
    play: Callable[[Stage], Awaitable[None]]
    quote: Quote
    term: str
    """Kafka's word for it, with the settings that belong to it."""
    brokers: tuple[int, ...] = (1, 2, 3)
    zookeepers: int = 0
    settings: Mapping[str, str] = {}
    whole: bool = False


FOUR: Final = (1, 2, 3, 4)
CALM: Final = {
    "replica.lag.time.max.ms": "30000",
    "broker.session.timeout.ms": "18000",
    "zookeeper.session.timeout.ms": "18000",
    "group.min.session.timeout.ms": "1000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
"""For drills in which no broker is missed: one that is paused for a moment stays in sync and keeps what it leads."""
MOVES_LEADERS: Final = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "1"}

TOPICS: Final = {
    "offsets": Drill(
        "A topic has partitions, and each partition counts its own offsets.",
        partitions.offsets,
        Quote(
            3,
            "each specific message in a Kafka cluster can be uniquely identified by a tuple consisting of the "
            "message's "
            "topic, the partition, and the offset within the partition",
            (1, 4, 5, 7, 8, 9),
        ),
        "offset, log end offset",
        settings=CALM,
        whole=True,
    ),
    "two-readers": Drill(
        "A partition is a log: readers stand where they choose, and do not disturb each other.",
        partitions.two_readers,
        Quote(
            3,
            "a data source is writing to the log and consumers A and B are reading from the log at different offsets",
            (6, 10, 53),
        ),
        "position, seek",
        settings=CALM,
        whole=True,
    ),
    "order": Drill(
        "Order is kept within a partition, not across a topic.",
        partitions.order,
        Quote(
            1,
            "Message sent to a topic partition will be appended to the commit log in the order they are sent.",
            (19, 31, 32, 35, 36, 77),
        ),
        "ordering guarantee per partition",
        settings=CALM,
        whole=True,
    ),
    "keys-and-partitions": Drill(
        "The producer picks the partition: by key, in turn, by priority, or by name.",
        partitions.keys_and_partitions,
        Quote(
            4,
            "Kafka default partitioner for Java uses hash of keys to choose partitions, or a round-robin "
            "strategy if no key",
            (54, 55, 56),
        ),
        "partitioner (murmur2 of the key)",
        settings=CALM,
        whole=True,
    ),
    "log-on-disk": Drill(
        "Records are files on disk, and stay when they have been read.",
        partitions.log_on_disk,
        Quote(
            2,
            "even after consumers consume the messages the records still stay within Kafka partitions for a "
            "configurable "
            "period of time",
            (11, 51, 52, 70),
        ),
        "segment (segment.bytes), retention (retention.ms), auto.offset.reset",
        settings=CALM,
        whole=True,
    ),
}

REPLICATION: Final = {
    "replicas-spread": Drill(
        "Where replicas are: spread evenly, fetched by their holders from the leader.",
        clients.replicas_spread,
        Quote(
            2,
            "with a topic with four partitions managed by four brokers and a replication factor of two each partition "
            "would be replicated to two different brokers",
            (12, 15, 18, 20, 21, 22, 23, 24),
        ),
        "replication factor, leader, follower",
        (101, 102, 103, 104),
    ),
    "replica-reads": Drill(
        "A consumer may read from an in-sync follower that is near.",
        discovery.replica_reads,
        Quote(1, "reads can happen from any partition, whether it's blue or red", (27,)),
        "follower fetching (client.rack, replica.selector.class)",
        settings=CALM,
        whole=True,
    ),
    "high-watermark": Drill(
        "What the followers do not have yet, a consumer does not see.",
        commitment.high_watermark,
        Quote(4, "Consumer only reads up to “high watermark”. Consumer can't read un-replicated data", (33, 37, 38)),
        "high watermark, log end offset; a record below the high watermark is committed",
        settings=CALM,
        whole=True,
    ),
    "acks": Drill(
        "What an acknowledgement is worth: acks=0, acks=1, acks=all.",
        commitment.acks,
        Quote(5, "acks=1 => wait for leader acknowledgment (default)(limited data loss)", (57,)),
        "acks",
        settings=CALM,
    ),
    "add-a-broker": Drill(
        "A new broker takes its share, and producers notice nothing.",
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
        "One replica fails: writing goes on, and it falls out of sync.",
        failures.replica_fails,
        Quote(
            1,
            "Writes will no longer reach the failed replica and it will no longer receive messages, failing "
            "further and "
            "further out of sync with the leader.",
            (28, 39),
        ),
        "in-sync replicas (ISR), out-of-sync replica",
    ),
    "two-replicas-fail": Drill(
        "A second one fails: the leader alone is in sync.",
        failures.two_replicas_fail,
        Quote(
            1,
            "we still have one in sync replica, even though that replica happens to be the leader of this partition",
            (29, 30, 34, 40),
        ),
        "ISR of one, under-replicated partition",
    ),
    "leader-fails-last": Drill(
        "Then the leader fails: nobody can take a write.",
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
        "Recovery B: elect whichever replica comes back first. What it missed is lost.",
        failures.recover_unclean,
        Quote(
            1,
            "all data written between the time where this broker went down and when it was elected the leader "
            "will be lost",
            (13, 43),
        ),
        "unclean leader election (unclean.leader.election.enable=true): availability before consistency",
        FOUR,
    ),
    "start-from-zero": Drill(
        "The extreme of recovery B: elect a replica that has nothing. All is lost.",
        failures.start_from_zero,
        Quote(1, "wipe the whole state that existed in the commit log and effectively start from zero", (44,)),
        "unclean leader election, log truncation",
        FOUR,
    ),
    "eligible-leader": Drill(
        "A replica that is out of sync may lead if it has everything acknowledged.",
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
        "A leader dies: the producer finds the new one.",
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
        "A broker comes back, and catches up fast.",
        clients.fast_catch_up,
        Quote(
            2,
            "fail brokers can recover and resume their operation almost instantaneously and catch up with the "
            "rest of the "
            "cluster very fast",
            (47,),
        ),
        "log recovery, follower fetch",
    ),
}

GROUPS: Final = {
    "two-groups": Drill(
        "Each group has its own offset: A at 6, B at 9, the producer at 12.",
        groups.two_groups,
        Quote(
            4,
            "Producer writing to offset 12 of partition while... consumer Group A is reading from offset 6. "
            "Consumer Group B "
            "is reading from offset 9.",
            (59, 61, 74),
        ),
        "group.id, committed offset, lag",
        settings=CALM,
        whole=True,
    ),
    "fair-share": Drill(
        "Members of a group share the partitions, also as they come and go.",
        groups.fair_share,
        Quote(
            4,
            "If new Consumers join Consumer group, it gets a share of partitions",
            (62, 63, 65, 66, 68, 69),
        ),
        "rebalance, group coordinator, assignment",
        settings=CALM,
        whole=True,
    ),
    "idle-consumer": Drill(
        "A consumer more than partitions is idle, until it is needed.",
        groups.idle_consumer,
        Quote(4, "Extra Consumers remain idle; can be used for failover", (64, 67)),
        "assignment without partitions",
        settings=CALM,
        whole=True,
    ),
    "consumer-failover": Drill(
        "A consumer dies before it commits: another one processes some records again.",
        groups.consumer_failover,
        Quote(
            4,
            "different Consumer can continue from the last committed offset; some Kafka records could be reprocessed",
            (49,),
        ),
        "session.timeout.ms, committed offset, at least once",
        settings=CALM,
        whole=True,
    ),
    "consumer-offsets": Drill(
        "Offsets are records of a compacted topic: a group starts where it left off.",
        groups.consumer_offsets,
        Quote(5, "offsets commited live in topic named _consumer_offsets", (50, 71, 72)),
        "__consumer_offsets, group coordinator, log compaction",
        settings=CALM,
    ),
    "delivery": Drill(
        "At most once, at least once, exactly once.",
        delivery.delivery,
        Quote(5, "At least once => if processing goes wrong message will be read again, idempotent", (73,)),
        "delivery semantics, transaction, isolation.level",
        settings=CALM,
        whole=True,
    ),
    "consumer-threads": Drill(
        "Many consumers in one process: one for each thread.",
        groups.consumer_threads,
        Quote(4, "PREFER: Multiple Consumers can run each processing record batches in their own thread", (75,)),
        "one KafkaConsumer per thread",
        settings=CALM,
        whole=True,
    ),
}

CLUSTER: Final = {
    "bootstrap": Drill(
        "Connect to any broker, and you are connected to the cluster.",
        discovery.bootstrap,
        Quote(5, "connect to any broker (bootstrap broker) connect to entire cluster", (25, 58, 78, 79)),
        "bootstrap.servers, Metadata request",
        settings=CALM,
        whole=True,
    ),
    "zookeeper-registry": Drill(
        "ZooKeeper knows brokers, topics and leaders, and notices who is gone.",
        zookeepers.zookeeper_registry,
        Quote(
            2,
            "Kafka uses zookeeper as a registry for brokers to publish the information about their address as "
            "well as the "
            "topics they manage",
            (80, 81, 82),
        ),
        "znode, ephemeral znode, watch, controller",
        zookeepers=1,
    ),
    "zookeeper-leader-dies": Drill(
        "The leading ZooKeeper dies: records flow on.",
        zookeepers.zookeeper_leader_dies,
        Quote(5, "leader(handle writes), followers(handle reads)", (83,)),
        "ensemble, quorum",
        zookeepers=3,
    ),
    "six-brokers-three-zookeepers": Drill(
        "The picture with six brokers and three ZooKeepers, and what it survives.",
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
