"""Base of all clients: settings, runtime, cluster metadata, connections; start and stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ottla.client.core.driver import Driver
from ottla.client.core.metadata import Metadata, MetadataSettings
from ottla.client.core.network import BrokerConnections
from ottla.client.core.settings import ClientSettings, Settings
from ottla.client.errors import ClientError

if TYPE_CHECKING:
    from ottla.runtime import Runtime
    from ottla.runtime.real import RealRuntime


class Client(ABC):
    """Started and stopped once. `async with` does both."""

    def __init__(self, settings: Settings, runtime: Runtime | None, *, auto_create: bool) -> None:
        self._settings = settings
        self._common = settings.part(ClientSettings)
        self._metadata_settings = settings.part(MetadataSettings, allow_auto_create_topics=auto_create)
        self._given_runtime = runtime
        self._own_runtime: RealRuntime | None = None
        self._driver_or_none: Driver | None = None
        self._stopped = False

    @property
    def _driver(self) -> Driver:
        if self._driver_or_none is None:
            raise ClientError(f"{type(self).__name__}.start() comes first")
        return self._driver_or_none

    @property
    def _timeout_s(self) -> float:
        return self._common.default_api_timeout_ms / 1000

    @property
    def _bootstrap_timeout_s(self) -> float:
        given_ms = self._common.bootstrap_timeout_ms
        return self._timeout_s if given_ms is None else given_ms / 1000

    async def _open(self) -> Driver:
        """The driver, not started yet."""
        if self._driver_or_none is not None:
            raise ClientError(f"this {type(self).__name__} was started before; make another")
        runtime = self._given_runtime
        if runtime is None:
            from ottla.runtime.real import RealRuntime

            runtime = self._own_runtime = RealRuntime()
        first = runtime.random.randrange(len(self._settings.bootstrap))
        metadata = Metadata(self._settings.bootstrap, self._metadata_settings, first=first)
        setup_s = self._common.socket_connection_setup_timeout_ms / 1000
        network = BrokerConnections(runtime, client_id=self._common.client_id, setup_timeout_s=setup_s)
        self._driver_or_none = Driver(runtime, metadata, network)
        return self._driver_or_none

    async def _close(self) -> None:
        if self._driver_or_none is not None:
            await self._driver_or_none.close()
        if self._own_runtime is not None:
            await self._own_runtime.close()
            self._own_runtime = None

    async def _not_started(self) -> None:
        """As if `start` had not been tried, so that it can be tried again."""
        await self._close()
        self._driver_or_none = None

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
