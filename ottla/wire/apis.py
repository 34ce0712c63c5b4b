"""THE table of APIs: key, name, versions, first flexible version, and the operation that has to be allowed.

The versions are those of Apache Kafka 4.3. A broker serves and advertises the APIs that have a handler.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.wire.acl import AclOperation, ResourceType
from ottla.wire.tree import NEVER

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
WRITE_TXN_MARKERS: Final = 27
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
ALTER_REPLICA_LOG_DIRS: Final = 34
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
CREATE_DELEGATION_TOKEN: Final = 38
RENEW_DELEGATION_TOKEN: Final = 39
EXPIRE_DELEGATION_TOKEN: Final = 40
DESCRIBE_DELEGATION_TOKEN: Final = 41
DELETE_GROUPS: Final = 42
ELECT_LEADERS: Final = 43
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_PARTITION_REASSIGNMENTS: Final = 45
LIST_PARTITION_REASSIGNMENTS: Final = 46
OFFSET_DELETE: Final = 47
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
ALTER_PARTITION: Final = 56
ENVELOPE: Final = 58
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
UNREGISTER_BROKER: Final = 64
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66
ALLOCATE_PRODUCER_IDS: Final = 67
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75


class Api(NamedTuple):
    key: int
    name: str
    min: int
    max: int
    flexible_from: int
    """From this version on, headers and bodies carry tagged fields (KIP-482)."""
    resource: ResourceType | None = None
    """The resource that is checked; None: no right is needed."""
    operation: AclOperation | None = None
    """The operation that has to be allowed on it."""
    advertised_min: int | None = None
    """What ApiVersions says instead of `min`."""
    cluster_action_from: int = NEVER
    """From this version on it is for brokers only."""

    @property
    def between_brokers(self) -> bool:
        return self.operation is AclOperation.CLUSTER_ACTION

    def operation_of(self, version: int) -> AclOperation | None:
        return AclOperation.CLUSTER_ACTION if version >= self.cluster_action_from else self.operation

    def cluster_operation(self, version: int) -> AclOperation | None:
        """The operation on the cluster that dispatch checks. None: the rights depend on what the request names."""
        operation = self.operation_of(version)
        if self.resource is ResourceType.CLUSTER or operation is AclOperation.CLUSTER_ACTION:
            return operation
        return None

    def flexible(self, version: int) -> bool:
        return version >= self.flexible_from


_R = ResourceType
_O = AclOperation

_TABLE = (
    # An older librdkafka takes a floor of 3 for a broker too old to compress, and sends uncompressed.
    Api(PRODUCE, "Produce", 3, 13, 9, _R.TOPIC, _O.WRITE, advertised_min=0),
    Api(FETCH, "Fetch", 4, 18, 12, _R.TOPIC, _O.READ),
    Api(LIST_OFFSETS, "ListOffsets", 1, 11, 6, _R.TOPIC, _O.DESCRIBE),
    Api(METADATA, "Metadata", 0, 13, 9, _R.TOPIC, _O.DESCRIBE),
    Api(OFFSET_COMMIT, "OffsetCommit", 2, 10, 8, _R.GROUP, _O.READ),
    Api(OFFSET_FETCH, "OffsetFetch", 1, 10, 6, _R.GROUP, _O.DESCRIBE),
    Api(FIND_COORDINATOR, "FindCoordinator", 0, 6, 3, _R.GROUP, _O.DESCRIBE),
    Api(JOIN_GROUP, "JoinGroup", 0, 9, 6, _R.GROUP, _O.READ),
    Api(HEARTBEAT, "Heartbeat", 0, 4, 4, _R.GROUP, _O.READ),
    Api(LEAVE_GROUP, "LeaveGroup", 0, 5, 4, _R.GROUP, _O.READ),
    Api(SYNC_GROUP, "SyncGroup", 0, 5, 4, _R.GROUP, _O.READ),
    Api(DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5, _R.GROUP, _O.DESCRIBE),
    Api(LIST_GROUPS, "ListGroups", 0, 5, 3, _R.GROUP, _O.DESCRIBE),
    Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, NEVER),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3),
    Api(CREATE_TOPICS, "CreateTopics", 2, 7, 5, _R.TOPIC, _O.CREATE),
    Api(DELETE_TOPICS, "DeleteTopics", 1, 6, 4, _R.TOPIC, _O.DELETE),
    Api(DELETE_RECORDS, "DeleteRecords", 0, 2, 2, _R.TOPIC, _O.DELETE),
    Api(INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2, _R.TRANSACTIONAL_ID, _O.WRITE),
    Api(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4, _R.TOPIC, _O.DESCRIBE),
    Api(ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3, _R.TRANSACTIONAL_ID, _O.WRITE, cluster_action_from=4),
    Api(ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3, _R.TRANSACTIONAL_ID, _O.WRITE),
    Api(END_TXN, "EndTxn", 0, 5, 3, _R.TRANSACTIONAL_ID, _O.WRITE),
    Api(WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2, 1, _R.CLUSTER, _O.CLUSTER_ACTION),
    Api(TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3, _R.TRANSACTIONAL_ID, _O.WRITE),
    Api(DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2, _R.CLUSTER, _O.DESCRIBE),
    Api(CREATE_ACLS, "CreateAcls", 1, 3, 2, _R.CLUSTER, _O.ALTER),
    Api(DELETE_ACLS, "DeleteAcls", 1, 3, 2, _R.CLUSTER, _O.ALTER),
    Api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4, _R.TOPIC, _O.DESCRIBE_CONFIGS),
    Api(ALTER_CONFIGS, "AlterConfigs", 0, 2, 2, _R.TOPIC, _O.ALTER_CONFIGS),
    Api(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2, 2, _R.CLUSTER, _O.ALTER),
    Api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2, _R.CLUSTER, _O.DESCRIBE),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2),
    Api(CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, _R.TOPIC, _O.ALTER),
    Api(CREATE_DELEGATION_TOKEN, "CreateDelegationToken", 1, 3, 2, _R.USER, _O.CREATE_TOKENS),
    Api(RENEW_DELEGATION_TOKEN, "RenewDelegationToken", 1, 2, 2, _R.DELEGATION_TOKEN, _O.ALTER),
    Api(EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", 1, 2, 2, _R.DELEGATION_TOKEN, _O.ALTER),
    Api(DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", 1, 3, 2, _R.DELEGATION_TOKEN, _O.DESCRIBE),
    Api(DELETE_GROUPS, "DeleteGroups", 0, 2, 2, _R.GROUP, _O.DELETE),
    Api(ELECT_LEADERS, "ElectLeaders", 0, 2, 2, _R.CLUSTER, _O.ALTER),
    Api(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1, _R.TOPIC, _O.ALTER_CONFIGS),
    Api(ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0, _R.CLUSTER, _O.ALTER),
    Api(LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0, _R.CLUSTER, _O.DESCRIBE),
    Api(OFFSET_DELETE, "OffsetDelete", 0, 0, NEVER, _R.GROUP, _O.DELETE),
    Api(DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1, _R.CLUSTER, _O.DESCRIBE_CONFIGS),
    Api(ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1, _R.CLUSTER, _O.ALTER_CONFIGS),
    Api(DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0, 0, _R.CLUSTER, _O.DESCRIBE),
    Api(ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0, 0, _R.CLUSTER, _O.ALTER),
    # Version 2 does not say under which registrations replicas are in sync (KIP-903): no broker of ours sends it.
    Api(ALTER_PARTITION, "AlterPartition", 3, 3, 2, _R.CLUSTER, _O.CLUSTER_ACTION),
    Api(ENVELOPE, "Envelope", 0, 0, 0, _R.CLUSTER, _O.CLUSTER_ACTION),
    Api(DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
    Api(DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0, _R.TOPIC, _O.READ),
    Api(UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0, _R.CLUSTER, _O.ALTER),
    Api(DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0, _R.TRANSACTIONAL_ID, _O.DESCRIBE),
    Api(LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0, _R.TRANSACTIONAL_ID, _O.DESCRIBE),
    Api(ALLOCATE_PRODUCER_IDS, "AllocateProducerIds", 0, 0, 0, _R.CLUSTER, _O.CLUSTER_ACTION),
    Api(CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0, _R.GROUP, _O.READ),
    Api(CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0, _R.GROUP, _O.DESCRIBE),
    Api(LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0, _R.CLUSTER, _O.DESCRIBE_CONFIGS),
    Api(DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0, _R.TOPIC, _O.DESCRIBE),
)

APIS: Final[dict[int, Api]] = {api.key: api for api in _TABLE}
