"""Error responses to any request: they name what the request named."""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.wire.messages import decode, encode
from ottla.wire.refusal import refusal
from ottla.wire.schema.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
)
from ottla.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.wire.schema.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

CODE = ErrorCode.cluster_authorization_failed


def refused(request, response, version):
    made = refusal(request, version, CODE)
    assert made is not None
    return decode(response, version, memoryview(encode(made, version)), 0)


def test_markers_are_named_by_producer_id():
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=[3])
    request = WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=4711, topics=[topic])])
    (marker,) = refused(request, WriteTxnMarkersResponse, 1).markers
    assert (marker.producer_id, marker.topics[0].name) == (4711, "t")
    assert [(each.partition_index, each.error_code) for each in marker.topics[0].partitions] == [(3, CODE)]


def test_topics_of_all_log_directories_are_named():
    topics = [AlterReplicaLogDirTopic(name=name, partitions=[0, 2]) for name in "ab"]
    directories = [AlterReplicaLogDir(path=f"/{topic.name}", topics=[topic]) for topic in topics]
    results = refused(AlterReplicaLogDirsRequest(dirs=directories), AlterReplicaLogDirsResponse, 2).results
    named = [(each.topic_name, [(p.partition_index, p.error_code) for p in each.partitions]) for each in results]
    assert named == [("a", [(0, CODE), (2, CODE)]), ("b", [(0, CODE), (2, CODE)])]


def test_users_of_deletions_and_upsertions_are_named():
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="ann", mechanism=1)],
        upsertions=[ScramCredentialUpsertion(name="ben", mechanism=2, iterations=4096)],
    )
    results = refused(request, AlterUserScramCredentialsResponse, 0).results
    assert [(each.user, each.error_code) for each in results] == [("ann", CODE), ("ben", CODE)]


def test_client_quotas_are_named_by_entity():
    entity = AlterClientQuotasRequestEntityData(entity_type="user", entity_name="ann")
    request = AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntryData(entity=[entity], ops=[])])
    (entry,) = refused(request, AlterClientQuotasResponse, 1).entries
    assert [(each.entity_type, each.entity_name) for each in entry.entity] == [("user", "ann")]
    assert entry.error_code == CODE
