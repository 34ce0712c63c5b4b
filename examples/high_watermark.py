"""A record is there for consumers when all replicas that are in sync have it: below the high watermark.

python examples/high_watermark.py
"""

from __future__ import annotations

from ottla.testing import Cluster, Topic

IMPATIENT = {"request_timeout_ms": 500, "socket_connection_setup_timeout_ms": 500}
"""Clients ask any broker what there is, also one that hangs: then they should soon ask another."""


def values_seen(topic: Topic, wait_s: float) -> list[bytes]:
    try:
        return [record.value for record in topic.consume(1, timeout=wait_s, **IMPATIENT)]
    except AssertionError:
        return []


def run(cluster: Cluster) -> tuple[list[bytes], list[bytes]]:
    """What a consumer sees while the followers hang, and afterwards."""
    topic = cluster.create_topic("secrets", replication_factor=3)
    followers = [broker for broker in cluster.brokers if broker != cluster.leader(topic)]
    for broker in followers:
        cluster.pause(broker)
    topic.produce(b"a secret", acks=1, enable_idempotence=False, **IMPATIENT)
    before = values_seen(topic, wait_s=0.5)
    for broker in followers:
        cluster.resume(broker)
    return before, values_seen(topic, wait_s=10)


if __name__ == "__main__":
    with Cluster() as cluster:
        before, after = run(cluster)
    print(f"the leader has taken the record, its followers hang: a consumer sees {before}")
    print(f"the followers go on: a consumer sees {after}")
