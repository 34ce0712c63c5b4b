"""FindCoordinator: which broker coordinates a group or a transactional id. Any broker can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.client.core.requests import ANY_NODE, Node, code_of
from ottla.client.errors import error_of
from ottla.errors import ErrorCode
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from ottla.client.core.driver import Driver

GROUP: Final = 0
TRANSACTION: Final = 1
"""The kind of the key: a group id, or a transactional id."""
COORDINATOR_MOVED: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})


def coordinator_request(key: str, kind: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])


def found_coordinator(response: FindCoordinatorResponse) -> tuple[Node | None, ErrorCode, str | None]:
    """The coordinator of the one key that was asked for, or why there is none. Since version 4 the answer is a list."""
    found = response.coordinators[0] if response.coordinators else response
    code = code_of(found.error_code)
    broker = Node(found.node_id, found.host, found.port) if code is ErrorCode.none else None
    return broker, code, found.error_message


async def find_coordinator(driver: Driver, key: str, timeout_s: float, kind: int = GROUP) -> Node:
    answer = await driver.call(coordinator_request(key, kind), FindCoordinatorResponse, ANY_NODE, timeout_s=timeout_s)
    broker, code, message = found_coordinator(answer)
    if broker is None:
        error = error_of(code, f"coordinator of {key}", message)
        assert error is not None
        raise error
    return broker
