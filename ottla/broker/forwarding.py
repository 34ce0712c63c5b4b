"""What only the controller can do, asked of any broker: clients need not know who it is.

A handler under `@by_controller` runs where the controller is. Everywhere else the request is sent on to it, and its
answer passed back; before that this broker's view catches up, so that a client finds here what it has just done.

While the cluster looks for a new controller the request waits, as long as it may. What broke after it had left, and is
not the same when done twice, is not sent again: the client hears that it is not known whether it was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.dispatch import Request, Response, TreeHandler
from ottla.broker.peers import Lane
from ottla.broker.refusals import refusal
from ottla.cluster.requests import TopicResult, TopicSpec
from ottla.errors import ErrorCode, Fault, Refused, StorageFault
from ottla.net.outbound import PeerLost, Unreached
from ottla.net.server import Pending
from ottla.wire import apis, messages
from ottla.wire.schema.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.tree import Message

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.broker")

Forwarded = Callable[["Broker", Any, Request], Coroutine[object, object, Response]]

RETRY_SECONDS: Final = 0.1
PATIENCE_SECONDS_MAX: Final = 30.0
"""However long a client says it will wait, it is told after this time."""
_NOT_CONTROLLER: Final = "This is not the correct controller for this cluster."
_TOO_LATE: Final = "The controller did not answer in time."
_IN_DOUBT: Final = "did not answer: whether this was done is not known"
_NOT_DONE: Final = "does not answer, so there is no controller, and nothing was done"
_REPEATABLE: Final = frozenset(
    {
        apis.ALTER_CONFIGS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.ELECT_LEADERS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
    }
)
"""Doing it twice is doing it once."""


def by_controller(handler: TreeHandler) -> Forwarded:
    """Have the controller run this handler."""

    async def here(broker: Broker, message: Message, request: Request) -> Response:
        response = handler(broker, message, request)
        assert not isinstance(response, Pending)
        try:
            return response if isinstance(response, Message | bytes) else await response
        except StorageFault:
            raise
        except Fault as fault:
            log.warning("%s: %s", request.route.api.name, fault)
            raise Refused(ErrorCode.request_timed_out, _of_store(broker, _IN_DOUBT)) from fault

    @wraps(handler)
    async def answered(broker: Broker, message: Message, request: Request) -> Response:
        if request.peer_broker is None:
            return await _Errand(broker, message, request, here).run()
        if not broker.cluster.is_controller:  # whoever sent it on will find the right one
            raise Refused(ErrorCode.not_controller, _NOT_CONTROLLER)
        return await here(broker, message, request)

    return answered


def _of_store(broker: Broker, what: str) -> str:
    """With its name, and what can be done about it."""
    store = broker.config.ottla_store
    if store.startswith("zookeeper:"):
        mends = f"Start ZooKeeper again, or look at its log and at the network between it and broker {broker.id}"
    else:
        mends = f"Look at its disk, and at the log of broker {broker.id}"
    return f"The store of the cluster ({store}) {what}. {mends}. Ask again then."


class _Errand:
    """One request of a client, until the controller has answered it."""

    def __init__(self, broker: Broker, message: Message, request: Request, here: Forwarded) -> None:
        self._broker = broker
        self._message = message
        self._request = request
        self._here = here
        asked_ms = getattr(message, "timeout_ms", broker.config.request_timeout_ms)
        self._deadline = broker.runtime.now() + min(max(asked_ms / 1000, 0.0), PATIENCE_SECONDS_MAX)

    async def run(self) -> Response:
        while True:
            try:
                if self._broker.cluster.is_controller:
                    return await self._here(self._broker, self._message, self._request)
                return await self._sent_on()
            except Refused as refused:
                if refused.code != ErrorCode.not_controller:
                    raise
                if self._left_s <= 0:
                    if self._broker.cluster.in_touch:
                        raise
                    raise Refused(ErrorCode.request_timed_out, _of_store(self._broker, _NOT_DONE)) from refused
            except PeerLost as lost:
                may_repeat = isinstance(lost, Unreached) or self._message.API_KEY in _REPEATABLE
                if not may_repeat or self._left_s <= 0:
                    log.info("%s was not answered by the controller: %s", self._request.route.api.name, lost)
                    raise Refused(ErrorCode.request_timed_out, _TOO_LATE) from lost
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def _left_s(self) -> float:
        return self._deadline - self._broker.runtime.now()

    async def _sent_on(self) -> bytes:
        key, version = self._message.API_KEY, self._request.version
        body = messages.encode(self._message, version)
        # The connection is shared: that this client waits no longer is no reason to give up what others wait for.
        patience_s = self._broker.config.request_timeout_ms / 1000
        try:
            async with asyncio.timeout(max(self._left_s, 1.0)):
                answer = await self._broker.peers.forward(key, version, body, timeout_s=patience_s)
        except TimeoutError:
            raise Refused(ErrorCode.request_timed_out, _TOO_LATE) from None
        refused = refusal(self._message, ErrorCode.not_controller, _NOT_CONTROLLER)
        if refused is not None and answer == messages.encode(refused, version):
            raise Refused(ErrorCode.not_controller, _NOT_CONTROLLER)
        await _catch_up(self._broker)
        return bytes(answer)


async def _catch_up(broker: Broker) -> None:
    """What was just done shall be seen here, if the store lets us see anything."""
    try:
        await broker.cluster.catch_up()
    except Fault as fault:
        log.warning("what the controller did will be seen here later: %s", fault)


async def create_topics(broker: Broker, specs: Sequence[TopicSpec]) -> list[TopicResult]:
    """Have topics, each named once, made by whoever is controller. Whatever goes wrong is in the results."""
    try:
        if broker.cluster.is_controller:
            return await broker.cluster.create_topics(specs)
        request = CreateTopicsRequest(
            topics=[_creatable(spec) for spec in specs], timeout_ms=broker.config.request_timeout_ms
        )
        timeout_s = broker.config.request_timeout_ms / 1000
        answer = await broker.peers.ask_controller(
            request, CreateTopicsResponse, timeout_s=timeout_s, lane=Lane.clients
        )
    except Refused as refused:
        return [TopicResult(spec.name, code=refused.code, message=refused.message) for spec in specs]
    except Fault as fault:  # the controller is out of reach, or broke off, or the store did
        code = ErrorCode.not_controller if isinstance(fault, Unreached) else ErrorCode.request_timed_out
        return [TopicResult(spec.name, code=code, message=str(fault)) for spec in specs]
    await _catch_up(broker)
    return [_result(each) for each in answer.topics]


def _result(answer: CreatableTopicResult) -> TopicResult:
    known = answer.error_code in ErrorCode.__members__.values()
    code = ErrorCode(answer.error_code) if known else ErrorCode.unknown_server_error
    return TopicResult(
        answer.name, answer.topic_id, code, answer.error_message, answer.num_partitions, answer.replication_factor
    )


def _creatable(spec: TopicSpec) -> CreatableTopic:
    return CreatableTopic(
        name=spec.name,
        num_partitions=spec.partitions,
        replication_factor=spec.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in spec.assignments
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in spec.configs.items()],
    )
