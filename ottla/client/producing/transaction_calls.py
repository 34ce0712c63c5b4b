"""Transaction calls of a producer, as coroutines: they wait for what `transaction_manager` decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.client.core.driver import Driver
from ottla.client.errors import ClientError
from ottla.client.producing.accumulator import RecordAccumulator
from ottla.client.producing.transaction_manager import (
    BETWEEN_TRANSACTIONS,
    CallDone,
    CallFailed,
    TransactionManager,
    TransactionSettings,
    TransactionState,
)
from ottla.client.values import GroupMetadata, Offsets, OpenTransaction
from ottla.errors import ErrorCode

FEATURE: Final = "transaction.version"
"""The name of the feature `transaction.version` in the cluster."""


class TransactionCalls:
    """Of one producer. Made before its accumulator is attached: the machine is asked first."""

    def __init__(
        self, driver: Driver, accumulator: RecordAccumulator, settings: TransactionSettings, *, timeout_s: float
    ) -> None:
        self._driver = driver
        self._machine = TransactionManager(accumulator, driver.metadata, settings)
        self._timeout_s = timeout_s
        driver.attach(self._machine, self._resolve)

    def check(self) -> None:
        """Records belong to a transaction, or are refused."""
        if self._machine.state is not TransactionState.IN_TRANSACTION:
            raise self._machine.error or ClientError(
                "begin_transaction() comes first", code=ErrorCode.invalid_txn_state
            )

    @property
    def broken(self) -> bool:
        """Whether there is a transaction, and it can only be aborted."""
        return self._machine.state is TransactionState.ABORTABLE_ERROR

    def fail_transaction(self, error: Exception) -> None:
        message = f"a record of the transaction was not taken: {type(error).__name__}: {error}"
        self._machine.fail_transaction(error if isinstance(error, ClientError) else ClientError(message))
        self._driver.wake()

    async def init(self) -> None:
        if self._machine.state in BETWEEN_TRANSACTIONS:
            self._agree()
        await self._done(self._machine.init)

    def begin(self) -> None:
        if self._machine.state is TransactionState.READY:
            self._agree()
        self._machine.begin()

    async def send_offsets(self, offsets: Offsets, reader: GroupMetadata) -> None:
        if offsets:
            await self._done(lambda token: self._machine.send_offsets(offsets, reader, token))

    async def commit(self) -> None:
        await self._done(self._machine.commit)

    def hand_over(self) -> OpenTransaction:
        return self._machine.hand_over()

    async def abort(self) -> None:
        await self._done(self._machine.abort)

    async def close(self) -> None:
        """A transaction that was not ended was not meant to be committed."""
        if self._machine.state in (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR):
            await self.abort()

    def _agree(self) -> None:
        self._machine.agree(max(1, self._driver.network.features.get(FEATURE, 1)))

    async def _done(self, call: Callable[[object], None]) -> None:
        """It continues in the background if the caller stops waiting; the caller then does not know its result."""
        token: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call(token)
        self._driver.wake()
        try:
            async with asyncio.timeout(self._timeout_s):
                await token
        except TimeoutError:
            waited = f"the transaction's coordinator did not answer within {self._timeout_s:g} s"
            raise self._driver.timed_out(waited) from None

    def _resolve(self, action: CallDone | CallFailed) -> None:
        token = action.token
        assert isinstance(token, asyncio.Future)
        if token.done():
            return
        if isinstance(action, CallFailed):
            token.set_exception(action.error)
        else:
            token.set_result(None)
