"""TransactionManager: the transactions of one producer, pure; `accumulator` writes the records in them.

    UNINITIALIZED ──init──► INITIALIZING ──► READY ──begin──► IN_TRANSACTION ──commit──► COMMITTING ──► READY
                                               ▲                 │ something failed          │
                                               │                 ▼                           │
                                               └── ABORTING ◄── ABORTABLE_ERROR ◄────────────┘
    IN_TRANSACTION ──hand over──► PREPARED (KIP-939) ──init──► INITIALIZING          any ──fenced──► FATAL_ERROR

Who speaks: the producer with the coordinator of its transactional id (InitProducerId, AddPartitionsToTxn,
AddOffsetsToTxn, EndTxn) and, for the offsets of a group, with that group's coordinator (TxnOffsetCommit).
What is durable: the state of the transaction, at its coordinator. What can be lost: an open transaction of a process
that ended is aborted, by its timeout or by the next producer with its transactional id.

Under `transaction.version` 1 each partition is added before it is written to, and the epoch stays. If records were
given up, it is not known which sequence numbers the log has; then the producer asks for its next epoch after the abort
(KIP-360). Under version 2 (KIP-890) leaders add partitions by themselves, and every end brings the next epoch. `agree`
sets the version, between transactions.

The contract with the shell stands in `core.requests`. Each call of the user has a token, and ends with `CallDone` or
`CallFailed` for it. This machine is asked before its accumulator, which then writes to the partitions that were added.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ottla.client.core.find_coordinator import (
    COORDINATOR_MOVED,
    GROUP,
    TRANSACTION,
    coordinator_request,
    found_coordinator,
)
from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import ANY_NODE, Node, RequestSettings, Send, code_of
from ottla.client.errors import ClientError, error_of
from ottla.client.producing.accumulator import RecordAccumulator
from ottla.client.producing.batches import NO_ID, ProducerIdAndEpoch
from ottla.client.producing.transaction_requests import TransactionRequests
from ottla.client.values import TRANSACTION_V2, GroupMetadata, Offsets, OpenTransaction, TopicPartition
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.wire.schema.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from ottla.wire.schema.end_txn import EndTxnResponse
from ottla.wire.schema.find_coordinator import FindCoordinatorResponse
from ottla.wire.schema.init_producer_id import InitProducerIdResponse
from ottla.wire.schema.txn_offset_commit import TxnOffsetCommitResponse
from ottla.wire.tree import Message

RETRIES_BEFORE_LOOKUP: Final = 8  # after so many refusals in a row the coordinator is looked up again
ADD_VERSION_MAX: Final = 3
"""Later versions of AddPartitionsToTxn are for brokers."""
OFFSETS_VERSION_MAX: Final = 4
PRODUCE_VERSION_MAX: Final = 11
"""The last versions that mean the first version of the protocol."""

FENCED: Final = frozenset(
    {
        ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state, ErrorCode.transactional_id_authorization_failed, ErrorCode.unsupported_version,
    }
)  # fmt: skip
"""The producer is unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings(RequestSettings):
    """Kafka's names and defaults."""

    transactional_id: str
    transaction_timeout_ms: int = 60_000


class TransactionState(Enum):
    UNINITIALIZED = "not initialised"
    INITIALIZING = "being initialised"
    READY = "outside a transaction"
    IN_TRANSACTION = "inside a transaction"
    ABORTABLE_ERROR = "inside a transaction that can only be aborted"
    COMMITTING = "committing"
    ABORTING = "aborting"
    PREPARED = "handed over a transaction that another process ends"
    FATAL_ERROR = "of no more use"


BETWEEN_TRANSACTIONS: Final = frozenset(
    {TransactionState.UNINITIALIZED, TransactionState.READY, TransactionState.PREPARED}
)


@dataclass(frozen=True, slots=True, eq=False)
class CallDone:
    token: object


@dataclass(frozen=True, slots=True, eq=False)
class CallFailed:
    token: object
    error: ClientError


class _Offsets(NamedTuple):
    token: object
    reader: GroupMetadata
    offsets: Offsets


