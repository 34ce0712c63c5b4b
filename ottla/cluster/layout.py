"""The layout of the store: paths of nodes, and the JSON in them.

The layout is that of Apache Kafka 3.x where Kafka has the same data, so tools that read Kafka's znodes can read ours;
what Kafka does not have is under /ottla. Fields that Kafka does not have (`epoch` and `incarnation` of a broker,
`broker_epoch` of a partition's leader, the eligible replicas) are beside Kafka's. A name that a user chose becomes part
of a path only through `escaped`.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.cluster.model import NO_BROKER, BrokerRegistration, Endpoint, PartitionState, Tombstone, with_epochs
from ottla.cluster.store import Create, Op

CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKERS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
GROUP_CONFIGS: Final = "/config/groups"
DELETIONS: Final = "/admin/delete_topics"
PRODUCER_IDS: Final = "/latest_producer_id_block"
FORMAT: Final = "/ottla/format"
SECRET: Final = "/ottla/secret"
BROKER_EPOCH: Final = "/ottla/broker_epoch"
TOMBSTONES: Final = "/ottla/deleted_topics"
CHANGES: Final = "/ottla/changes"
CHANGE: Final = "/ottla/changes/change-"

IMAGE_PATHS: Final = (
    CLUSTER_ID, CONTROLLER, CONTROLLER_EPOCH, BROKERS, TOPICS, TOPIC_CONFIGS, BROKER_CONFIGS, GROUP_CONFIGS, DELETIONS,
    TOMBSTONES,
)  # fmt: skip
"""Everything an image is loaded from."""

ADDED_PATHS: Final = (GROUP_CONFIGS,)
"""Nodes that earlier releases did not have: created by the first broker that misses them."""

FORMAT_VERSION: Final = 1
CLUSTER_DEFAULT: Final = "<default>"
"""Kafka's name for the configs of all brokers."""

_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


def escaped(name: str) -> str:
    """A name as one step of a path: legal topic names as they are, anything else percent-encoded."""
    if name in (".", ".."):
        return "%2E" * len(name)
    if _PLAIN.issuperset(name):
        return name
    return "".join(c if c in _PLAIN else "".join(f"%{b:02X}" for b in c.encode()) for c in name)


def unescaped(step: str) -> str:
    first, *rest = step.split("%")
    if not rest:
        return step
    return (first.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest)).decode()


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{escaped(topic)}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{escaped(topic)}/partitions"


def partition_path(topic: str, index: int) -> str:
    return f"{TOPICS}/{escaped(topic)}/partitions/{index}"


def state_path(topic: str, index: int) -> str:
    return f"{TOPICS}/{escaped(topic)}/partitions/{index}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{escaped(topic)}"


def broker_config_path(broker: int | None) -> str:
    return f"{BROKER_CONFIGS}/{CLUSTER_DEFAULT if broker is None else broker}"


def group_config_path(group: str) -> str:
    return f"{GROUP_CONFIGS}/{escaped(group)}"


def broker_path(broker: int) -> str:
    return f"{BROKERS}/{broker}"


def deletion_path(topic: str) -> str:
    return f"{DELETIONS}/{escaped(topic)}"


def tombstone_path(topic_id: bytes) -> str:
    return f"{TOMBSTONES}/{id_text(topic_id)}"


def change_name(sequence: int) -> str:
    return f"change-{sequence:010d}"


def id_text(raw: bytes) -> str:
    """Sixteen bytes as Kafka writes a Uuid: 22 characters of URL-safe base 64."""
    return binascii.b2a_base64(raw, newline=False).rstrip(b"=").translate(_TO_URL).decode()


def id_bytes(text: str) -> bytes:
    return binascii.a2b_base64(text.encode().translate(_FROM_URL) + b"==")


def new_id(random: bytes) -> bytes:
    """A Uuid (version 4) from sixteen random bytes; never one that starts with a dash, which commands would take for an
    option, nor one of the reserved ones."""
    assert len(random) == 16
    raw = bytearray(random)
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    if raw[0] >> 2 == 0b111110:
        raw[0] ^= 0b10000000
    return bytes(raw)


def encode(payload: Mapping[str, object]) -> bytes:
    return json.dumps(payload, separators=(",", ":")).encode()


def decode(data: bytes) -> dict[str, Any]:
    payload = json.loads(data)
    if not isinstance(payload, dict):
        raise ValueError("not a JSON object")
    return payload


def first_nodes(cluster_id: str) -> list[Op]:
    """The first nodes of an empty store, created in one commit."""
    plain = (
        "/cluster", "/brokers", BROKERS, TOPICS, "/config", TOPIC_CONFIGS, BROKER_CONFIGS, GROUP_CONFIGS,
        "/config/clients", "/config/users", "/admin", DELETIONS, "/ottla", TOMBSTONES, CHANGES,
    )  # fmt: skip
    return [
        *(Create(path) for path in plain),
        Create(CLUSTER_ID, encode({"version": "1", "id": cluster_id})),
        Create(CONTROLLER_EPOCH, b"0"),
        Create(BROKER_EPOCH, b"0"),
        Create(FORMAT, encode({"version": FORMAT_VERSION})),
    ]


def secret_data(secret: bytes) -> bytes:
    return encode({"version": 1, "secret": secret.hex()})


