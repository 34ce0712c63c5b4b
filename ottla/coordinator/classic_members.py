"""The members of a classic group: their protocols, timeouts, and waiting requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ottla.coordinator.decision import ReplyTo
from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.group_record_values import MemberMetadata
from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.wire.consumer_protocol import decode_subscription
from ottla.wire.schema.join_group import JoinGroupRequest

Protocols = Sequence[tuple[str, bytes]]
"""Names of assignors (or of other protocols, by the protocol type) with the member's metadata, preferred ones first."""

NAME_CHARS_MAX = 256
"""Of a client id or group instance id: how much of it is part of a member id."""


class ClassicMember:
    __slots__ = (
        "assignment", "client", "id", "instance_id", "is_new", "joining", "protocols", "rebalance_timeout_ms",
        "session_ends", "session_timeout_ms", "syncing",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client: MemberClient,
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client = client
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        """It was in no generation yet: it cannot send heartbeats, and is removed if it waits too long."""
        self.joining: ReplyTo | None = None
        self.syncing: ReplyTo | None = None
        self.session_ends: float | None = None
        """None: its request waits, or the timer was not started."""

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)

    def record(self, protocol: str | None, assignment: bytes, member_id: str | None = None) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.id if member_id is None else member_id,
            group_instance_id=self.instance_id,
            client_id=self.client.id,
            client_host=self.client.host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )


def member_of(recorded: MemberMetadata, protocol: str | None) -> ClassicMember:
    """A member from the log, with the one protocol that was chosen."""
    return ClassicMember(
        recorded.member_id,
        recorded.group_instance_id,
        MemberClient(recorded.client_id, recorded.client_host),
        session_timeout_ms=recorded.session_timeout_ms,
        rebalance_timeout_ms=_timeout_or(recorded.rebalance_timeout_ms, recorded.session_timeout_ms),
        protocols=[(protocol or "", recorded.subscription)],
        assignment=recorded.assignment,
    )


def new_member_id(request: JoinGroupRequest, client: MemberClient, unique: str) -> str:
    """The client id or group instance id, then a random part. Cut, so that it fits into a record."""
    return f"{(request.group_instance_id or client.id)[:NAME_CHARS_MAX]}-{unique}"


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return [(protocol.name, protocol.metadata) for protocol in request.protocols]


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """The oldest version of JoinGroup has none: then the session timeout counts."""
    return _timeout_or(request.rebalance_timeout_ms, request.session_timeout_ms)


def _timeout_or(rebalance_ms: int, session_ms: int) -> int:
    return session_ms if rebalance_ms < 0 else rebalance_ms


class Members:
    """All members of one group, by id and, if they are static (KIP-345), by instance id; in order of arrival."""

    __slots__ = ("_by_id", "_by_instance", "_supporters", "joining", "leader")

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicMember] = {}
        self._by_instance: dict[str, str] = {}
        self._supporters: dict[str, int] = {}  # how many members speak a protocol
        self.joining = 0
        """How many wait for the join phase to complete."""
        self.leader: str | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> ClassicMember | None:
        return self._by_id.get(member_id)

    def static(self, instance_id: str | None) -> ClassicMember | None:
        member_id = None if instance_id is None else self._by_instance.get(instance_id)
        return None if member_id is None else self._by_id[member_id]

    def check(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member that sends a request. Refused if it is no member, or if its instance id has another member id."""
        if instance_id is not None:
            holder = self._by_instance.get(instance_id)
            if holder is None:
                raise Refused(ErrorCode.unknown_member_id)
            if holder != member_id:
                raise Refused(ErrorCode.fenced_instance_id)
        member = self._by_id.get(member_id)
        if member is None:
            raise Refused(ErrorCode.unknown_member_id)
        return member

    def add(self, member: ClassicMember) -> None:
        assert member.id not in self._by_id
        self._by_id[member.id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.id
        self._count(member, 1)
        if member.joining is not None:
            self.joining += 1
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: ClassicMember) -> None:
        assert member.joining is None, "is answered first"
        del self._by_id[member.id]
        self._count(member, -1)
        if member.instance_id is not None and self._by_instance.get(member.instance_id) == member.id:
            del self._by_instance[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._by_id), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """A static member that rejoined has a new member id; everything else stays, also its position."""
        old = member.id
        self._by_id = {member_id if key == old else key: each for key, each in self._by_id.items()}
        member.id = member_id
        assert member.instance_id is not None
        self._by_instance[member.instance_id] = member_id
        if self.leader == old:
            self.leader = member_id

    def replay(self, recorded: MemberMetadata, protocol: str | None) -> None:
        """Take the member from a record; a known one keeps the state that is not in the log."""
        member = self._by_id.get(recorded.member_id)
        if member is None and (member := self.static(recorded.group_instance_id)) is not None:
            self.rename(member, recorded.member_id)
        if member is None:
            self.add(member_of(recorded, protocol))
            return
        member.assignment = recorded.assignment
        if member.client != (recorded.client_id, recorded.client_host):
            member.client = MemberClient(recorded.client_id, recorded.client_host)
        member.session_timeout_ms = recorded.session_timeout_ms
        member.rebalance_timeout_ms = _timeout_or(recorded.rebalance_timeout_ms, recorded.session_timeout_ms)
        if member.metadata(protocol) != recorded.subscription:
            self._set_protocols(member, [(protocol or "", recorded.subscription)])

    def delay_join(self, member: ClassicMember, reply_to: ReplyTo) -> ReplyTo | None:
        """Hold its JoinGroup until the join phase completes. Returns an earlier one of the same member, if any."""
        before, member.joining = member.joining, reply_to
        if before is None:
            self.joining += 1
        return before

    def take_join(self, member: ClassicMember) -> ReplyTo | None:
        """The waiting JoinGroup, which is to be answered now."""
        waiting, member.joining = member.joining, None
        if waiting is not None:
            self.joining -= 1
        return waiting

    def elect(self) -> bool:
        """Make sure that the leader has rejoined. False if no member has."""
        leader = None if self.leader is None else self._by_id.get(self.leader)
        if leader is None or leader.joining is None:
            leader = next((member for member in self if member.joining is not None), None)
            if leader is None:
                return False
            self.leader = leader.id
        return True

    # Protocols.

    def update(self, member: ClassicMember, request: JoinGroupRequest) -> None:
        """Take timeouts and protocols from a new JoinGroup."""
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        protocols = protocols_of(request)
        if member.protocols != protocols:
            self._set_protocols(member, protocols)

    def _set_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def _count(self, member: ClassicMember, step: int) -> None:
        for name in {name for name, _ in member.protocols}:
            self._supporters[name] = self._supporters.get(name, 0) + step
            if not self._supporters[name]:
                del self._supporters[name]

    def all_support(self, name: str) -> bool:
        return self._supporters.get(name, 0) == len(self._by_id)  # true for every protocol while there are no members

    def candidates(self) -> set[str]:
        """The protocols that all members support."""
        return {name for name, count in self._supporters.items() if count == len(self._by_id)}

    def select_protocol(self) -> str:
        """Each member votes for the one it prefers, of those that all support."""
        candidates = self.candidates()
        assert candidates, "a member that shares no protocol is refused"
        votes: dict[str, int] = {}
        for member in self:
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def subscribed_topics(self, protocol: str | None) -> set[str] | None:
        """The topics that the members of a consumer group subscribe to; None if a subscription cannot be decoded."""
        try:
            return {topic for member in self for topic in decode_subscription(member.metadata(protocol)).topics}
        except BadFrame:
            return None