Action = Send | CallDone | CallFailed


class TransactionManager:
    """One transactional producer, beside its accumulator."""

    def __init__(self, accumulator: RecordAccumulator, metadata: Metadata, settings: TransactionSettings) -> None:
        self.settings = settings
        self.state = TransactionState.UNINITIALIZED
        self.error: ClientError | None = None
        """Why the transaction can only be aborted, or why the producer is unusable."""
        self.version = 1
        self._accumulator = accumulator
        self._requests = TransactionRequests(settings.transactional_id)
        self._metadata = metadata
        self._coordinators: dict[tuple[int, str], Node] = {}
        self._request: Send | None = None
        self._abandoned = False
        """The request was for a transaction that was aborted since."""
        self._asked_coordinator: tuple[int, str] | None = None
        self._adding: list[TopicPartition] = []
        self._offsets: deque[_Offsets] = deque()
        self._offsets_added = False
        self._began = False
        """The coordinator knows of this transaction, or may."""
        self._token: object = None
        self._mark = 0
        self._retry_at = 0.0
        self._retries = 0
        self._decided_at = 0.0
        self._out: list[Action] = []

    # Calls of the application.

    def agree(self, version: int) -> None:
        """The version of the transaction protocol from now on."""
        assert self.state in BETWEEN_TRANSACTIONS, "versions change between transactions"
        self.version = version
        self._accumulator.produce_version_max = None if version >= TRANSACTION_V2 else PRODUCE_VERSION_MAX

    def init(self, token: object) -> None:
        """Take over the transactional id: its previous producer is fenced, and its transaction aborted."""
        self._check(self.state if self.state in BETWEEN_TRANSACTIONS else TransactionState.UNINITIALIZED)
        self._accumulator.identify(NO_ID)
        self.state, self._token = TransactionState.INITIALIZING, token

    def begin(self) -> None:
        self._check(TransactionState.READY)
        self.state = TransactionState.IN_TRANSACTION

    def send_offsets(self, offsets: Offsets, reader: GroupMetadata, token: object) -> None:
        """Offsets that count for the reader's group once this transaction is committed."""
        self._check(TransactionState.IN_TRANSACTION)
        self._offsets.append(_Offsets(token, reader, dict(offsets)))

    def commit(self, token: object) -> None:
        self._check(TransactionState.IN_TRANSACTION)
        self.state, self._token = TransactionState.COMMITTING, token
        self._mark = self._accumulator.flush()

    def hand_over(self) -> OpenTransaction:
        """Leave the transaction open; another process ends it. Everything in it has been delivered."""
        self._look_at_records()
        self._check(TransactionState.IN_TRANSACTION)
        assert self._accumulator.idle, "what is under way would be written after the end"
        self.state = TransactionState.PREPARED
        return self._transaction

    @property
    def _transaction(self) -> OpenTransaction:
        return OpenTransaction(self.settings.transactional_id, *self._accumulator.identity[:2], self.version)

    def fail_transaction(self, error: ClientError) -> None:
        """Something that belongs to it could not be taken: without it the rest must not count."""
        if self.state is TransactionState.IN_TRANSACTION:
            self._abortable_error(error)

    def abort(self, token: object) -> None:
        if self.state is not TransactionState.ABORTABLE_ERROR:
            self._check(TransactionState.IN_TRANSACTION)
        self.state, self._token = TransactionState.ABORTING, token
        self._abandoned = self._request is not None
        error = self.error or ClientError("the transaction was aborted", code=ErrorCode.transaction_abortable)
        self._refuse_offsets(error)
        self._accumulator.abort(error)

    def _check(self, state: TransactionState) -> None:
        if self.state is state:
            return
        if self.error is not None:
            raise self.error
        raise ClientError(f"the producer is {self.state.value}", code=ErrorCode.invalid_txn_state)

    # The machine.

    def decide(self, now: float) -> list[Action]:
        self._decided_at = now
        self._look_at_records()
        if self._request is None and now >= self._retry_at:
            self._retry_at = 0.0
            self._advance(now)
        decided, self._out = self._out, []
        return decided

    @property
    def deadline(self) -> float | None:
        return self._retry_at if self._request is None and self._retry_at > self._decided_at else None

    def answered(self, send: Send, response: Message, now: float) -> None:
        self._metadata.reached(send.to.node_id)
        if send is self._request:
            self._request = None
            self._heard(response, now)

    def failed(self, send: Send, now: float, code: ErrorCode = ErrorCode.network_exception) -> None:
        """No answer came. All that is asked here may be asked again."""
        if code in (ErrorCode.network_exception, ErrorCode.request_timed_out):
            self._metadata.lost(send.to.node_id, now)
        if send is self._request:
            self._request = None
            if isinstance(send.request, AddPartitionsToTxnRequest | AddOffsetsToTxnRequest):
                self._began = True  # it may have been done
            if self._asked_coordinator is not None:
                self._coordinators.pop(self._asked_coordinator, None)
            self._settle(code, now)

    def _look_at_records(self) -> None:
        """A record that the accumulator could not deliver fails the transaction."""
        error = self._accumulator.failure or self._accumulator.transaction_error
        if error is not None and self.state in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            self._abortable_error(error)

    # Next steps.

    def _advance(self, now: float) -> None:
        if self.state is TransactionState.INITIALIZING:
            self._init()
        elif self.state in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            if not self._add_partitions() and not self._commit_offsets() and self._may_commit:
                self._end(committed=True)
        elif self.state is TransactionState.ABORTING and self._accumulator.idle:
            self._end(committed=False)

    @property
    def _may_commit(self) -> bool:
        return self.state is TransactionState.COMMITTING and self._accumulator.flushed(self._mark)

    def _init(self) -> None:
        request = self._requests.init_producer_id(self._accumulator.identity, self.settings.transaction_timeout_ms)
        self._ask(request, TRANSACTION, self.settings.transactional_id)

    def _add_partitions(self) -> bool:
        """Whether something is asked for that has to be waited for."""
        partitions = self._accumulator.not_admitted()
        if not partitions:
            return False
        if self.version >= TRANSACTION_V2:
            self._began = True
            self._accumulator.admit(partitions)
            return False
        self._adding = partitions
        request = self._requests.add_partitions(self._accumulator.identity, partitions)
        self._ask(request, TRANSACTION, self.settings.transactional_id, ADD_VERSION_MAX)
        return True

    def _commit_offsets(self) -> bool:
        if not self._offsets:
            return False
        _, reader, offsets = self._offsets[0]
        self._began = self._began or self.version >= TRANSACTION_V2
        identity = self._accumulator.identity
        if self.version < TRANSACTION_V2 and not self._offsets_added:
            adds = self._requests.add_offsets(identity, reader.group_id)
            self._ask(adds, TRANSACTION, self.settings.transactional_id)
            return True
        version_max = None if self.version >= TRANSACTION_V2 else OFFSETS_VERSION_MAX
        request = self._requests.offset_commit(identity, reader, offsets)
        self._ask(request, GROUP, reader.group_id, version_max)
        return True

    def _end(self, *, committed: bool) -> None:
        if not self._began:
            self._ended(self._accumulator.identity)
            return
        request = self._requests.end(self._accumulator.identity, committed=committed)
        self._ask(request, TRANSACTION, self.settings.transactional_id, self._transaction.end_txn_version_max)

    def _ask(self, request: Message, kind: int, key: str, version_max: int | None = None) -> None:
        """The coordinator of that key; if it is not known, first where it is."""
        to = self._coordinators.get((kind, key))
        self._asked_coordinator = (kind, key)
        if to is None:
            request, to = coordinator_request(key, kind), ANY_NODE
            version_max = None
        self._request = Send(request, to, self.settings.request_timeout_s, version_max=version_max)
        self._out.append(self._request)

    # Answers.

    def _heard(self, response: Message, now: float) -> None:
        match response:
            case FindCoordinatorResponse():
                broker, code, _ = found_coordinator(response)
                if broker is not None and self._asked_coordinator is not None:
                    self._coordinators[self._asked_coordinator] = broker
            case InitProducerIdResponse() | AddOffsetsToTxnResponse() | EndTxnResponse():
                code = code_of(response.error_code)
            case AddPartitionsToTxnResponse():
                topics = response.results_by_topic_v3_and_below
                code = _worst([each.partition_error_code for topic in topics for each in topic.results_by_partition])
            case TxnOffsetCommitResponse():
                code = _worst([each.error_code for topic in response.topics for each in topic.partitions])
            case _:
                raise AssertionError(f"unexpected response {response}")
        if code is not ErrorCode.none:
            self._settle(code, now)
            return
        if not isinstance(response, FindCoordinatorResponse):  # to be found is not to be served
            self._retries, self._abandoned = 0, False
        self._granted(response)

    def _granted(self, response: Message) -> None:
        match response:
            case InitProducerIdResponse():
                self._ended(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
            case AddPartitionsToTxnResponse():
                self._began = True
                self._accumulator.admit(self._adding)
            case AddOffsetsToTxnResponse():
                self._began = self._offsets_added = True
            case TxnOffsetCommitResponse() if self._offsets:
                self._offsets_added = False
                self._out.append(CallDone(self._offsets.popleft().token))
            case EndTxnResponse():
                self._was_ended(response)

    def _was_ended(self, response: EndTxnResponse) -> None:
        if self.version >= TRANSACTION_V2 and response.producer_id >= 0:
            self._ended(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
        elif self._accumulator.transaction_error is not None:
            self.state = TransactionState.INITIALIZING  # numbers of lost records: only the next epoch begins with none
        else:
            self._ended(self._accumulator.identity)

    def _ended(self, identity: ProducerIdAndEpoch) -> None:
        """There is no transaction any more, or there was none."""
        self._accumulator.end_transaction()
        self._accumulator.identify(identity)
        self._began = self._offsets_added = False
        self.error = None
        self.state = TransactionState.READY
        self._out.append(CallDone(self._token))

    def _settle(self, code: ErrorCode, now: float) -> None:
        """It was refused, or not answered: try again, break the transaction, or give up."""
        lasts = self._retries % RETRIES_BEFORE_LOOKUP == RETRIES_BEFORE_LOOKUP - 1
        if self._asked_coordinator is not None and (code in COORDINATOR_MOVED or lasts):
            self._coordinators.pop(self._asked_coordinator, None)
        abandoned, self._abandoned = self._abandoned, False
        if code in RETRIABLE:
            self._retry_at = now + self.settings.retry_backoff_s(self._retries, code)
            self._retries += 1
            return
        error = error_of(code, f"transactional id {self.settings.transactional_id}")
        assert error is not None
        if code in FENCED:
            self._fatal_error(error)
        elif self.state in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            self._abortable_error(error)
        elif self.state is not TransactionState.ABORTABLE_ERROR and not abandoned:
            self._fatal_error(error)

    def _abortable_error(self, error: ClientError) -> None:
        """The user has to abort."""
        if error.fatal:
            self._fatal_error(error)
            return
        was = self.state
        self.state, self.error = TransactionState.ABORTABLE_ERROR, error
        self._refuse_offsets(error)
        if was is TransactionState.COMMITTING:
            self._out.append(CallFailed(self._token, error))

    def _fatal_error(self, error: ClientError) -> None:
        waiting = self.state in (TransactionState.INITIALIZING, TransactionState.COMMITTING, TransactionState.ABORTING)
        self.state, self.error = TransactionState.FATAL_ERROR, error
        self._refuse_offsets(error)
        self._accumulator.abort(error)
        if waiting:
            self._out.append(CallFailed(self._token, error))

    def _refuse_offsets(self, error: ClientError) -> None:
        self._out += [CallFailed(offsets.token, error) for offsets in self._offsets]
        self._offsets.clear()
        self._offsets_added = False


def _worst(codes: list[int]) -> ErrorCode:
    """What cannot be tried again counts most, and an error that another one caused least."""
    found = [code_of(code) for code in codes if code]
    found.sort(key=lambda code: (code is ErrorCode.operation_not_attempted, code in RETRIABLE))
    return found[0] if found else ErrorCode.none