def secret_of(data: bytes) -> bytes:
    return bytes.fromhex(decode(data)["secret"])


def controller_data(broker: int, wall_ms: int) -> bytes:
    return encode({"version": 1, "brokerid": broker, "timestamp": str(wall_ms)})


def controller_of(data: bytes) -> int:
    return int(decode(data)["brokerid"])


def broker_data(broker: BrokerRegistration, wall_ms: int) -> bytes:
    first = broker.endpoints[0]
    payload: dict[str, object] = {
        "version": 5,
        "host": first.host,
        "port": first.port,
        "jmx_port": -1,
        "timestamp": str(wall_ms),
        "endpoints": [f"{e.listener}://{_bracketed(e.host)}:{e.port}" for e in broker.endpoints],
        "listener_security_protocol_map": {e.listener: e.protocol for e in broker.endpoints},
        "features": {},
        "epoch": broker.epoch,
        "clean_since": broker.clean_since,
        "draining": broker.draining,
        "incarnation": broker.incarnation,
    }
    if broker.rack is not None:
        payload["rack"] = broker.rack
    if broker.damaged:
        payload["damaged"] = broker.damaged
    return encode(payload)


def broker_of(broker: int, data: bytes) -> BrokerRegistration:
    payload = decode(data)
    protocols = payload["listener_security_protocol_map"]
    endpoints = []
    for text in payload["endpoints"]:
        listener, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        endpoints.append(Endpoint(listener, host.strip("[]"), int(port), protocols[listener]))
    epoch = payload["epoch"]
    return BrokerRegistration(
        broker,
        epoch,
        tuple(endpoints),
        payload.get("rack"),
        payload.get("draining", False),
        payload.get("clean_since", epoch),
        payload.get("incarnation", ""),
        tuple((topic_id, index) for topic_id, index in payload.get("damaged", ())),
    )


def incarnation_of(data: bytes) -> str:
    """Of the process that registered a broker; empty for an earlier release."""
    found: str = decode(data).get("incarnation", "")
    return found


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def topic_data(topic_id: bytes, partitions: Iterable[PartitionState]) -> bytes:
    partitions = list(partitions)
    return encode(
        {
            "version": 3,
            "topic_id": id_text(topic_id),
            "partitions": {str(i): p.replicas for i, p in enumerate(partitions)},
            "adding_replicas": {str(i): p.adding for i, p in enumerate(partitions) if p.adding},
            "removing_replicas": {str(i): p.removing for i, p in enumerate(partitions) if p.removing},
        }
    )


def topic_of(data: bytes) -> tuple[bytes, list[PartitionState]]:
    """The id of a topic and its partitions, which have only their assignment."""
    payload = decode(data)
    adding, removing = payload["adding_replicas"], payload["removing_replicas"]
    assignment = payload["partitions"]
    return id_bytes(payload["topic_id"]), [
        PartitionState(
            replicas=tuple(assignment[str(i)]),
            adding=tuple(adding.get(str(i), ())),
            removing=tuple(removing.get(str(i), ())),
        )
        for i in range(len(assignment))
    ]


def state_data(partition: PartitionState, controller_epoch: int) -> bytes:
    return encode(
        {
            "version": 1,
            "controller_epoch": controller_epoch,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "isr": partition.in_sync,
            "broker_epoch": partition.broker_epoch,
            "isr_epochs": partition.in_sync_epochs,
            "eligible": partition.eligible,
            "eligible_epochs": partition.eligible_epochs,
            "last_leader": partition.last_leader,
        }
    )


def state_of(data: bytes, version: int) -> PartitionState:
    """The state of a partition; its replicas are in the node of the topic."""
    payload = decode(data)
    return with_epochs(
        PartitionState(
            replicas=(),
            leader=payload["leader"],
            leader_epoch=payload["leader_epoch"],
            in_sync=tuple(payload["isr"]),
            broker_epoch=payload["broker_epoch"],
            partition_epoch=version,
            in_sync_epochs=tuple(payload.get("isr_epochs", ())),
            eligible=tuple(payload.get("eligible", ())),
            eligible_epochs=tuple(payload.get("eligible_epochs", ())),
            last_leader=payload.get("last_leader", NO_BROKER),
        )
    )


def configs_data(configs: Mapping[str, str]) -> bytes:
    return encode({"version": 1, "config": dict(configs)})


def configs_of(data: bytes) -> dict[str, str]:
    configs: dict[str, str] = decode(data)["config"]
    return configs


def deletion_data(topic_id: bytes) -> bytes:
    return encode({"version": 1, "topic_id": id_text(topic_id)})


def tombstone_data(tombstone: Tombstone) -> bytes:
    return encode({"version": 1, "topic": tombstone.name, "replicas": tombstone.replicas})


def tombstone_of(data: bytes) -> Tombstone:
    payload = decode(data)
    return Tombstone(payload["topic"], tuple(payload["replicas"]))


def producer_ids_data(broker: int, block: range) -> bytes:
    return encode({"version": 1, "broker": broker, "block_start": str(block.start), "block_end": str(block.stop - 1)})


def producer_ids_of(data: bytes) -> range:
    payload = decode(data)
    return range(int(payload["block_start"]), int(payload["block_end"]) + 1)
