"""Resources and operations of Kafka's authorization, by their numbers on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


NOT_ASKED: Final = -(2**31)
"""Authorized operations were not requested."""


def operation_bits(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


_O = AclOperation
TOPIC_OPERATIONS: Final = operation_bits(
    (_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
)
CLUSTER_OPERATIONS: Final = operation_bits(
    (
        _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE,
    )
)  # fmt: skip
GROUP_OPERATIONS: Final = operation_bits((_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS))
"""All operations of a resource: without an authorizer all are allowed."""
