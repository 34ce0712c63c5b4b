"""DescribeLogDirs: the size of each replica on this broker's disk. AlterReplicaLogDirs (KIP-113): a broker has one log
directory here, so a replica is there already, or the directory does not exist.
"""

from __future__ import annotations

import os.path

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode, StorageFault
from ottla.wire.apis import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from ottla.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.wire.schema.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@serves(DESCRIBE_LOG_DIRS)
def handle(context: Context, message: DescribeLogDirsRequest, request: Request) -> DescribeLogDirsResponse:
    wanted = None
    if message.topics is not None:
        wanted = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in context.replicas:
        if wanted is None or (partition.topic, partition.index) in wanted:
            topics.setdefault(partition.topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=partition.index,
                    partition_size=partition.size_bytes,
                    offset_lag=max(0, partition.high_watermark - partition.log_end),
                )
            )
    result = DescribeLogDirsResult(
        log_dir=context.data_dir,
        topics=[DescribeLogDirsTopic(name=name, partitions=each) for name, each in topics.items()],
    )
    try:
        result.total_bytes, result.usable_bytes = context.runtime.disk.usage(context.data_dir)
    except StorageFault:
        result.error_code = ErrorCode.kafka_storage_error
    return DescribeLogDirsResponse(results=[result])


@serves(ALTER_REPLICA_LOG_DIRS)
def alter_replica_log_dirs(
    context: Context, message: AlterReplicaLogDirsRequest, request: Request
) -> AlterReplicaLogDirsResponse:
    ours = {context.data_dir, os.path.abspath(context.data_dir)}
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in message.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                if directory.path not in ours:
                    code = ErrorCode.log_dir_not_found
                elif context.replicas.get(topic.name, index) is None:
                    code = ErrorCode.unknown_topic_or_partition
                else:
                    code = ErrorCode.none
                result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                topics.setdefault(topic.name, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=each) for name, each in topics.items()]
    )
