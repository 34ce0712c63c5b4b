"""Admin client: the broker a request goes to: any, the controller, every broker, or the leader of a partition.

A call about several things succeeds as a whole, or raises one error whose `errors` says which of them failed and why,
and whose `results` has what was found about the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from ottla.client.core.client import Client
from ottla.client.core.find_coordinator import GROUP, find_coordinator
from ottla.client.core.list_offsets import list_offsets
from ottla.client.core.metadata import MetadataSettings
from ottla.client.core.requests import ANY_NODE, Node
from ottla.client.core.settings import ClientOptions, ClientSettings, Settings
from ottla.client.errors import ClientError, ConnectionLost, Several, TimedOut, error_of
from ottla.client.group.committed_offsets import GroupOffsets
from ottla.client.values import UNCOMMITTED, OffsetAndTimestamp, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.tree import Message

if TYPE_CHECKING:
    from ottla.runtime import Runtime

R = TypeVar("R", bound=Message)
T = TypeVar("T")

PARTS: Final = (ClientSettings, MetadataSettings)
REMEMBERED_MAX: Final = 100
"""The number of coordinators that are remembered for repeated requests."""


class AdminBase(Client):
    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        runtime: Runtime | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        super().__init__(Settings(bootstrap_servers, config, settings, PARTS), runtime, auto_create=False)
        self._coordinators: dict[str, Node] = {}
        """Of transactional ids."""
        self._groups: dict[str, GroupOffsets] = {}

    async def start(self) -> None:
        driver = await self._open()
        try:
            await driver.start(timeout_s=self._bootstrap_timeout_s)
        except BaseException:
            await self._not_started()
            raise

    async def stop(self) -> None:
        self._stopped = True
        await self._close()

    close = stop

    @property
    def _request_timeout_s(self) -> float:
        return self._metadata_settings.request_timeout_s

    @property
    def _request_timeout_ms(self) -> int:
        return self._metadata_settings.request_timeout_ms

    async def _call(self, request: Message, answer: type[R], to: Node | None = None) -> R:
        """A request that may be repeated: to this broker, or to any reachable one. Without a broker the controller
        comes first: other brokers may learn of its changes a little later."""

        async def ask() -> R:
            return await self._once(request, answer, self._controller_or_any() if to is None else to)

        return await self._driver.insist(ask, timeout_s=self._timeout_s)

    async def _once(self, request: Message, answer: type[R], to: Node, version_max: int | None = None) -> R:
        timeout_s = self._request_timeout_s
        return await self._driver.call(request, answer, to, timeout_s=timeout_s, version_max=version_max)

    async def _at_coordinator(self, key: str, work: Callable[[str, Node], Awaitable[T]], kind: int = GROUP) -> T:
        """Run `work` with the coordinator of a group or a transactional id. Each attempt looks the coordinator up
        again."""

        async def attempt() -> T:
            return await work(key, await find_coordinator(self._driver, key, self._request_timeout_s, kind))

        return await self._driver.insist(attempt, timeout_s=self._timeout_s)

    def _deadline(self) -> float:
        return self._driver.runtime.now() + self._timeout_s

    async def _leader(self, tp: TopicPartition, deadline: float) -> Node | None:
        """The leader of a partition, if it can be reached."""
        await self._driver.topic(tp.topic, deadline)
        return self._driver.metadata.leading_broker(*tp, self._driver.runtime.now())

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int], isolation_level: int = UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(
            self._driver,
            times,
            timeout_s=self._timeout_s,
            request_timeout_s=self._request_timeout_s,
            isolation_level=isolation_level,
        )

    def _controller_or_any(self) -> Node:
        metadata = self._driver.metadata
        controller = metadata.brokers.get(metadata.controller_id)
        if controller is None or not metadata.reachable(controller.node_id, self._driver.runtime.now()):
            return ANY_NODE
        return controller

    async def _metadata(self, names: list[str] | None) -> MetadataResponse:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer = await self._call(MetadataRequest(topics=topics, allow_auto_topic_creation=False), MetadataResponse)
        raise_if(error_of(answer.error_code, "metadata"))
        return answer

    async def _at_controller(self, request: Message, answer: type[R], codes: Callable[[R], Iterable[int]]) -> R:
        """Sent again only when nothing of it can have been done: after a broker that was not the controller."""

        async def ask() -> R:
            # Brokers of a cluster that names no controller forward requests for the controller.
            response = await self._metadata([])
            controller = _nodes(response).get(response.controller_id, ANY_NODE)
            try:
                reported = await self._once(request, answer, controller)
            except (ConnectionLost, TimedOut) as error:
                raise _InDoubt(error) from error
            if {*codes(reported)} == {ErrorCode.not_controller}:
                raise ClientError("the controller has changed", code=ErrorCode.not_controller, retriable=True)
            return reported

        try:
            return await self._driver.insist(ask, timeout_s=self._timeout_s)
        except _InDoubt as doubt:
            raise doubt.error from None

    async def _brokers(self) -> dict[int, Node]:
        return _nodes(await self._metadata([]))

    async def _broker(self, broker_id: int) -> Node:
        brokers = await self._brokers()
        if broker_id not in brokers:
            raise ClientError(
                f"there is no broker {broker_id}; there are {', '.join(map(str, sorted(brokers)))}",
                code=ErrorCode.broker_not_available,
            )
        return brokers[broker_id]


class _InDoubt(Exception):
    """A request went out, and no answer came: it may have been carried out."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(error)
        self.error = error


def _nodes(response: MetadataResponse) -> dict[int, Node]:
    return {each.node_id: Node(each.node_id, each.host, each.port, each.rack) for each in response.brokers}


async def for_each(what: str, names: Iterable[str], work: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """What `work` gives for each name; one error for all names for which it failed."""
    results: dict[str, T] = {}
    errors: dict[str, ClientError | None] = {}
    for name in names:
        try:
            results[name] = await work(name)
        except ClientError as error:
            errors[name] = error
    raise_some(what, errors, results)
    return results


def remember(known: dict[str, T], name: str, value: T) -> None:
    """Those that were used last."""
    known.pop(name, None)
    known[name] = value
    while len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]


def raise_if(error: ClientError | None) -> None:
    if error is not None:
        raise error


def raise_some(what: str, errors: Mapping[Any, ClientError | None], results: Mapping[Any, Any] | None = None) -> None:
    """One error for all that failed, if any did."""
    failed = {about: error for about, error in errors.items() if error is not None}
    if failed:
        error = Several.of(what, failed)
        error.results = dict.fromkeys(about for about in errors if about not in failed) if results is None else results
        raise error
